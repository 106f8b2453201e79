"""The statements of ``ch_sink init``: table, view, row policies and the sink's own tables, filled into ``sql/``.

And that of a truncate: an ``INSERT … SELECT`` that marks every row below a floor as gone. It looks at what is live, so
that running it again changes nothing.

A row policy hides delete rows, but not the older live rows beneath them: under ``FINAL`` it is right only where the
server applies it after ``FINAL`` (``apply_row_policy_after_final``), and without ``FINAL`` only once everything is
merged. The view is right always.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ch_sink.errors import TableError
from ch_sink.model.policy import ColumnPolicy
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.table.spec import DEDUP_SECONDS, EngineChoice, TableSpec, key_names, plan_columns, sorting_key
from ch_sink.table.views import CURRENT, moments_of, render, view_of
from ch_sink.types.arrow import sql_value
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema
from ch_sink.types.sql import key_expressions, literal, quote, split_commas


def policy_name(table: str) -> str:
    """Short name of the policy that ``init`` makes for a table."""
    return f"ch_sink_{table}"


def policy_condition(engine: Engine) -> str | None:
    """The condition that live rows meet; None if the engine marks no row as deleted."""
    if engine.is_deleted_column is not None:
        return f"{quote(engine.is_deleted_column)} = 0"
    if engine.sign_column is not None and engine.family is not Family.MERGE_TREE:
        return f"{quote(engine.sign_column)} != -1"
    return None


def create_row_policy(
    database: str,
    table: str,
    engine: Engine,
    roles: Sequence[str],
    *,
    spare: Sequence[str] = (),
    cluster: str | None = None,
) -> str:
    """The CREATE ROW POLICY statement for users or roles; ``all`` means everybody but ``spare``.

    The sink's own user must be spared: it looks up delete rows. On collapsing engines sums over ``sign`` are wrong
    for readers under the policy; ``FINAL`` and the view stay right. Raises TableError for an engine whose rows do
    not tell whether they are deleted, and for append tables, where the row before a delete would show.
    """
    condition = policy_condition(engine)
    if condition is None:
        raise TableError(
            f"{quote(database)}.{quote(table)} is a {engine.name}: no row policy can hide deleted rows there",
            hint="Let readers use the current-state view; grant SELECT on it and not on the table.",
        )
    if any(role.lower() == "all" for role in roles):
        grantees = "ALL" + (f" EXCEPT {', '.join(quote(name) for name in spare)}" if spare else "")
    else:
        grantees = ", ".join(quote(role) for role in roles)
    return render(
        "row_policy",
        policy=quote(policy_name(table)),
        on_cluster=f" ON CLUSTER {quote(cluster)}" if cluster else "",
        table=f"{quote(database)}.{quote(table)}",
        condition=condition,
        roles=grantees,
    )


STATE_TABLES = ("ledger", "dead_letters", "handover", "pending", "columns")
"""The sink's own tables, by template."""
_REPLICA_PATH = "/clickhouse/tables/{shard}/{database}/{table}"
TABLE_COMMENT = "Kept equal to its source by ch_sink"
"""Comment of the tables that ``init`` creates."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of ``init``, and the object that it creates or changes."""

    kind: Literal["database", "table", "view", "row policy", "alter", "column types"]
    database: str
    name: str
    """Of the object; of the table for ``alter``."""
    sql: str
    on_cluster: bool = False
    table: str = ""
    """The table that a row policy is for."""

    @property
    def title(self) -> str:
        """The statement in a few words, on one line."""
        return " ".join(f"{self.kind} {self.name}".split())

    def makes(self, table: str) -> bool:
        """Whether the statement creates the table of this name."""
        return self.kind == "table" and self.name == table

    @property
    def advised(self) -> bool:
        """Whether it changes a column that the table has: the stream goes on without, and ``check`` only warns."""
        return self.kind == "alter" and any(f" {verb} COLUMN " in self.sql for verb in ("MODIFY", "COMMENT"))

    @property
    def if_not_exists(self) -> bool:
        """Whether the statement does nothing if an object of that name exists."""
        return self.kind in ("database", "table")


def create_table(schema: RowSchema, spec: TableSpec) -> str:
    """The CREATE TABLE statement.

    Raises TableError where the source's columns do not make such a table (see :func:`plan_columns`).
    """
    columns = plan_columns(schema, spec)
    order = sorting_key(schema, spec)
    clauses = [
        f"PARTITION BY {listed(spec.partition_by)}" if spec.partition_by else "",
        f"ORDER BY ({', '.join(order)})",
        f"TTL {spec.ttl}" if spec.ttl else "",
        f"SETTINGS {', '.join(f'{name} = {value}' for name, value in _settings(spec))}",
    ]
    return render(
        "table",
        table=spec.qualified,
        on_cluster=spec.on_cluster,
        columns=",\n".join(f"    {column.sql}" for column in columns),
        engine=_engine(spec),
        clauses="\n".join(clause for clause in clauses if clause),
        comment=literal(TABLE_COMMENT),
    )


def listed(expressions: str) -> str:
    """Expressions as PARTITION BY takes them."""
    return f"({expressions})" if len(split_commas(expressions)) > 1 else expressions


def _engine(spec: TableSpec) -> str:
    replicated, path = _replication(spec)
    arguments = (path + spec.engine.arguments).removesuffix(", ")
    return f"{replicated}{spec.engine.family.value}" + (f"({arguments})" if arguments else "")


def _replication(spec: TableSpec) -> tuple[str, str]:
    if spec.replication == "none":
        return "", ""
    path = f"{literal(_REPLICA_PATH)}, '{{replica}}', " if spec.replication == "path" else ""
    return "Replicated", path


def _settings(spec: TableSpec) -> list[tuple[str, str]]:
    if spec.replication == "none":
        own = {"non_replicated_deduplication_window": str(spec.dedup_window)}
    else:
        own = {
            "replicated_deduplication_window": str(spec.dedup_window),
            "replicated_deduplication_window_seconds": str(DEDUP_SECONDS),
        }
    if spec.allow_nullable_key:
        own["allow_nullable_key"] = "1"
    return list({**own, **dict(spec.settings)}.items())


def views_of(table: TargetTable, key: Sequence[str], cluster: str | None) -> list[Statement]:
    """The statements of all views of a table, that of the current state first."""
    views = {CURRENT: view_of(table, key, cluster=cluster), **moments_of(table, key, cluster=cluster)}
    everywhere = cluster is not None
    return [Statement("view", table.database, table.name + end, sql, everywhere) for end, sql in views.items()]


def made_table(schema: RowSchema, spec: TableSpec) -> TargetTable:
    """The table that :func:`create_table` makes, with the parts that views use."""
    columns = tuple(Column(plan.name, plan.type) for plan in plan_columns(schema, spec))
    order = tuple(name for element in sorting_key(schema, spec) for name in key_expressions(element))
    return TargetTable(spec.database, spec.table, made_engine(spec), columns, order, spec.partition_by)


def made_engine(spec: TableSpec) -> Engine:
    """The engine of a generated table."""
    choice = spec.engine
    prefix, _ = _replication(spec)
    return Engine(
        choice.family,
        prefix + choice.family.value,
        version_column="_version",
        sign_column=None if choice is EngineChoice.REPLACING else "_sign",
        is_deleted_column="_is_deleted" if choice is EngineChoice.REPLACING else None,
        replicated=bool(prefix),
    )


def _state_name(template: str, spec: TableSpec) -> str:
    return spec.state_tables.get(template, f"ch_sink_{template}")


def state_table(template: str, spec: TableSpec) -> str:
    """The CREATE TABLE statement of one of the sink's own tables."""
    replicated, path = _replication(spec)
    return render(
        template,
        table=f"{quote(spec.database)}.{quote(_state_name(template, spec))}",
        on_cluster=spec.on_cluster,
        replicated=replicated,
        path=path,
    )


def init_statements(schema: RowSchema, spec: TableSpec) -> list[Statement]:
    """Everything that ``init`` carries out for a table that does not exist yet, in order. Each may be repeated."""
    everywhere = spec.cluster is not None
    create = render("database", database=quote(spec.database), on_cluster=spec.on_cluster)
    statements = [
        Statement("database", spec.database, spec.database, create, everywhere),
        Statement("table", spec.database, spec.table, create_table(schema, spec), everywhere),
        *views_of(made_table(schema, spec), key_names(schema, spec), spec.cluster),
    ]
    plans = plan_columns(schema, spec)
    notes = note_types(spec, {plan.name: plan.note for plan in plans if plan.note})
    return [*statements, *state_tables(spec), *notes, *row_policies(spec.table, made_engine(spec), spec)]


def state_tables(spec: TableSpec) -> list[Statement]:
    """The statements for the sink's own tables."""
    everywhere = spec.cluster is not None
    return [
        Statement("table", spec.database, _state_name(name, spec), state_table(name, spec), everywhere)
        for name in STATE_TABLES
    ]


def note_types(spec: TableSpec, notes: Mapping[str, str]) -> list[Statement]:
    """The statement that notes the source types of columns in the sink's own table, if there are any."""
    if not notes:
        return []
    rows = ",\n".join(f"    ({literal(column)}, {literal(note)})" for column, note in notes.items())
    table = f"{quote(spec.database)}.{quote(_state_name('columns', spec))}"
    sql = (
        f"INSERT INTO {table} (`database`, `table`, `column`, `type`, `uuid`)\n"
        "SELECT made.database, made.name, noted.column, noted.type, made.uuid\n"
        f"FROM values('column String, type String',\n{rows}) AS noted, system.tables AS made\n"
        f"WHERE made.database = {literal(spec.database)} AND made.name = {literal(spec.table)}"
    )
    return [Statement("column types", spec.database, spec.table, sql)]


def row_policies(table: str, engine: Engine, spec: TableSpec) -> list[Statement]:
    """The statement for the row policy of a table, if one is asked for. Raises TableError where none can help."""
    if not spec.row_policy_roles:
        return []
    sql = create_row_policy(
        spec.database, table, engine, spec.row_policy_roles, spare=spec.row_policy_except, cluster=spec.cluster
    )
    return [Statement("row policy", spec.database, policy_name(table), sql, spec.cluster is not None, table)]


def script(statements: list[Statement]) -> str:
    """The statements as one SQL text, each under its title."""
    return "\n".join(f"-- {statement.title}\n{statement.sql};\n" for statement in statements)


def truncate_statement(table: TargetTable, floor: int, version_column: str | None, condition: str = "") -> str:
    """SQL that deletes all rows of the stream whose version lies below ``floor``.

    ``condition``: of a fence, without which it fails; empty for none.

    Rows with other values of the added columns that belong to the key are those of other topics, and stay.

    Raises:
        TableError: the table can mark no row as deleted, or stores no version.
    """
    engine = table.engine
    if version_column is None:
        raise TableError(
            f"a truncate cannot be applied to {table.qualified}: it stores no version",
            hint="Set truncate: ignore, or re-create the table with `ch_sink init`.",
        )
    version = quote(version_column)
    kind = next(c.type for c in table.columns if c.name == version_column)
    bound = f"to{kind}('{floor}')" if kind.startswith(("UInt", "Int")) else None
    if bound is None:
        raise TableError(
            f"a truncate cannot be applied to {table.qualified}: its {kind} version is not a position",
            hint="Set truncate: ignore, or use a UInt128 version column.",
        )
    columns = [quote(c.name) for c in table.source_columns]
    mine = _own_rows(table)
    if condition:
        mine += f" AND throwIf(NOT ({condition}), 'superseded') = 0"
    if engine.family is Family.REPLACING and (engine.is_deleted_column or engine.sign_column):
        mark = quote(engine.is_deleted_column or engine.sign_column or "")
        gone = "1" if engine.is_deleted_column else "-1"
        return _insert(
            table,
            [*columns, version, mark],
            [*columns, bound, gone],
            f"FROM {table.qualified} FINAL WHERE {version} < {bound} AND {mark} != {gone}{mine}",
        )
    if engine.family.collapses:
        sign = quote(engine.sign_column or "")
        columns = [quote(c.name) for c in table.columns if c.insertable and quote(c.name) not in (version, sign)]
        return _insert(
            table,
            [*columns, version, sign],
            [*columns, version, "-1"],
            f"FROM {table.qualified} FINAL WHERE {version} < {bound} AND {sign} > 0{mine}",
            # A row that changed its table partition is paired inside each partition only.
            "do_not_merge_across_partitions_select_final = 1",
        )
    raise TableError(
        f"a truncate cannot be applied to {table.qualified} ({engine.name})",
        hint="Set truncate: ignore or fail.",
    )


def _own_rows(table: TargetTable) -> str:
    """The condition for rows of this stream in a table of several topics."""
    conditions = []
    for name, value in table.added:
        column = table.column(name)
        if column is None or name not in table.sorting_key:
            continue
        text = sql_value(value, parse_type(column.type))
        if text is None:
            raise TableError(
                f"a truncate cannot be applied to {table.qualified}: the added column {name!r} is a {column.type}",
                hint="Set truncate: ignore or fail, or make the column a String or an integer.",
            )
        conditions.append(f" AND {quote(name)} = {text}")
    return "".join(conditions)


def _insert(table: TargetTable, columns: list[str], values: list[str], rest: str, *settings: str) -> str:
    listed = ", ".join(("max_partitions_per_insert_block = 0", *settings))
    return f"INSERT INTO {table.qualified} ({', '.join(columns)}) SELECT {', '.join(values)} {rest} SETTINGS {listed}"


def own_rows(table: TargetTable, chosen: ColumnPolicy) -> str:
    """The condition on the rows of the stream; empty if all rows are, or if those of other topics may replace them."""
    added = [(name, sql) for name, sql in chosen.add if name in chosen.source]
    if table.engine.family is not Family.MERGE_TREE and any(name not in table.sorting_key for name, _ in added):
        return ""
    return " AND ".join(f"{quote(name)} = {sql}" for name, sql in added if table.column(name) is not None)
