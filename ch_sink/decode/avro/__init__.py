"""Avro: schemas, datums read all at once as columns, keys."""

from ch_sink.decode.avro.schema import Node, parse, source_type

__all__ = ["Node", "parse", "source_type"]
