"""Flattened rows: change events after ``ExtractNewRecordState``."""
