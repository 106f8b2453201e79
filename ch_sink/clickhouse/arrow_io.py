"""Arrow on the wire: one record batch per insert, and exact values both ways."""

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
from clickhouse_connect.driver.external import ExternalData

from ch_sink.types.sql import quote


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
