"""Assemble the rows that are inserted: values by row number, then the columns that the sink fills itself."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.merge.pool import Refs
from ch_sink.merge.resolved import Resolved
from ch_sink.model.change import ChangeBatch
from ch_sink.order import Layout, Words
from ch_sink.table.model import Family, TargetTable

__all__ = ["Merged", "System", "rows_at", "rows_of", "version_column", "with_system"]

Events = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class System:
    """The table's own columns and how they are written."""

    version: str | None
    layout: Layout | None
    sign: str | None
    is_deleted: str | None

    @staticmethod
    def of(table: TargetTable, layout: Layout | None) -> "System":
        engine = table.engine
        return System(version_column(table), layout, engine.sign_column, engine.is_deleted_column)


def version_column(table: TargetTable) -> str | None:
    """The column that holds versions: the engine's, else ``_version`` where a table of another engine has it."""
    if table.engine.version_column is not None:
        return table.engine.version_column
    if table.engine.family in (Family.COLLAPSING, Family.MERGE_TREE) and table.column("_version") is not None:
        return "_version"
    return None


@dataclass(slots=True)
class Merged:
    """Rows for the table, in steps: all inserts of one step come before those of the next."""

    steps: list[tuple[str, pa.Table]]
    upserts: int = 0
    deletes: int = 0
    moves: int = 0


def rows_of(out: Resolved, batch: ChangeBatch, events: Events) -> pa.Table:
    """Source columns of the rows of these events; key columns come from the Kafka key."""
    keys = batch.key
    columns = []
    for name in batch.after.column_names:
        if keys is not None and name in keys.column_names:
            columns.append(keys.column(name).take(pa.array(events)).cast(batch.after.schema.field(name).type))
        else:
            columns.append(out.pool.take(name, out.value_refs(name, events)))
    return pa.table(columns, schema=batch.after.schema)


def rows_at(out: Resolved, batch: ChangeBatch, refs: Refs) -> pa.Table:
    """Source columns of the rows with these numbers, filled values included."""
    n = len(batch)
    columns = []
    for name in batch.after.column_names:
        mine = refs
        if name in out.origin:
            inside = (refs >= 0) & (refs < n)
            mine = refs.copy()
            mine[inside] = out.value_refs(name, refs[inside])
        columns.append(out.pool.take(name, mine))
    return pa.table(columns, schema=batch.after.schema)


def with_system(rows: pa.Table, system: System, versions: Words | None, deleted: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows with version, sign and is_deleted columns, as far as the table has them."""
    if system.version is not None and system.layout is not None and versions is not None:
        rows = rows.append_column(system.version, system.layout.to_arrow(versions))
    if system.sign is not None:
        rows = rows.append_column(system.sign, pa.array(np.where(deleted, -1, 1).astype(np.int8)))
    if system.is_deleted is not None:
        rows = rows.append_column(system.is_deleted, pa.array(deleted.astype(np.uint8)))
    return rows
