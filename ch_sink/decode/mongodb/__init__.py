"""Documents: Extended JSON to BSON values, updates that state only what changed, and both into columns."""

from ch_sink.decode.mongodb.columns import DocumentKeys, DocumentTable, is_document_event, key_column_name
from ch_sink.decode.mongodb.events import document_layout, document_scanner, is_document_source, take_key

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
