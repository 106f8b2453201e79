"""The views beside a table: what the source's table holds now and, of a history, what it held at a moment.

Each names its columns one by one: a ``*`` is expanded when the view is created, and would show system columns.

A history is read at a commit (``_at_version``) or at a time (``_at``, ``_history``). A change counts at a time if its
own time is not later; of these changes the last one in the order of versions shows the row. So a row has what a change
of 10:05 made of it from 10:05 on, also if the change before it says 10:10: clocks are set back, and the rows of a
snapshot have the time at which they were read. In ``_history`` that change before lasts from 10:05 to 10:05.
"""

from collections.abc import Sequence

from ch_sink.order.version import POSITION_SHIFT
from ch_sink.table.model import SOURCE_TIME, Family, TargetTable, times
from ch_sink.table.templates import render
from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import columns_in, quote

__all__ = ["LIFE", "MOMENTS", "moments_of", "partition_in_sorting_key", "partitions_apart", "view_of"]

_AT_VERSION, _AT, _HISTORY = MOMENTS = ("_at_version", "_at", "_history")
"""Suffixes of the views of an append table at a moment."""
LIFE = frozenset(("valid_from", "valid_to"))
"""Columns of ``_history`` that are not the table's."""
_BELOW_COMMIT = (1 << POSITION_SHIFT) - 1


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
    """The statement that creates or replaces the view of the current state.

    Replacing: the newest row of each key, unless it is a delete row. Collapsing: the row that no −1 cancels. If rows
    of one key can be in several partitions, and no version tells them apart, partitions are merged separately (a −1 or
    a delete row is in the partition of its row), because across partitions the engine keeps the row of the highest
    partition, which may be the old one (measured).
    Append with key: the newest change of each key; without key: each row ``sum(_sign)`` times.
    """
    engine = table.engine
    if engine.family is Family.MERGE_TREE:
        return _changes(table, key, suffix, cluster)
    clauses = ""
    if engine.is_deleted_column is not None:
        clauses = f"WHERE {quote(engine.is_deleted_column)} = 0"
    elif engine.sign_column is not None:
        clauses = f"WHERE {quote(engine.sign_column)} > 0"
    if partitions_apart(table):
        clauses += "\nSETTINGS do_not_merge_across_partitions_select_final = 1"
    return render("view_final", clauses=clauses, columns=_columns(table, 4), **_names(table, suffix, cluster))


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
    if table.column("_op") is not None and not LIFE & {c.name for c in table.stored_columns}:
        out[_HISTORY] = _lives(table, key, cluster)
    return out


def _changes(table: TargetTable, key: Sequence[str], suffix: str, cluster: str | None, moment: str = "") -> str:
    places = {
        **_names(table, suffix, cluster),
        "columns": _columns(table, 4),
        "inner_columns": _columns(table, 8),
        "sign": quote(_sign(table)),
        "moment": moment,
    }
    if not key:
        return render("view_multiset", **places)
    return render("view_newest", key=", ".join(map(quote, key)), version=quote(_version(table)), **places)


def _lives(table: TargetTable, key: Sequence[str], cluster: str | None) -> str:
    places = {
        **_names(table, _HISTORY, cluster),
        "columns": _columns(table, 4),
        "inner_columns": _columns(table, 8),
        "sign": quote(_sign(table)),
        "version": quote(_version(table)),
        "time": quote(SOURCE_TIME),
    }
    if not key:
        return render("view_history_multiset", **places)
    return render("view_history", key=", ".join(map(quote, key)), **places)


def _names(table: TargetTable, suffix: str, cluster: str | None) -> dict[str, str]:
    return {
        "view": f"{quote(table.database)}.{quote(table.name + suffix)}",
        "table": table.qualified,
        "on_cluster": f" ON CLUSTER {quote(cluster)}" if cluster else "",
    }


def _columns(table: TargetTable, indent: int) -> str:
    return ",\n".join(" " * indent + quote(column.name) for column in table.stored_columns)


def _version(table: TargetTable) -> str:
    return table.engine.version_column or "_version"


def _sign(table: TargetTable) -> str:
    return table.engine.sign_column or "_sign"
