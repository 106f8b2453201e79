"""What ``check`` says of flattened events: whether deletes come, and what orders the changes."""

from ch_sink.config import Config
from ch_sink.table.checks import Finding

__all__ = ["flattened_finding"]

_TOLD = {
    "marked": "deleted rows are marked by __deleted",
    "nulls": "null values are deletes",
    "untold": "no delete is among the records looked at",
}


def flattened_finding(deletes: str, config: Config) -> Finding:
    """``deletes``: how they are told (`flattened_deletes`)."""
    order = "source_position" if config.version.strategy == "source_position" else "kafka_offset"
    text = f"{_TOLD[deletes]}; changes are ordered by {order}"
    if deletes == "nulls" and config.tombstones == "ignore":
        return Finding(
            "warn",
            "flattened events",
            "null values are set aside (tombstones: ignore), and no row is marked as deleted: deleted rows stay",
            "Leave tombstones out, or set delete.tombstone.handling.mode: rewrite in ExtractNewRecordState.",
        )
    if deletes == "untold":
        return Finding(
            "warn",
            "flattened events",
            text,
            "With delete.tombstone.handling.mode=drop they never come: set tombstone or rewrite.",
        )
    return Finding("ok", "flattened events", text)
