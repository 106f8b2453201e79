"""Decoding recorded streams in tests: the table that a sample asks for, and what a batch says."""

from typing import Any

import pyarrow as pa

from ch_sink.model.change import ChangeBatch
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types import clickhouse_type
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema


def table_of(schema: RowSchema, name: str = "t") -> TargetTable:
    """A replacing table with a column for each field of the schema, as ``init`` would type it."""
    keys = {f.name for f in schema.key}
    columns = tuple(
        Column(f.name, clickhouse_type(f.type, key=f.name in keys), comment=f.type.to_comment()) for f in schema.fields
    )
    return replacing(columns, tuple(f.name for f in schema.key), name)


def replacing(columns: tuple[Column, ...], key: tuple[str, ...], name: str = "t") -> TargetTable:
    """A ``ReplacingMergeTree(_version, _is_deleted)`` table of these source columns."""
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", "_version", None, "_is_deleted")
    system = (Column("_version", "UInt128"), Column("_is_deleted", "UInt8"))
    return TargetTable("d", name, engine, columns + system, key)


def listed(part: pa.Table | None) -> list[Any]:
    """The rows of a batch's keys or images; none where it has no such part."""
    return [] if part is None else part.to_pylist()


def outcome(batch: ChangeBatch) -> tuple[dict[int, Any], dict[int, tuple[str, str | None]]]:
    """Everything that a batch says of each record, by offset; NaN made comparable."""
    assert batch.before is not None
    after, before = bits(batch.after).to_pylist(), bits(batch.before).to_pylist()
    keys = batch.key.to_pylist() if batch.key is not None else [None] * len(batch)
    events = {}
    for i in range(len(batch)):
        events[int(batch.offset[i])] = repr(
            (
                int(batch.op[i]),
                batch.commit[i].tolist(),
                batch.inner[i].tolist(),
                bool(batch.has_commit[i]),
                int(batch.source_ts[i]),
                batch.source_name[batch.source_code[i]],
                keys[i],
                after[i],
                before[i],
                bool(batch.has_before[i]),
                sorted(n for n, m in batch.unavailable.items() if m[i]),
                sorted(n for n, m in batch.absent.items() if m[i]),
            )
        )
    return events, {b.index: (b.kind, b.column) for b in batch.bad}


def bits(table: pa.Table) -> pa.Table:
    """Dates and timestamps as integers: Python's calendar is narrower."""
    for i, column in enumerate(table.schema):
        if pa.types.is_temporal(column.type):
            integers = table.column(i).cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
            table = table.set_column(i, column.name, integers)
    return table
