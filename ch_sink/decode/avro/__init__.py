"""Avro: schemas, change events and keys as columns."""

from ch_sink.decode.avro.schema import Node, parse
from ch_sink.decode.avro.source_types import source_type

__all__ = ["Node", "parse", "source_type"]
