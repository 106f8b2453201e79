"""The statements of ``ch_sink init``: table, view, row policies and the sink's own tables, filled into ``sql/``.

A template of ``sql/`` is one statement with ``$name`` places (:class:`string.Template`). Tables also know
``$replicated`` and ``$path``: ``ENGINE = ${replicated}ReplacingMergeTree(${path}_version)`` is right either way.

The current-state view shows what the source's table holds now. It names its columns one by one: a ``*`` is expanded
when the view is created, and would show system columns.

A row policy hides delete rows, but not the older live rows beneath them: under ``FINAL`` it is right only where the
server applies it after ``FINAL`` (``apply_row_policy_after_final``), and without ``FINAL`` only once everything is
merged. The view is right always.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Literal

from ch_sink.errors import ChSinkError, TableError
from ch_sink.table.model import Engine, Family, TargetTable, times
from ch_sink.table.spec import EngineChoice, TableSpec, key_names, plan_columns, sorting_key
from ch_sink.types.connect import RowSchema
from ch_sink.types.sql import columns_in, key_expressions, literal, quote, split_commas

__all__ = [
    "STATE_TABLES",
    "TABLE_COMMENT",
    "Statement",
    "ViewShape",
    "create_row_policy",
    "create_table",
    "create_view",
    "current_view",
    "init_statements",
    "listed",
    "made_engine",
    "note_types",
    "once",
    "partition_in_sorting_key",
    "partitions_apart",
    "policy_condition",
    "policy_name",
    "render",
    "row_policies",
    "script",
    "state_tables",
    "template",
    "view_of",
]


@cache
def template(name: str) -> str:
    """The text of ``sql/<name>.sql``. Raises ChSinkError if the installation lacks it."""
    shipped = files("ch_sink").joinpath("sql", f"{name}.sql")
    if shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    checkout = Path(__file__).resolve().parents[2] / "sql" / f"{name}.sql"
    if checkout.is_file():
        return checkout.read_text(encoding="utf-8")
    raise ChSinkError(f"the SQL template {name}.sql is not installed", hint="Install ch-sink again.")


def render(name: str, **values: str) -> str:
    """The template with its places filled: one statement, without a semicolon.

    Lines of the template that a place leaves empty disappear; values stay as they are, names with blank lines included.
    Raises ChSinkError, naming it, for a place without a value.
    """
    try:
        lines = [Template(line).substitute(values).rstrip() for line in template(name).splitlines()]
    except KeyError as missing:
        raise ChSinkError(f"sql/{name}.sql has the place ${missing.args[0]}, which has no value here") from None
    return "\n".join(line for line in lines if line).rstrip(";")


@dataclass(frozen=True, slots=True)
class ViewShape:
    """What a view depends on. Names are unquoted, except the qualified ``view`` and ``table``."""

    view: str
    table: str
    engine: Engine
    columns: tuple[str, ...]
    key: tuple[str, ...]
    apart: bool = False
    """See `partitions_apart`."""
    on_cluster: str = ""


def partition_in_sorting_key(partition_key: str, sorting_key: Sequence[str], columns: Sequence[str]) -> bool:
    """Whether rows of one sorting key are always in one partition."""
    return columns_in(partition_key or "tuple()", columns) <= set(sorting_key)


def partitions_apart(table: TargetTable) -> bool:
    """Whether readers have to merge table partitions separately: no version says which of two rows is the later one.

    The rows are of one sorting key, in several partitions. A time is that of the row and of the delete row that it
    leaves behind.
    """
    unsaid = table.engine.family is Family.COLLAPSING or (table.engine.family is Family.REPLACING and times(table))
    names = [c.name for c in table.columns]
    if not unsaid or table.unstated_places(table.partition_key):
        return False
    return not partition_in_sorting_key(table.partition_key, table.sorting_key, names)


def view_of(table: TargetTable, key: Sequence[str], *, suffix: str = "_current", cluster: str | None = None) -> str:
    """The statement that creates or replaces the view of a detected table."""
    columns = tuple(c.name for c in table.stored_columns)
    on_cluster = f" ON CLUSTER {quote(cluster)}" if cluster else ""
    view = f"{quote(table.database)}.{quote(table.name + suffix)}"
    apart = partitions_apart(table)
    return create_view(ViewShape(view, table.qualified, table.engine, columns, tuple(key), apart, on_cluster))


def create_view(shape: ViewShape) -> str:
    """The CREATE OR REPLACE VIEW statement.

    Replacing: the newest row of each key, unless it is a delete row. Collapsing: the row that no −1 cancels. If rows
    of one key can be in several partitions, and no version tells them apart, partitions are merged separately (a −1 or
    a delete row is in the partition of its row), because across partitions the engine keeps the row of the highest
    partition, which may be the old one (measured).
    Append with key: the newest change of each key; without key: each row ``sum(_sign)`` times.
    """
    engine = shape.engine
    places = {"view": shape.view, "table": shape.table, "on_cluster": shape.on_cluster}
    places["columns"] = _lines(shape.columns, 4)
    if engine.family is Family.MERGE_TREE:
        version, places["sign"] = quote(engine.version_column or "_version"), quote(engine.sign_column or "_sign")
        places["inner_columns"] = _lines(shape.columns, 8)
        if shape.key:
            key = ", ".join(quote(name) for name in shape.key)
            return render("view_newest", key=key, version=version, **places)
        return render("view_multiset", **places)
    clauses = ""
    if engine.is_deleted_column is not None:
        clauses = f"WHERE {quote(engine.is_deleted_column)} = 0"
    elif engine.sign_column is not None:
        clauses = f"WHERE {quote(engine.sign_column)} > 0"
    if shape.apart:
        clauses += "\nSETTINGS do_not_merge_across_partitions_select_final = 1"
    return render("view_final", clauses=clauses, **places)


def _lines(names: Sequence[str], indent: int) -> str:
    return ",\n".join(" " * indent + quote(name) for name in names)


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
    path = f"{literal(spec.replica_path)}, '{{replica}}', " if spec.replication == "path" else ""
    return "Replicated", path


def _settings(spec: TableSpec) -> list[tuple[str, str]]:
    if spec.replication == "none":
        own = {"non_replicated_deduplication_window": str(spec.dedup_window)}
    else:
        own = {
            "replicated_deduplication_window": str(spec.dedup_window),
            "replicated_deduplication_window_seconds": str(spec.dedup_seconds),
        }
    if spec.allow_nullable_key:
        own["allow_nullable_key"] = "1"
    return list({**own, **dict(spec.settings)}.items())


def current_view(schema: RowSchema, spec: TableSpec) -> str:
    """The statement of the current-state view of the table that :func:`create_table` makes."""
    key = key_names(schema, spec)
    only_key = [name for name in key if schema.field(name) is None]
    names = (*only_key, *(f.name for f in schema.fields))
    plain = {name for element in sorting_key(schema, spec) for name in key_expressions(element)}
    engine = made_engine(spec)
    apart = engine.family is Family.COLLAPSING and not partition_in_sorting_key(spec.partition_by, list(plain), names)
    return create_view(ViewShape(spec.view, spec.qualified, engine, names, key, apart, spec.on_cluster))


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


def init_statements(schema: RowSchema, spec: TableSpec, *, create_database: bool = True) -> list[Statement]:
    """Everything that ``init`` carries out for a table that does not exist yet, in order. Each may be repeated.

    ``create_database=False`` leaves that statement out, which needs a grant even where the database exists.
    """
    everywhere = spec.cluster is not None
    create = render("database", database=quote(spec.database), on_cluster=spec.on_cluster)
    statements = [
        Statement("database", spec.database, spec.database, create, everywhere),
        Statement("table", spec.database, spec.table, create_table(schema, spec), everywhere),
        Statement("view", spec.database, spec.table + spec.view_suffix, current_view(schema, spec), everywhere),
    ]
    statements = statements if create_database else statements[1:]
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


def once(statements: Iterable[Statement]) -> list[Statement]:
    """Each statement once, at its first place: streams of one database share the sink's own tables."""
    return list(dict.fromkeys(statements))


def script(statements: list[Statement]) -> str:
    """The statements as one SQL text, each under its title."""
    return "\n".join(f"-- {statement.title}\n{statement.sql};\n" for statement in statements)
