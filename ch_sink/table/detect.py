"""Detection of the target table: the query to run, and the facts from its row.

``DETECT_SQL`` is one query over ``system.tables`` and ``system.columns``, with the parameters ``database`` (empty for
the current one) and ``table``. Its columns, and those of ``DEFAULTS_SQL`` where :func:`needs_defaults` says so, are
those of :class:`TableRow`. A Distributed table needs a second run for the local table that :func:`local_table` names.

Tables that other sinks have made are known by their columns; each sink is a row of ``SINKS``. What they have in common
makes the rest a rule: a ``ReplacingMergeTree`` whose version is a ``UInt64``, with a column that marks deleted rows. If
the engine does not know that column, a table whose engine does can have the same parts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ch_sink.errors import TableError, TableNotFound
from ch_sink.model.policy import Policy
from ch_sink.table.engine_full import (
    DistributedOver,
    EngineClause,
    distributed_over,
    parse_engine,
    removing_ttl,
    settings_sql,
    to_engine,
)
from ch_sink.table.facts import YEARS_SQL, years_of
from ch_sink.table.model import Engine, Family, TargetTable, text_instead
from ch_sink.table.partition import refuse_floats
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column
from ch_sink.types.sql import Kind, columns_in, key_expressions, quote, tokenize

_VARIES = re.compile(
    r"now(64|InBlock|InBlock64)?|today|yesterday|cur(rent_)?date|current_timestamp|local(time|timestamp)|"
    r"utc_?timestamp|(rand|generate)\w*",
    re.IGNORECASE,
)


def varying_columns(columns: Iterable[Column]) -> frozenset[str]:
    """Those whose DEFAULT or MATERIALIZED expression itself calls such a function."""
    return frozenset(c.name for c in columns if c.default_expression and varies(c.default_expression))


def varies(expression: str) -> bool:
    """Whether the expression itself calls such a function. Raises TableError if it is not SQL."""
    return any(
        name.kind is Kind.NAME and after.is_symbol("(") and _VARIES.fullmatch(name.value)
        for name, after in pairwise(tokenize(expression))
    )


_TEMPLATE = """\
SELECT
    t.database AS database,
    t.name AS name,
    t.engine AS engine,
    t.engine_full AS engine_full,
    t.sorting_key AS sorting_key,
    t.partition_key AS partition_key,
    t.comment AS comment,
    toString(t.uuid) AS uuid,
    (
        SELECT arraySort(x -> x.1, groupArray((position, name, type, default_kind, default_expression, comment)))
        FROM {columns}
        WHERE database = {db} AND table = {{table:String}}
    ) AS columns,
    {years} AS years
FROM {tables} AS t
WHERE t.database = {db} AND t.name = {{table:String}}
LIMIT 1"""


def detect_sql(cluster: str | None = None) -> str:
    """The detection query; with ``cluster``, asked of one shard of it (a local table may not exist on this server)."""
    where = "cluster('" + cluster.replace("\\", "\\\\").replace("'", "\\'") + "', {})" if cluster else "{}"
    return _TEMPLATE.format(
        db="if({database:String} = '', currentDatabase(), {database:String})",
        tables=where.format("system.tables"),
        columns=where.format("system.columns"),
        years=YEARS_SQL,
    )


DETECT_SQL = detect_sql()
DEFAULTS_SQL = """\
SELECT
    (
        SELECT mapFromArrays(groupArray(name), groupArray(value))
        FROM system.merge_tree_settings
        WHERE name LIKE '%replicated_deduplication_window%'
    ) AS merge_tree_settings,
    (
        SELECT mapFromArrays(groupArray(name), groupArray(value))
        FROM system.replicated_merge_tree_settings
        WHERE name LIKE '%replicated_deduplication_window%'
    ) AS replicated_settings"""
"""The server's defaults of the windows of insert deduplication."""

_PLAIN_WINDOW = "non_replicated_deduplication_window"
_WINDOW, _WINDOW_SECONDS = "replicated_deduplication_window", "replicated_deduplication_window_seconds"


def needs_defaults(row: Mapping[str, Any]) -> bool:
    """Whether the table leaves a window of its insert deduplication to the server's defaults."""
    clause = parse_engine(str(row["engine"]), str(row["engine_full"]))
    plain = not clause.name.startswith(("Replicated", "Shared"))
    return not all(clause.setting(name) for name in ((_PLAIN_WINDOW,) if plain else (_WINDOW, _WINDOW_SECONDS)))


NO_UUID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class TableRow:
    """The one row of ``DETECT_SQL``, typed. ``from_row`` takes it as a mapping of column name to value."""

    database: str
    name: str
    clause: EngineClause
    sorting_key: str
    partition_key: str
    comment: str
    uuid: str
    columns: tuple[Column, ...]
    merge_tree_settings: Mapping[str, str]
    replicated_settings: Mapping[str, str]

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "TableRow":
        return TableRow(
            str(row["database"]),
            str(row["name"]),
            parse_engine(str(row["engine"]), str(row["engine_full"])),
            str(row["sorting_key"]),
            "" if row["partition_key"] == "tuple()" else str(row["partition_key"]),
            str(row["comment"]),
            "" if row["uuid"] == NO_UUID else str(row["uuid"]),
            tuple(_column(c) for c in row["columns"]),
            dict(row.get("merge_tree_settings", {})),
            dict(row.get("replicated_settings", {})),
        )

    @property
    def qualified(self) -> str:
        return f"{quote(self.database)}.{quote(self.name)}"


def _column(entry: Sequence[Any] | Mapping[str, Any]) -> Column:
    # Clients show the same tuple as a sequence or, with its fields named, as a mapping.
    fields = tuple(entry.values()) if isinstance(entry, Mapping) else tuple(entry)
    return Column(*(str(value) for value in fields[1:]))


def local_table(row: Mapping[str, Any]) -> DistributedOver | None:
    """The local table to detect next, where the row is a Distributed table's; else None."""
    return distributed_over(parse_engine(str(row["engine"]), str(row["engine_full"])))


def assemble(
    row: Mapping[str, Any] | None,
    policy: Policy,
    *,
    local: Mapping[str, Any] | None = None,
    table: str = "the table",
) -> TargetTable:
    """The target of the stream from the detection query's row.

    ``local`` is the row of the local table of a Distributed one; ``table`` names the target where no row came.
    Raises TableNotFound without a row; TableError for an engine that cannot be served, and for a ReplacingMergeTree
    without a version column.
    """
    if row is None:
        raise TableNotFound(
            f"{table} does not exist",
            hint="Correct clickhouse.database and clickhouse.table, or create it with `ch_sink init CONFIG --apply`.",
        )
    seen = TableRow.from_row(row)
    over = distributed_over(seen.clause)
    stored = seen if over is None else _behind(seen, over, local)
    engine = to_engine(stored.clause, stored.columns, sign_column=policy.table.sign_column, table=stored.qualified)
    _refuse(engine, stored)
    _refuse_masks(policy, seen)
    for one in (stored, seen):
        _refuse_unstored(one)
        _refuse_json(engine, one)
    if stored is not seen:
        # Rows are inserted through the Distributed table: what the engine needs must be a column there too.
        to_engine(stored.clause, seen.columns, sign_column=policy.table.sign_column, table=seen.qualified)
    window, seconds = _window(engine, stored)
    names = {c.name for c in stored.columns}
    sharding = over.sharding_key if over else ""
    keys = (stored.sorting_key, stored.partition_key, removing_ttl(stored.clause.ttl), sharding)
    table_found = TargetTable(
        database=seen.database,
        name=seen.name,
        engine=engine,
        columns=seen.columns,
        sorting_key=tuple(key_expressions(stored.sorting_key)),
        partition_key=stored.partition_key,
        place_columns=frozenset().union(*(columns_in(text, names) for text in keys)),
        computed_from=_computed(stored.columns),
        varying=varying_columns((*stored.columns, *seen.columns)),
        dedup_window=window,
        distributed=over is not None,
        cluster=over.cluster if over else None,
        comment=seen.comment,
        uuid=seen.uuid,
        ttl=stored.clause.ttl,
        sharding_key=sharding,
        dedup_window_seconds=seconds,
        settings=stored.clause.settings,
        local=(stored.database, stored.name) if over else None,
        years=years_of(row["years"]),
        left_out=policy.columns.left_out,
    )
    _refuse_unstated_places(table_found)
    refuse_floats(table_found)
    return table_found


def _behind(seen: TableRow, over: DistributedOver, local: Mapping[str, Any] | None) -> TableRow:
    """The local table of a Distributed one. Raises TableNotFound, and TableError if it is Distributed, too."""
    if local is None:
        raise TableNotFound(
            f"{seen.qualified} is Distributed over {over.database or 'the default database'}.{over.table} "
            f"of cluster {over.cluster!r}, which does not exist there",
            hint="Create the local table on the cluster first: `ch_sink init` with clickhouse.cluster set.",
        )
    stored = TableRow.from_row(local)
    if stored.clause.name == "Distributed":
        raise TableError(
            f"{seen.qualified} is Distributed over {stored.qualified}, itself a Distributed table",
            hint="Point clickhouse.table at the inner one.",
        )
    return stored


def _computed(columns: Sequence[Column]) -> tuple[tuple[str, frozenset[str]], ...]:
    """See TargetTable.computed_from."""
    names = {c.name for c in columns}
    found = ((c.name, columns_in(c.default_expression, names)) for c in columns if c.default_expression)
    return tuple((name, frozenset(inputs)) for name, inputs in found if inputs)


def _refuse(engine: Engine, row: TableRow) -> None:
    if engine.family is Family.REPLACING and engine.version_column is None:
        raise TableError(
            f"{row.qualified} is a {engine.name} without a version column: the last inserted row wins, "
            "so a repeated or late event would restore an old state",
            hint=f"Recreate the table as {engine.name}(_version): `ch_sink init`.",
        )


def _refuse_unstored(row: TableRow) -> None:
    """Raises TableError for an EPHEMERAL column: an update or a delete may need the stored row, which lacks it."""
    if unstored := [c.name for c in row.columns if c.default_kind == "EPHEMERAL"]:
        raise TableError(
            f"{row.qualified} has the EPHEMERAL column {unstored[0]!r}, which it does not store: a change of a row may "
            "need its value",
            hint="Drop the column, or recreate the table with an ordinary one: others can be computed from it as well.",
        )


def _refuse_json(engine: Engine, row: TableRow) -> None:
    """Raises TableError for a JSON column of a collapsing table: a −1 states the stored values, read back as text."""
    json = next((c for c in row.columns if c.insertable and parse_type(c.type).holds("JSON")), None)
    if engine.family.collapses and json:
        raise TableError(
            f"{row.qualified} is a {engine.name} with the JSON column {json.name!r}: what it gives back may be another "
            "value (10 for 10.0), and no −1 would meet its row",
            hint=f"{text_instead(row.qualified, json)} Or use a ReplacingMergeTree.",
        )


def _refuse_unstated_places(table: TargetTable) -> None:
    """Raises TableError if no delete row and no −1 can be stored where the row is for which it is."""
    family = table.engine.family
    if family is Family.MERGE_TREE:
        return
    if table.sharding_key and varies(table.sharding_key):
        raise TableError(
            f"{table.qualified} is sharded by {table.sharding_key}, which is another value for each insert: an update "
            "or a delete would not reach the shard that has the row",
            hint="Recreate the Distributed table with a sharding key made of key columns, such as cityHash64(id), and "
            "fill the shards' tables again.",
        )
    keys = {"ORDER BY": ", ".join(table.sorting_elements), "sharding key": table.sharding_key}
    if family is Family.COLLAPSING:
        keys["PARTITION BY"] = table.partition_key
    # A −1 states the version of its row; rows that replace each other have other versions and marks.
    own = table.system_columns if family is Family.REPLACING else {table.engine.sign_column or ""}
    for clause, key in keys.items():
        if named := columns_in(key or "tuple()", own):
            raise TableError(
                f"{table.qualified} is a {table.engine.name} whose {clause} ({key}) has {min(named)!r}, which the sink "
                "sets for each change: a row would not meet what replaces or deletes it",
                hint=f"Recreate the table with a {clause} of the source's columns (`ch_sink init`).",
            )
        if found := table.unstated_places(key):
            name = min(found)
            raise TableError(
                f"{table.qualified}: {clause} {key} has {name!r}, which the server sets by each insert: an update or a "
                "delete would not reach the stored row",
                hint=f"Recreate the table with a {clause} without it, or make {name!r} a DEFAULT instead of "
                "MATERIALIZED: the sink then states the stored value.",
            )


def _refuse_masks(policy: Policy, row: TableRow) -> None:
    """Raises TableError for a masked column that holds no text."""
    masked = {policy.columns.target(name): name for name, _ in policy.columns.mask}
    for column in row.columns:
        if column.name in masked and parse_type(column.type).bare.name != "String":
            raise TableError(
                f"columns.mask has {masked[column.name]!r}, and column {column.name!r} of {row.qualified} is a "
                f"{column.type}: a mask is text",
                hint=f"{text_instead(row.qualified, column)} Values that it holds already are not masked.",
            )


def _window(engine: Engine, row: TableRow) -> tuple[int, int]:
    """Effective window of insert deduplication in inserts, and in seconds where a time limit holds."""
    if engine.shared:
        # SharedMergeTree keeps its tokens in Keeper as Replicated does, under the general MergeTree settings.
        defaults = row.merge_tree_settings
    elif engine.replicated:
        defaults = row.replicated_settings
    else:
        return _number(row, _PLAIN_WINDOW, row.merge_tree_settings), 0
    return _number(row, _WINDOW, defaults), _number(row, _WINDOW_SECONDS, defaults)


def _number(row: TableRow, name: str, defaults: Mapping[str, str]) -> int:
    text = row.clause.setting(name) or defaults.get(name, "0")
    return int(text) if text.isdigit() else 0


@dataclass(frozen=True, slots=True)
class OtherSink:
    """A sink whose tables are known by their columns."""

    name: str
    columns: tuple[str, ...]
    """Columns that its tables have. The first is the version, a ``UInt64``."""
    mark: str
    """The column that says of a row whether it was deleted; empty for a sign, which the stream reads."""


SINKS = (
    OtherSink("PeerDB or ClickPipes", ("_peerdb_version",), "_peerdb_is_deleted"),
    OtherSink("Altinity's sink connector", ("_version", "__is_deleted"), "__is_deleted"),
    OtherSink("Altinity's sink connector or ClickHouse's Kafka Connect sink", ("_version", "is_deleted"), "is_deleted"),
    OtherSink("Altinity's sink connector", ("_version", "_sign"), ""),
)
"""Their public DDL: Altinity/clickhouse-sink-connector, ``ClickHouseAutoCreateTable.java``; PeerDB-io/peerdb,
``flow/connectors/clickhouse/normalize.go``; ClickHouse/clickhouse-kafka-connect, ``DebeziumRecordConvertor.java``."""


def maker_of(table: TargetTable) -> OtherSink | None:
    """The sink that has made the table or fills it; None if its columns are those of none."""
    types = {c.name: c.type for c in table.columns}
    return next(
        (s for s in SINKS if types.get(s.columns[0]) in ("UInt64", "Int64") and types.keys() >= set(s.columns)),
        None,
    )


def unused_mark(table: TargetTable) -> Column | None:
    """The column that marks deleted rows and that the engine does not know; None if there is none."""
    engine, maker = table.engine, maker_of(table)
    if engine.family is not Family.REPLACING or engine.is_deleted_column or engine.sign_column or maker is None:
        return None
    return table.column(maker.mark)


def with_mark(table: TargetTable, mark: str) -> list[str]:
    """Statements that put a table in its place which has the same parts and whose engine knows the mark.

    The parts are linked, not copied. The former table stays as it was, under the name with ``_before``.
    """
    database, name = table.local or (table.database, table.name)
    here, before = f"{quote(database)}.{quote(name)}", f"{quote(database)}.{quote(name + '_before')}"
    everywhere = f" ON CLUSTER {quote(table.cluster)}" if table.cluster else ""
    engine = f"{table.engine.name.removeprefix('Shared')}({quote(table.engine.version_column or '')}, {quote(mark)})"
    # The server takes the columns and the keys from the table behind AS, but not its TTL and settings.
    clauses = [engine, f"TTL {table.ttl}" if table.ttl else "", settings_sql(table.settings)]
    return [
        f"CREATE TABLE {before}{everywhere} AS {here} ENGINE = {' '.join(filter(None, clauses))}",
        f"ALTER TABLE {before}{everywhere} ATTACH PARTITION ALL FROM {here}",
        f"EXCHANGE TABLES {here} AND {before}{everywhere}",
    ]
