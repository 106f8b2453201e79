"""Rows that another writer has left in a table: whether a stream can go on with them, and above which versions."""

from ch_sink.clickhouse import Client, has_rows, max_version
from ch_sink.config import Config
from ch_sink.discovery.wiring import ledger_of
from ch_sink.errors import REFILL, ChSinkError, TableError
from ch_sink.merge import version_column
from ch_sink.order.version import layout_for
from ch_sink.table.checks import Finding
from ch_sink.table.model import Family, TargetTable
from ch_sink.table.other_sinks import maker_of
from ch_sink.table.truncate import own_rows

_ANOTHER_TABLE = "Name a new table in clickhouse.table, fill it, and exchange the two (docs/migrating.md)."


def other_rows(config: Config, client: Client, table: TargetTable, key: tuple[str, ...]) -> Finding | None:
    """What rows of another writer need, so that the stream can go on with them.

    None if the table has no such rows, or the stream has begun: its own rows are there, too. Raises ClickHouseError.
    """
    return _versions(config, client, table) or _unordered(config, client, table, key)


def _versions(config: Config, client: Client, table: TargetTable) -> Finding | None:
    """Whether the stream's versions can begin above those of the rows."""
    name = version_column(table)
    column = table.column(name) if name else None
    if column is None:
        return None
    try:
        layout = layout_for(column.type)
    except TableError:  # which is a finding of its own
        return None
    newest = max_version(client, table, empty=-1, condition=own_rows(table, config.policy().columns))
    unordered = newest == 0 and table.engine.family is Family.MERGE_TREE
    if newest < 0 or unordered or _has_begun(config, client):
        return None
    maker = maker_of(table)
    held = f"the table holds versions up to {newest}, but the ledger has no entry of this stream: "
    held += f"{maker.name if maker is not None else 'another writer'} produced them"
    epoch = layout.epoch_of(newest)
    if epoch is None:
        why = f"{held}, and its rows win over changes of an earlier time"
        return Finding(
            "warn", "versions", why, f"If they are times of the source, change nothing. Otherwise: {REFILL}."
        )
    if epoch >= layout.epochs:
        return Finding("fail", "versions", f"{held}, and a {column.type} has no room above them", _ANOTHER_TABLE)
    return Finding("ok", "versions", f"{held}; those of the stream begin above them")


def _unordered(config: Config, client: Client, table: TargetTable, key: tuple[str, ...]) -> Finding | None:
    """Whether nothing says which of the rows of a key is the newest."""
    if table.engine.family is not Family.MERGE_TREE or not key or _has_begun(config, client):
        return None
    if max_version(client, table) or not has_rows(client, table, own_rows(table, config.policy().columns)):
        return None
    return Finding(
        "fail",
        "versions",
        "the table has rows without versions, and the ledger has no entry of this stream: nothing says which row of a "
        "key is the newest",
        _ANOTHER_TABLE,
    )


def _has_begun(config: Config, client: Client) -> bool:
    try:
        return bool(ledger_of(config, client).topic_ids())
    except ChSinkError:  # there is no ledger yet
        return False
