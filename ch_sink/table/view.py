"""The current-state view: what the source's table holds now, read from the target's rows.

It names its columns one by one (a ``*`` is expanded when the view is created, and would show system columns).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ch_sink.table.model import Engine, Family, TargetTable, times
from ch_sink.table.templates import render
from ch_sink.types.sql import columns_in, quote

__all__ = ["ViewShape", "create_view", "partition_in_sorting_key", "partitions_apart", "view_of"]


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
