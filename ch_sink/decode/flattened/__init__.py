"""Flattened rows: what ``ExtractNewRecordState`` leaves of a change event."""
