"""Columns as the user chose them: left out, renamed, masked, added. The readers see only the source's own names."""

from ch_sink.decode.chosen.decoder import ChosenColumns, decoder_for

__all__ = ["ChosenColumns", "decoder_for"]
