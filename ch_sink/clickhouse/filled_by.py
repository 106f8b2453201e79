"""Whether a table is still the one that a load began to fill."""

from ch_sink.clickhouse.client import Client
from ch_sink.table.model import TargetTable

__all__ = ["filled_by"]


def filled_by(client: Client, table: TargetTable, label: str) -> bool:
    """Whether the table's comment names this load. Raises ClickHouseError."""
    found = client.rows(
        "SELECT 1 AS one FROM system.tables WHERE database = {database:String} AND name = {name:String} "
        "AND position(comment, {label:String}) > 0",
        {"database": table.database, "name": table.name, "label": label},
        doing=f"look at {table.qualified}",
    )
    return bool(found)
