"""Columns of a DataFrame as the columns of the table, by the converters that read events.

So a value means what it means in an event of the same type, and what its column cannot hold is found here, where it
concerns one row: neither Arrow's casts nor the server cut it unseen.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.decode.isolate import of_record
from ch_sink.errors import RecordError, StreamFailed, TableError
from ch_sink.types.arrow import arrow_type
from ch_sink.types.build import converter
from ch_sink.types.column import Column, ValuePolicy, Years
from ch_sink.types.connect import Field, SourceType
from ch_sink.types.converter import Converter, takes_arrow

_TICKS = {
    "ms": ("io.debezium.time.Timestamp", "io.debezium.time.Time"),
    "us": ("io.debezium.time.MicroTimestamp", "io.debezium.time.MicroTime"),
    "ns": ("io.debezium.time.NanoTimestamp", "io.debezium.time.NanoTime"),
}
"""Names of date-times and of times of day, by their unit."""


@dataclass(frozen=True, slots=True)
class Values:
    """A column's values."""

    array: pa.Array
    """As they are inserted; null at the places of faults."""
    faults: dict[int, str]
    """Place → why the column cannot hold the value."""
    clamped: int = 0
    """How many values ``out_of_range: clamp | null`` changed."""


def read_column(given: pa.ChunkedArray, column: Column, policy: ValuePolicy, years: Years) -> Values:
    """The values of a DataFrame's column, as the table's column takes them.

    Raises StreamFailed if no value of the DataFrame's type goes into the column.
    """
    if pa.types.is_null(given.type):
        return Values(pa.nulls(len(given), arrow_type(column.type)), {})
    try:
        source, literal = _declared(given.type)
        # What the DataFrame says counts, and not what the column's comment says of another source.
        bare = replace(column, comment="", note="")
        made = converter(source, bare, encoding="json", policy=policy, omits=False, numbers=True, years=years)
    except TableError as error:
        raise StreamFailed(
            f"the DataFrame's column {column.name} is {given.type}: {error.message}",
            hint="Cast it in the DataFrame, or leave it out (except_column_list).",
        ) from None
    return _halved(given.combine_chunks(), literal, made)


def _declared(kind: pa.DataType) -> tuple[SourceType, pa.DataType]:
    """The type as Connect's, and the Arrow type of its literals. Raises TableError."""
    found = _scalar(kind)
    if found is not None:
        return found
    if pa.types.is_list(kind):
        item, literal = _declared(kind.value_type)
        return SourceType("array", items=item), pa.list_(literal)
    if pa.types.is_map(kind):
        key, key_literal = _declared(kind.key_type)
        item, literal = _declared(kind.item_type)
        return SourceType("map", keys=key, items=item), pa.map_(key_literal, literal)
    if pa.types.is_struct(kind):
        parts = [(member.name, *_declared(member.type)) for member in kind]
        source = SourceType("struct", fields=tuple(Field(name, part) for name, part, _ in parts))
        return source, pa.struct([pa.field(name, literal) for name, _, literal in parts])
    raise TableError("no column takes it")


def _scalar(kind: pa.DataType) -> tuple[SourceType, pa.DataType] | None:
    types = pa.types
    if types.is_boolean(kind):
        return SourceType("boolean"), kind
    if types.is_integer(kind):
        # Not int64: its negative values may be unsigned ones of MariaDB.
        return SourceType("int32"), pa.int64()
    if types.is_floating(kind):
        return SourceType("float32" if types.is_float32(kind) else "float64"), pa.float64()
    if types.is_string(kind) or types.is_large_string(kind):
        return SourceType("string"), pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind):
        return SourceType("bytes"), pa.binary()
    if types.is_date32(kind):
        return SourceType("int32", "io.debezium.time.Date"), pa.int32()
    if types.is_decimal(kind):
        scale = (("scale", str(kind.scale)),)
        return SourceType("bytes", "org.apache.kafka.connect.data.Decimal", scale), kind
    if (types.is_timestamp(kind) or types.is_time(kind)) and kind.unit in _TICKS:
        return SourceType("int64", _TICKS[kind.unit][types.is_time(kind)]), pa.int64()
    return None


def _halved(given: pa.Array, literal: pa.DataType, made: Converter) -> Values:
    """Converted together where all values fit; else halving finds those that do not."""
    parts, faults, clamped = list[pa.Array](), dict[int, str](), 0
    waiting = [(0, len(given))]
    while waiting:
        start, end = waiting.pop()
        try:
            found = made.convert(_literals(given.take(np.arange(start, end)), literal, made))
        except Exception as error:
            if not of_record(error):
                raise
            if end - start == 1:
                parts.append(pa.nulls(1, made.arrow))
                faults[start] = error.message if isinstance(error, RecordError) else f"cannot be read: {error}"
                continue
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]
        else:
            parts.append(found.array)
            clamped += found.clamped
    return Values(pa.concat_arrays(parts), faults, clamped)


def _literals(given: pa.Array, literal: pa.DataType, made: Converter) -> Any:
    """The values as the converter takes them: as Arrow where it can, else as Python's."""
    if given.type == made.arrow and pa.types.is_floating(given.type):
        return given
    read = given.cast(literal)
    return read if takes_arrow(made) and not pa.types.is_decimal(literal) else read.to_pylist(maps_as_pydicts="strict")
