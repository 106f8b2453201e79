"""Connectors whose events are no rows, so that no table can follow them."""

from ch_sink.errors import StreamFailed

__all__ = ["refusal"]

_REASONS = {
    "cassandra": (
        "each of its values is an object of the cell's value, its deletion time and a 'set' flag, an update states "
        "only the cells that it wrote, and rows, ranges and partitions are deleted by tombstones without the rows' keys"
    ),
}


def refusal(connector: str) -> StreamFailed | None:
    """The error that names the connector, the reason and the next step; None for a connector that is served."""
    inner = connector.rpartition(":")[2]
    reason = _REASONS.get(inner)
    if reason is None:
        return None
    return StreamFailed(
        f"events of the connector {inner!r} cannot be applied to a table: {reason}",
        hint="see docs/sources/other.md",
    )
