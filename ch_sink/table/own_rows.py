"""Which rows of a table of several topics are those of one stream."""

from ch_sink.model.policy import ColumnPolicy
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.sql import quote

__all__ = ["own_rows"]


def own_rows(table: TargetTable, chosen: ColumnPolicy) -> str:
    """The condition on the rows of the stream; empty if all rows are, or if those of other topics may replace them."""
    added = [(name, sql) for name, sql in chosen.add if name in chosen.source]
    if table.engine.family is not Family.MERGE_TREE and any(name not in table.sorting_key for name, _ in added):
        return ""
    return " AND ".join(f"{quote(name)} = {sql}" for name, sql in added if table.column(name) is not None)
