"""Arrow on the wire: one record batch per insert, and exact values both ways.

Rows that a plain insert would change are inserted by a query over ``input(…)``, which is given their types.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from clickhouse_connect.driver.external import ExternalData

from ch_sink.errors import TableError
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import sent_type, travels_as_text, without_unreadable_nulls
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column
from ch_sink.types.sql import literal, quote


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    """All rows as one record batch, which the server keeps as one block.

    Columns of more than 2 GiB of text get 64-bit offsets, since they could not be one array otherwise.
    """
    batches = rows.combine_chunks().to_batches()
    if len(batches) > 1:
        wide = pa.schema([field.with_type(_wide(field.type)) for field in rows.schema])
        batches = rows.cast(wide).combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], type=f.type) for f in rows.schema], schema=rows.schema)
    return batches[0]


def _wide(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind


def to_stream(batch: pa.RecordBatch, compression: Literal["lz4", "zstd", "none"] = "none") -> memoryview:
    """The batch as an Arrow IPC stream with compressed buffers (``FORMAT ArrowStream``); without a further copy."""
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def from_stream(body: bytes) -> pa.Table:
    """The table of an Arrow IPC stream; an empty body is a table without columns. Raises pa.ArrowInvalid."""
    if not body:
        return pa.table({})
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return reader.read_all()


def conform(values: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """The same values in another Arrow type that ClickHouse stores alike. Exact, or raises pa.ArrowInvalid."""
    have = values.type
    if have.equals(kind):
        return values
    if isinstance(have, pa.BaseExtensionType):
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        values = pa.chunked_array([c.storage for c in chunks], type=have.storage_type)
        return conform(values, kind)
    if isinstance(kind, pa.BaseExtensionType):
        storage = conform(values, kind.storage_type)
        chunks = storage.chunks if isinstance(storage, pa.ChunkedArray) else [storage]
        return pa.chunked_array([kind.wrap_array(c) for c in chunks], type=kind)
    if pa.types.is_integer(have) and pa.types.is_temporal(kind):
        # DateTime comes as UInt32 seconds, Date as UInt16 days.
        middle = pa.int32() if kind.bit_width == 32 else pa.int64()
        if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
            seconds = pa.timestamp("s") if pa.types.is_timestamp(kind) else pa.duration("s")
            return values.cast(middle).cast(seconds).cast(kind)
        return values.cast(middle).cast(kind)
    return values.cast(kind)


def conform_table(rows: pa.Table, types: dict[str, pa.DataType]) -> pa.Table:
    """The table with the columns listed in ``types`` in those types; the others as they are."""
    for index, name in enumerate(rows.column_names):
        if name in types:
            rows = rows.set_column(index, name, conform(rows.column(name), types[name]))
    return rows


class Keys:
    """A table that is sent along with a query, which refers to it by name."""

    def __init__(self, name: str, rows: pa.Table, structure: Sequence[tuple[str, str]]) -> None:
        """``structure``: column names and their ClickHouse types."""
        self.name, self.rows = name, rows
        self.structure = ", ".join(f"{quote(column)} {kind}" for column, kind in structure)

    def external(self) -> ExternalData:
        return ExternalData(
            file_name=self.name,
            data=bytes(to_stream(one_batch(self.rows))),
            fmt="ArrowStream",
            structure=self.structure,
        )


_NEVER_NULLABLE = frozenset({"Array", "Map", "Tuple", "Nested", "JSON", "Variant", "Dynamic", "Object"})
_FILLED_HERE = _NEVER_NULLABLE | {"Enum8", "Enum16", "Date32"}
"""Types whose nulls become the column's default before they are sent."""


def fenced_query(table: TargetTable, rows: pa.Table, condition: str) -> str:
    """The query for an insert of these rows, which fails unless the condition holds, if there is one."""
    sent = [(name, input_type(table, rows, name)) for name in rows.column_names]
    return fenced(sent, condition, {name: _json_of(name, kind, _column(table, name).type) for name, kind in sent})


def _json_of(name: str, sent: str, kind: str) -> str:
    """SQL of a column's values. Up to 26.3, only a CAST in so many words makes JSON as the settings say."""
    if not parse_type(kind).holds("JSON"):
        return quote(name)
    target = f"Nullable({kind})" if parse_type(sent).nullable and not parse_type(kind).nullable else kind
    return f"CAST({quote(name)}, {literal(target)}) AS {quote(name)}"


def fenced(columns: Sequence[tuple[str, str]], condition: str, values: Mapping[str, str] | None = None) -> str:
    """The same for columns of these names and types. ``values``: name → SQL, by default what was sent."""
    names = ", ".join((values or {}).get(name, quote(name)) for name, _ in columns)
    structure = ", ".join(f"{quote(name)} {kind}" for name, kind in columns)
    where = f" WHERE throwIf(NOT ({condition}), 'superseded') = 0" if condition else ""
    return f"SELECT {names} FROM input({literal(structure)}){where}"


def readable(table: TargetTable, rows: pa.Table) -> pa.Table:
    """The rows, with the column's or the type's default for each null that the server does not take for it."""
    rows = with_defaults(table, rows)
    for at, name in enumerate(rows.column_names):
        column = _column(table, name)
        computed = column.default_kind == "DEFAULT"
        values = without_unreadable_nulls(rows.column(name), column.type, computed=computed)
        if values is not rows.column(name):
            rows = rows.set_column(at, rows.schema.field(at), values)
    return rows


def needs_query(table: TargetTable, rows: pa.Table) -> bool:
    """Whether these rows have JSON, or a null for which a plain insert fails or stores another value.

    A null that comes as text is not a default, and 26.5 stores an empty text for one in a LowCardinality column.
    """
    if any(parse_type(_column(table, name).type).holds("JSON") for name in rows.column_names):
        return True
    kinds = (_column(table, name).type for name in rows.column_names if rows.column(name).null_count)
    return any(
        kind.startswith("LowCardinality(") or (travels_as_text(kind) and not parse_type(kind).nullable)
        for kind in kinds
    )


def with_defaults(table: TargetTable, rows: pa.Table) -> pa.Table:
    """The rows; a null that no server makes the column's default of becomes it here."""
    for name, default in table.defaults:
        if name not in rows.column_names or not rows.column(name).null_count:
            continue
        if _bare(table, name).partition("(")[0] in _FILLED_HERE:
            at, column = rows.schema.get_field_index(name), rows.column(name)
            places = np.where(np.asarray(pc.is_null(column)), len(column), np.arange(len(column)))
            whole = pa.chunked_array([*column.chunks, pa.array([default.as_py()], column.type)])
            rows = rows.set_column(at, rows.schema.field(at), whole.take(pa.array(places)))
    return rows


def input_type(table: TargetTable, rows: pa.Table, name: str) -> str:
    """The type of a column's values as sent: Nullable if it has nulls that the table turns into its default."""
    bare = _bare(table, name)
    if rows.column(name).null_count and bare.partition("(")[0] not in {*_NEVER_NULLABLE, "Nullable"}:
        return f"Nullable({bare})"
    return bare


def _bare(table: TargetTable, name: str) -> str:
    return sent_type(_column(table, name).type)


def _column(table: TargetTable, name: str) -> Column:
    column = table.column(name)
    if column is None:
        raise TableError(f"{table.qualified} has no column {name!r}")
    return column
