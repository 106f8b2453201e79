"""Shadow tables: the source's rows in a table of the target's shape, beside the target, for as long as a run needs it.

A run that was killed leaves its tables behind. The next one finds them by name, sees in their comment whether the
process that made them is still alive, and drops them.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from ch_sink.clickhouse import EVERY_TYPE, Client
from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.merge import version_column
from ch_sink.stream.claims import born
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.trust.sides import KEY
from ch_sink.types.column import Column
from ch_sink.types.sql import literal, quote

__all__ = ["DROP", "Shadow", "shadow_of", "shadow_tables"]

_SUFFIX = "__ch_sink_shadow"
DROP: dict[str, str | int] = {
    # However large it has become: a user does not miss it.
    "max_table_size_to_drop": 0,
    "max_partition_size_to_drop": 0,
}


@dataclass(frozen=True, slots=True)
class Shadow:
    """The tables of one run: the source's rows, and what was found to differ."""

    table: TargetTable
    differences: str
    """Qualified name of the table of differences."""

    def expect_own(self, client: Client) -> None:
        """Raises StreamFailed if a run on another host has replaced the tables: what they say is of that one."""
        if _comments(client, self.table) != [_comment()]:
            raise StreamFailed(
                f"another comparison has replaced {self.table.qualified} meanwhile, and this one says nothing",
                hint="Compare or repair a table from one host at a time.",
            )


def shadow_of(target: TargetTable, database: str, key: tuple[str, ...], columns: tuple[Column, ...]) -> TargetTable:
    """The shadow's shape: these columns of the target, and system columns of its own.

    Rows with a key replace each other by version. Rows without one are counted, as in an append table. What the target
    does not store (EPHEMERAL) the shadow does, so that a repair can insert it.
    """
    columns = tuple(replace(c, default_kind="DEFAULT") if c.default_kind == "EPHEMERAL" else c for c in columns)
    taken = {column.name for column in columns}
    if key:
        version, deleted = _free("_version", taken), _free("_is_deleted", taken)
        kind = _version_type(target)
        own: tuple[Column, ...] = (Column(version, kind), Column(deleted, "UInt8"))
        engine = Engine(Family.REPLACING, "ReplacingMergeTree", version_column=version, is_deleted_column=deleted)
    else:
        own = (Column("_op", "LowCardinality(String)"), Column("_sign", "Int8"), Column("_version", "UInt128"))
        engine = Engine(Family.MERGE_TREE, "MergeTree")
    names = {column.name for column in columns}
    return TargetTable(
        database,
        target.name + _SUFFIX,
        engine,
        (*columns, *own),
        sorting_key=key,
        place_columns=frozenset(key),
        dedup_window=10_000,
        defaults=tuple((name, value) for name, value in target.defaults if name in names),
        years=target.years,
        added=tuple((name, value) for name, value in target.added if name in names),
    )


@contextmanager
def shadow_tables(client: Client, table: TargetTable) -> Iterator[Shadow]:
    """The shadow and the table of differences, empty; dropped afterwards.

    Raises StreamFailed if another run on this host has them now.
    """
    differences = f"{quote(table.database)}.{quote(table.name + '_differences')}"
    _clear(client, table)
    drop = [f"DROP TABLE IF EXISTS {name} SYNC" for name in (table.qualified, differences)]
    try:
        for statement in (*drop, _create(table), _create_differences(differences)):
            client.command(statement, settings={**DROP, **EVERY_TYPE}, doing=f"prepare {table.qualified}")
        yield Shadow(table, differences)
    finally:
        with suppress(ChSinkError):  # what ended the run is the error to show; the next run drops them
            for statement in drop:
                client.command(statement, settings=DROP, doing=f"drop {table.qualified}")


def _comments(client: Client, table: TargetTable) -> list[str]:
    """The table's comment, if there is such a table."""
    found = client.rows(
        "SELECT comment FROM system.tables WHERE database = {database:String} AND name = {table:String}",
        {"database": table.database, "table": table.name},
        doing=f"look for {table.qualified}",
    )
    return [str(row["comment"]) for row in found]


def _clear(client: Client, table: TargetTable) -> None:
    for comment in _comments(client, table):
        maker = comment.split()[-3:]
        if len(maker) < 3 or not maker[1].isdigit() or int(maker[1]) == os.getpid():
            continue
        if maker[0] == socket.gethostname() and maker[2] == born(int(maker[1])):
            raise StreamFailed(
                f"process {maker[1]} on this host is verifying or repairing this table now: it has {table.qualified}",
                hint="Wait for it, or stop it.",
            )


def _create(table: TargetTable) -> str:
    columns = ", ".join(_column(column, table) for column in table.columns)
    order = ", ".join(quote(name) for name in table.sorting_key) or "tuple()"
    arguments = ", ".join(quote(name) for name in (table.engine.version_column, table.engine.is_deleted_column) if name)
    return (
        f"CREATE TABLE {table.qualified} ({columns}) ENGINE = {table.engine.family.value}({arguments}) "
        f"ORDER BY ({order}) SETTINGS allow_nullable_key = 1, non_replicated_deduplication_window = 10000 "
        f"COMMENT {literal(_comment())}"
    )


def _comment() -> str:
    pid = os.getpid()
    maker = f"{socket.gethostname()} {pid} {born(pid)}"
    return f"ch_sink: rows of the source, for a comparison; dropped after it; made by {maker}"


def _column(column: Column, table: TargetTable) -> str:
    constant = column.name in dict(table.defaults)
    default = f" DEFAULT {column.default_expression}" if constant else ""
    return f"{quote(column.name)} {column.type}{default}"


def _create_differences(name: str) -> str:
    return (
        f"CREATE TABLE {name} (step UInt16, {KEY} FixedString(16), kind LowCardinality(String), source_times Int64, "
        "table_times Int64, source_version String, table_version String) "
        f"ENGINE = MergeTree ORDER BY (step, {KEY}) "
        f"COMMENT {literal(_comment())}"
    )


def _version_type(target: TargetTable) -> str:
    """That of the target if it is a number, so that its versions are those of the same changes."""
    name = version_column(target)
    column = target.column(name) if name else None
    if column is not None and column.type in ("UInt64", "Int64", "UInt128", "Int128", "UInt256", "Int256"):
        return column.type
    return "UInt128"


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = "_" + name
    return name
