"""Documents: Extended JSON to BSON values, updates that state only what changed, and both into columns."""

from ch_sink.decode.mongodb.columns import DocumentTable, key_column_name
from ch_sink.decode.mongodb.document_keys import DocumentKeys, is_document_event
from ch_sink.decode.mongodb.events import document_layout, is_document_source, take_key
from ch_sink.decode.mongodb.scanned import document_scanner

__all__ = [
    "DocumentKeys",
    "DocumentTable",
    "document_layout",
    "document_scanner",
    "is_document_event",
    "is_document_source",
    "key_column_name",
    "take_key",
]
