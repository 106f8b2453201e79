"""Shadow tables: the source's rows in a table of the target's shape, beside the target, for as long as a run needs it.

A run that was killed leaves its tables behind. The next one finds them by name, sees in their comment whether the
process that made them is still alive, and drops them.
"""

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from ch_sink.clickhouse import EVERY_TYPE, Client
from ch_sink.clickhouse.client import connect
from ch_sink.clickhouse.replicas import AnsweredElsewhere
from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.merge.resolved import version_column
from ch_sink.stream.claims import born, runs
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.trust.sides import KEY
from ch_sink.types.column import Column
from ch_sink.types.sql import columns_in, literal, quote

_SUFFIX = "__ch_sink_shadow"
_ATTEMPTS = 12
"""Behind a balancer that takes turns, each leads to the other server with even odds at worst."""
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
        if _comments(client, self.table.database, self.table.name).get(self.table.name) != _comment():
            raise StreamFailed(
                f"another comparison has replaced {self.table.qualified}, so this one has no result",
                hint="Compare or repair a table from one host at a time.",
            )


def staying(client: Client, table: TargetTable) -> Client:
    """The client for a run with shadows of this table, which only one server then has.

    All its answers are of the server that answers now, if others have the table, too. Raises as `connect` does.
    """
    if client.settings.server or not client.is_replicated(table.database, table.name):
        return client
    client.rows("SELECT 1 AS one", doing="ask which server answers")
    return connect(replace(client.settings, server=client.answered_by))


def shadow_of(target: TargetTable, database: str, key: tuple[str, ...], columns: tuple[Column, ...]) -> TargetTable:
    """The shadow's shape: these columns of the target, and system columns of its own.

    Rows with a key replace each other by version. Rows without one are counted, as in an append table.
    """
    taken = {column.name for column in columns}
    if key:
        version, deleted = _free("_version", taken), _free("_is_deleted", taken)
        kind = _version_type(target)
        own: tuple[Column, ...] = (Column(version, kind), Column(deleted, "UInt8"))
        engine = Engine(Family.REPLACING, "ReplacingMergeTree", version_column=version, is_deleted_column=deleted)
    else:
        own = (Column("_op", "LowCardinality(String)"), Column("_sign", "Int8"), Column("_version", "UInt128"))
        engine = Engine(Family.MERGE_TREE, "MergeTree")
    others = {column.name for column in target.columns} - taken
    columns = tuple(
        replace(c, default_kind="", default_expression="") if columns_in(c.default_expression or "1", others) else c
        for c in columns
    )
    return TargetTable(
        database,
        target.name + _SUFFIX,
        engine,
        (*columns, *own),
        sorting_key=key,
        place_columns=frozenset(key),
        dedup_window=10_000,
        defaults=tuple((name, value) for name, value in target.defaults if name in taken),
        years=target.years,
        added=tuple((name, value) for name, value in target.added if name in taken),
    )


@contextmanager
def shadow_tables(client: Client, table: TargetTable) -> Iterator[Shadow]:
    """The shadow and the table of differences, empty; dropped afterwards.

    Raises StreamFailed if another run on this host has them now.
    """
    made: list[str] = []
    try:
        _clear(client, table.database, table.name)
        own = _made(client, table, lambda one: _create(one), made)
        found = replace(own, name=f"{own.name}_differences")
        yield Shadow(own, _made(client, found, lambda one: _create_differences(one.qualified), made).qualified)
    finally:
        with suppress(ChSinkError):  # what ended the run is the error to show; the next run drops them
            for name in made:
                _drop(client, name)


def _made(client: Client, table: TargetTable, create: Callable[[TargetTable], str], made: list[str]) -> TargetTable:
    """The table, created on the server with which the client stays; ``made`` gets the names of tables to drop.

    A table of the same name that a balancer has created elsewhere would take statements that are meant for this one.
    So each attempt has a name of its own.
    """
    for _ in range(_ATTEMPTS):
        one = replace(table, name=f"{table.name}_{uuid.uuid4().hex[:6]}") if client.settings.server else table
        made.append(one.qualified)
        try:
            client.command(
                create(one), settings=EVERY_TYPE, again=not client.settings.server, doing=f"prepare {one.qualified}"
            )
            return one
        except AnsweredElsewhere as error:
            last = error
            with suppress(ChSinkError):  # which says that it came there, too
                for _ in range(_ATTEMPTS):
                    client.command(f"DROP TABLE IF EXISTS {one.qualified} SYNC", again=False)
    raise last


def _drop(client: Client, name: str) -> None:
    client.command(f"DROP TABLE IF EXISTS {name} SYNC", settings=DROP, doing=f"drop {name}")


def clear_shadows(client: Client, target: TargetTable, database: str) -> None:
    """Drop the shadows of this table that a killed run left. Raises StreamFailed if a run on this host has them now."""
    _clear(client, database, target.name + _SUFFIX)


def _comments(client: Client, database: str, name: str) -> dict[str, str]:
    """Name → comment of the tables whose names begin like this one."""
    found = client.rows(
        "SELECT name, comment FROM system.tables "
        "WHERE database = {database:String} AND startsWith(name, {table:String})",
        {"database": database, "table": name},
        doing=f"look for {database}.{name}",
    )
    return {str(row["name"]): str(row["comment"]) for row in found}


def _clear(client: Client, database: str, start: str) -> None:
    """Drop what a run left that was killed. Raises StreamFailed if a run on this host has the tables now."""
    left = _comments(client, database, start)
    for name, comment in left.items():
        if pid := _made_by(" ".join(comment.split()[-3:])):
            raise StreamFailed(
                f"process {pid} on this host is verifying or repairing this table now: it has {database}.{name}",
                hint="Wait until it ends, or stop it.",
            )
    for name in left:
        _drop(client, f"{quote(database)}.{quote(name)}")


def _maker() -> str:
    """The process that runs, as `_made_by` reads it."""
    pid = os.getpid()
    return f"{socket.gethostname()} {pid} {born(pid)}"


def _made_by(text: str) -> int:
    """The process id of another living process of this host; 0 if it is none."""
    parts = text.split()
    if len(parts) != 3 or not parts[1].isdigit() or int(parts[1]) == os.getpid():
        return 0
    return int(parts[1]) if parts[0] == socket.gethostname() and runs(int(parts[1]), parts[2]) else 0


def _create(table: TargetTable) -> str:
    columns = ", ".join(_column(column) for column in table.columns)
    order = ", ".join(quote(name) for name in table.sorting_key) or "tuple()"
    arguments = ", ".join(quote(name) for name in (table.engine.version_column, table.engine.is_deleted_column) if name)
    return (
        f"CREATE TABLE {table.qualified} ({columns}) ENGINE = {table.engine.family.value}({arguments}) "
        f"ORDER BY ({order}) SETTINGS allow_nullable_key = 1, non_replicated_deduplication_window = 10000 "
        f"COMMENT {literal(_comment())}"
    )


def _comment() -> str:
    return f"ch_sink: rows of the source, for a comparison; dropped after it; made by {_maker()}"


def _column(column: Column) -> str:
    default = f" DEFAULT {column.default_expression}" if column.default_kind == "DEFAULT" else ""
    return f"{quote(column.name)} {column.type}{default}"


def _create_differences(name: str) -> str:
    return (
        f"CREATE TABLE {name} (step UInt16, {KEY} FixedString(16), kind LowCardinality(String), source_times Int64, "
        "table_times Int64, source_version String, table_version String) "
        f"ENGINE = MergeTree ORDER BY (step, {KEY}) "
        f"COMMENT {literal(_comment())}"
    )


def _version_type(target: TargetTable) -> str:
    """The version type of the target if it is a number, so that equal changes have equal versions."""
    name = version_column(target)
    column = target.column(name) if name else None
    if column is not None and column.type in ("UInt64", "Int64", "UInt128", "Int128", "UInt256", "Int256"):
        return column.type
    return "UInt128"


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = "_" + name
    return name
