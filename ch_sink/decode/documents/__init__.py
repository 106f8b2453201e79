"""Documents: Extended JSON to BSON values, updates that state only what changed, and both into columns."""

from ch_sink.decode.documents.columns import DocumentTable, key_column_name
from ch_sink.decode.documents.events import document_layout, is_document_source, take_key
from ch_sink.decode.documents.keys import DocumentKeys, is_document_event
from ch_sink.decode.documents.sample import document_schema

__all__ = [
    "DocumentKeys",
    "DocumentTable",
    "document_layout",
    "document_schema",
    "is_document_event",
    "is_document_source",
    "key_column_name",
    "take_key",
]
