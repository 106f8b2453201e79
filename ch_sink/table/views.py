"""The views beside a table: what the source's table holds now and, of a history, what it held at a moment.

Each names its columns one by one: a ``*`` is expanded when the view is created, and would show system columns.

A history is read at a commit (``_at_version``) or at a time (``_at``, ``_history``). A change counts at a time if its
own time is not later; of these changes the last one in the order of versions shows the row. So a row has what a change
of 10:05 made of it from 10:05 on, also if the change before it says 10:10: clocks are set back, and the rows of a
snapshot have the time at which they were read. In ``_history`` that change before lasts from 10:05 to 10:05.

A view shows every column of the table but the sink's own, also those that a stream does not fill: streams that share a
table want the same views. It keeps the columns and types that it was created with, so it is recreated when the table
has others. Only views whose comment says that ch_sink keeps them are: whoever replaces one by another of that name
takes it over.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from string import Template

from ch_sink.errors import ChSinkError, TableError
from ch_sink.order.version import POSITION_SHIFT
from ch_sink.table.model import SOURCE_TIME, Family, TargetTable, times
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column
from ch_sink.types.sql import columns_in, key_expressions, literal, quote

CURRENT = "_current"
"""Suffix of the view of the current state."""

_AT_VERSION, _AT, _HISTORY = MOMENTS = ("_at_version", "_at", "_history")
"""Suffixes of the views of an append table at a moment."""
LIFE = frozenset(("valid_from", "valid_to"))
"""Columns of ``_history`` that are not the table's."""
_BELOW_COMMIT = (1 << POSITION_SHIFT) - 1
_KEPT = "Kept by ch_sink"


@dataclass(frozen=True, slots=True)
class Shown:
    """The object that a server has under the name of a view. A parameterized view has its types when it is read."""

    engine: str
    comment: str
    columns: Mapping[str, str]
    """Types by name; empty for a parameterized view."""

    @property
    def kept(self) -> bool:
        """Whether ch_sink created it, and nobody replaced it since."""
        return self.engine == "View" and self.comment.startswith(_KEPT)

    @property
    def key(self) -> tuple[str, ...] | None:
        """The key that a view of changes was created with, which may have no columns; None of other views."""
        stated = self.comment.removeprefix(f"{_KEPT}, key ").rpartition(", digest ")[0]
        if not self.kept or not stated.startswith("("):
            return None
        return () if stated == "()" else tuple(key_expressions(stated))


def stated_keys(views: Iterable[Shown], key: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """The keys that views of changes were created with; only those with the columns of ``key``, if it is given."""
    stated = [view.key for view in views if view.key is not None]
    return [one for one in stated if not key or {*one} == {*key}]


def name_taken(shown: Mapping[str, Shown], wanted: Iterable[str]) -> TableError | None:
    """The error if one of the names that views would have is that of a table, whose rows would be lost; else None."""
    for name in wanted:
        if name in shown and shown[name].engine != "View":
            return TableError(
                f"{name} exists and has the engine {shown[name].engine}: the view of this name cannot be created",
                hint="Give the stream's table another name (clickhouse.table, or an exception under `tables:`), or "
                f"rename {name}.",
            )
    return None


def differs(shown: Shown, columns: Iterable[Column]) -> str:
    """The columns of its table that a view shows otherwise than they are, in words; empty if there are none."""
    mine = {column.name: column.type for column in columns}
    if shown.columns and (lacking := [name for name in mine if name not in shown.columns]):
        return f"it lacks column {', '.join(lacking)}"
    for name, kind in mine.items():
        if shown.columns and not _same(shown.columns[name], kind):
            return f"its column {name} is {shown.columns[name]}, and the table's is {kind}"
    return ""


def stale(shown: Shown, table: TargetTable, sql: str) -> str:
    """The differences of a view from the one that this statement would create, in words; empty if there are none."""
    if found := differs(shown, table.shown_columns):
        return found
    return "" if sql.endswith(f"COMMENT {literal(shown.comment)}") else "it was created with another definition"


def _same(shown: str, stored: str) -> bool:
    """Whether a view shows values of this type as they are. A merged value has lost how it is merged."""
    kind = parse_type(stored)
    merged = kind.name == "SimpleAggregateFunction"
    return shown == stored or (merged and stored.endswith(f", {shown})"))


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


def view_of(table: TargetTable, key: Sequence[str], *, cluster: str | None = None) -> str:
    """The statement that creates or replaces the view of the current state.

    Replacing: the newest row of each key, unless it is a delete row. Collapsing: the row that no −1 cancels. If rows
    of one key can be in several partitions, and no version tells them apart, partitions are merged separately (a −1 or
    a delete row is in the partition of its row), because across partitions the engine keeps the row of the highest
    partition, which may be the old one (measured).
    Append with key: the newest change of each key; without key: each row ``sum(_sign)`` times.
    """
    engine = table.engine
    if engine.family is Family.MERGE_TREE:
        return _changes(table, key, CURRENT, cluster)
    clauses = ""
    if engine.is_deleted_column is not None:
        clauses = f"WHERE {quote(engine.is_deleted_column)} = 0"
    elif engine.sign_column is not None:
        clauses = f"WHERE {quote(engine.sign_column)} > 0"
    if partitions_apart(table):
        clauses += "\nSETTINGS do_not_merge_across_partitions_select_final = 1"
    places = {"clauses": clauses, "columns": _columns(table, 4)}
    return _create("view_final", table, CURRENT, cluster, _KEPT, places)


def moments_of(table: TargetTable, key: Sequence[str], *, cluster: str | None = None) -> dict[str, str]:
    """The statements of the views of a history at a moment, by suffix.

    Without versions of 128 bits or more there is none at a commit, without the column of times none at a time. A
    column of the source that is called like one of a life leaves no name for it.
    """
    if table.engine.family is not Family.MERGE_TREE:
        return {}
    version = table.column(_version(table))
    if version is None or version.type.startswith("DateTime"):
        return {}
    out = {}
    if version.type.endswith(("128", "256")):
        # The low bits order the changes inside a commit by Kafka offset, which says nothing about another table. With
        # all of them set, a version of one table stands for its commit in every other.
        commit = f"{quote(version.name)} <= bitOr({{version:{version.type}}}, {_BELOW_COMMIT})"
        out[_AT_VERSION] = _changes(table, key, _AT_VERSION, cluster, f"WHERE {commit}")
    time = table.column(SOURCE_TIME)
    if time is None or parse_type(time.type).name != "DateTime64":
        return out
    out[_AT] = _changes(table, key, _AT, cluster, f"WHERE {quote(SOURCE_TIME)} <= {{at:{time.type}}}")
    if table.column("_op") is not None and not LIFE & {c.name for c in table.shown_columns}:
        out[_HISTORY] = _lives(table, key, cluster)
    return out


def _changes(table: TargetTable, key: Sequence[str], suffix: str, cluster: str | None, moment: str = "") -> str:
    places = {
        "columns": _columns(table, 4),
        "inner_columns": _columns(table, 8),
        "sign": quote(_sign(table)),
        "moment": moment,
    }
    if not key:
        return _create("view_multiset", table, suffix, cluster, _kept_by(key), places)
    places |= {"key": ", ".join(map(quote, key)), "version": quote(_version(table))}
    return _create("view_newest", table, suffix, cluster, _kept_by(key), places)


def _lives(table: TargetTable, key: Sequence[str], cluster: str | None) -> str:
    places = {
        "columns": _columns(table, 4),
        "inner_columns": _columns(table, 8),
        "sign": quote(_sign(table)),
        "version": quote(_version(table)),
        "time": quote(SOURCE_TIME),
    }
    if not key:
        return _create("view_history_multiset", table, _HISTORY, cluster, _kept_by(key), places)
    places["key"] = ", ".join(map(quote, key))
    return _create("view_history", table, _HISTORY, cluster, _kept_by(key), places)


def _kept_by(key: Sequence[str]) -> str:
    return f"{_KEPT}, key ({', '.join(map(quote, key))})"


def _create(
    name: str, table: TargetTable, suffix: str, cluster: str | None, kept: str, places: Mapping[str, str]
) -> str:
    """The statement; its comment has a digest of the definition, which is the same on every cluster."""
    view = f"{quote(table.database)}.{quote(table.name + suffix)}"
    on_cluster = f" ON CLUSTER {quote(cluster)}" if cluster else ""
    text = render(name, view=view, table=table.qualified, on_cluster=on_cluster, **places)
    digest = blake2b(text.replace(view + on_cluster, view, 1).encode(), digest_size=4).hexdigest()
    return f"{text}\nCOMMENT {literal(f'{kept}, digest {digest}')}"


def _columns(table: TargetTable, indent: int) -> str:
    return ",\n".join(" " * indent + quote(column.name) for column in table.shown_columns)


def _version(table: TargetTable) -> str:
    return table.engine.version_column or "_version"


def _sign(table: TargetTable) -> str:
    return table.engine.sign_column or "_sign"


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
