"""What ``check`` reports about flattened events: whether deletes arrive, and what orders the changes."""

from ch_sink.config import Config
from ch_sink.table.checks import Finding

__all__ = ["flattened_finding"]

_ANNOUNCED = {
    "marked": "deleted rows are marked by __deleted",
    "nulls": "null values are deletes",
    "unseen": "none of the sampled records is a delete",
}


def flattened_finding(deletes: str, config: Config) -> Finding:
    """``deletes``: how the events announce deletes (see `flattened_deletes`)."""
    order = "source_position" if config.version.strategy == "source_position" else "kafka_offset"
    text = f"{_ANNOUNCED[deletes]}; changes are ordered by {order}"
    if order == "kafka_offset":
        text += ", which loses a row where one statement swaps two keys (a deferrable constraint): see docs/formats.md"
    if deletes == "nulls" and config.tombstones == "ignore":
        return Finding(
            "warn",
            "flattened events",
            "null values are skipped (tombstones: ignore), and no row is marked as deleted: deleted rows stay",
            "Leave tombstones out, or set delete.tombstone.handling.mode: rewrite in ExtractNewRecordState.",
        )
    if deletes == "unseen":
        return Finding(
            "warn",
            "flattened events",
            text,
            "With delete.tombstone.handling.mode=drop the connector never sends deletes: set tombstone or rewrite.",
        )
    return Finding("ok", "flattened events", text)
