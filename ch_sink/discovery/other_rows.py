"""Rows that another writer has left in a table: the versions of a stream begin above theirs."""

from ch_sink.clickhouse import Client, max_version
from ch_sink.config import Config
from ch_sink.discovery.wiring import ledger_of
from ch_sink.errors import REFILL, ChSinkError, TableError
from ch_sink.merge import version_column
from ch_sink.order.version import floor_above, layout_for
from ch_sink.table.checks import Finding
from ch_sink.table.model import TargetTable
from ch_sink.table.truncate import own_rows

__all__ = ["floor_finding"]


def floor_finding(config: Config, client: Client, table: TargetTable) -> Finding | None:
    """Whether rows of another writer would win over the stream's changes, with the floor that lifts these above them.

    None if the table has no such rows, or the stream has begun: its own rows are there, too. Raises ClickHouseError.
    """
    name = version_column(table)
    column = table.column(name) if name else None
    if column is None:
        return None
    try:
        layout = layout_for(column.type, config.version.floor)
        if _has_begun(config, client):
            return None
        newest = max_version(client, table, condition=own_rows(table, config.policy().columns))
        if newest <= layout.floor:
            return None
        held = f"the table holds versions up to {newest}, but the ledger has no entry of this stream: another writer "
        held += "produced them"
        if layout.kind == "time":
            why = f"{held}, and its rows win over changes of an earlier time"
            return Finding(
                "warn", "versions", why, f"If they are times of the source, change nothing. Otherwise: {REFILL}."
            )
        wanted = layout_for(column.type, floor_above(newest)).floor
    except TableError as error:
        return Finding("fail", "versions", str(error), error.hint)
    return Finding("warn", "versions", held, f"version:\n  floor: {wanted}")


def _has_begun(config: Config, client: Client) -> bool:
    try:
        return bool(ledger_of(config, client).topic_ids())
    except ChSinkError:  # there is no ledger yet
        return False
