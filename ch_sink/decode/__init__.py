"""Bytes to change events: framing, kinds of record, row images, keys; column types are in :mod:`.types`."""

from ch_sink.decode.connector import connector_of
from ch_sink.decode.decoder import Decoder
from ch_sink.decode.sample import flattened_deletes, sample_schema, unreadable
from ch_sink.decode.schema import Field, RowSchema, SourceType, parse_connect_schema
from ch_sink.decode.unknown import joined

__all__ = [
    "Decoder",
    "Field",
    "RowSchema",
    "SourceType",
    "connector_of",
    "flattened_deletes",
    "joined",
    "parse_connect_schema",
    "sample_schema",
    "unreadable",
]
