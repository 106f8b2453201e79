"""Bytes to change events: framing, kinds of record, row images, keys; column types are in :mod:`ch_sink.types`."""

from ch_sink.decode.chosen import decoder_for
from ch_sink.decode.decoder import Decoder
from ch_sink.decode.unknown_columns import joined

__all__ = ["Decoder", "decoder_for", "joined"]
