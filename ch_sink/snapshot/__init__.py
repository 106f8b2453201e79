"""Rows of a source table as they are now, with the position of the source before and after they are read."""

from ch_sink.snapshot.reader import DivisibleReader, DocumentReader, Part, SourceAddress, SourceReader, open_source

__all__ = ["DivisibleReader", "DocumentReader", "Part", "SourceAddress", "SourceReader", "open_source"]
