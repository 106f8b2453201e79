"""ClickHouse types on the wire: the Arrow type with which a column is inserted and looked up, and the SQL to read it.

Each pair was inserted through ``FORMAT Arrow`` into engines 25.8, 26.1, 26.3 and 26.9 and read back equal to the byte
(the reader may have to cast: a zone's name may differ).

UUID, Time, Time64 and JSON travel as their texts, both ways. As sixteen bytes, a UUID is refused by servers up to 25.8
and stored with each half reversed by 26.1 to 26.3; as numbers, times beyond a day are stored modulo a day up to 26.3;
and up to 26.3 no JSON is written as Arrow.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import TableError
from ch_sink.types.chtype import ChType, parse_type
from ch_sink.types.sql import literal

INTEGERS: dict[str, tuple[int, int]] = {
    f"{sign}Int{bits}": ((-(1 << bits - 1), (1 << bits - 1) - 1) if not sign else (0, (1 << bits) - 1))
    for bits in (8, 16, 32, 64)
    for sign in ("", "U")
}
"""Integer types that Arrow has, with their least and greatest value."""

WIDE_INTEGERS: dict[str, tuple[int, int, int]] = {
    f"{sign}Int{bits}": (bits // 8, *((-(1 << bits - 1), (1 << bits - 1) - 1) if not sign else (0, (1 << bits) - 1)))
    for bits in (128, 256)
    for sign in ("", "U")
}
"""Integer types inserted as fixed-size binary, little-endian: bytes, least and greatest value."""


def integer_bounds(target: ChType) -> tuple[int, int] | None:
    """The least and greatest value of an integer type; None for any other."""
    return WIDE_INTEGERS[target.name][1:] if target.name in WIDE_INTEGERS else INTEGERS.get(target.name)


_PLAIN: dict[str, pa.DataType] = {
    **{name: getattr(pa, name.lower())() for name in INTEGERS},
    **{name: pa.binary(size) for name, (size, _, _) in WIDE_INTEGERS.items()},
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "Bool": pa.bool_(),
    # A ClickHouse String is bytes: text and binary columns share one Arrow type, so that what was read
    # back goes with what was decoded.
    "String": pa.binary(),
    "Date": pa.date32(),
    "Date32": pa.date32(),
    "DateTime": pa.uint32(),
    "Enum8": pa.int8(),
    "Enum16": pa.int16(),
    "IPv4": pa.uint32(),
    "IPv6": pa.binary(16),
}
_AS_TEXT = {
    "UUID": "00000000-0000-0000-0000-000000000000",
    "Time": "00:00:00",
    "Time64": "00:00:00",
    "JSON": "{}",
}
"""Types that travel as text, each with its default."""
_ENUMS = ("Enum8", "Enum16")
_NOT_ZERO = (*_ENUMS, "Date32")
"""Types whose default is not the number 0."""
_FIRST_DAY = pa.scalar(date(1900, 1, 1), pa.date32())
_POINT = pa.struct([pa.field("1", pa.float64()), pa.field("2", pa.float64())])
_GEO: dict[str, pa.DataType] = {
    "Point": _POINT,
    "Ring": pa.list_(_POINT),
    "LineString": pa.list_(_POINT),
    "MultiLineString": pa.list_(pa.list_(_POINT)),
    "Polygon": pa.list_(pa.list_(_POINT)),
    "MultiPolygon": pa.list_(pa.list_(pa.list_(_POINT))),
}


@lru_cache(maxsize=4096)
def arrow_type(clickhouse_type: str) -> pa.DataType:
    """The Arrow type with which a column of this type is inserted and looked up.

    Raises TableError for types that the sink cannot fill.
    """
    return arrow_of(parse_type(clickhouse_type))


def arrow_of(target: ChType) -> pa.DataType:
    """:func:`arrow_type` of a parsed type."""
    bare = target.bare
    name = bare.name
    if name in _PLAIN:
        return _PLAIN[name]
    if name in _AS_TEXT:
        return pa.string()
    if name in _GEO:
        return _GEO[name]
    if name == "Decimal":
        return (pa.decimal128 if bare.precision <= 38 else pa.decimal256)(bare.precision, bare.scale)
    if name == "DateTime64":
        return pa.timestamp(arrow_unit(bare.precision), tz="UTC")
    if name == "FixedString":
        return pa.binary(bare.precision)
    if name == "Array":
        return pa.list_(arrow_of(bare.items[0]))
    if name == "Map":
        return pa.map_(arrow_of(bare.items[0]), arrow_of(bare.items[1]))
    if name in ("Tuple", "Nested"):
        names = bare.names or tuple(str(i + 1) for i in range(len(bare.items)))
        fields = pa.struct([pa.field(n, arrow_of(i)) for n, i in zip(names, bare.items, strict=True)])
        return fields if name == "Tuple" else pa.list_(fields)
    if name == "SimpleAggregateFunction" and bare.items:
        return arrow_of(bare.items[0])
    raise TableError(
        f"a column of type {name} cannot be filled",
        hint="give the column another type, or make it MATERIALIZED or ALIAS so that the sink leaves it alone",
    )


def carried(expression: str, clickhouse_type: str) -> str:
    """SQL that gives the values of a type in a form that :func:`arrow_type` holds: what travels as text, as text."""
    tree = parse_type(clickhouse_type)
    wire = _wire(tree)
    return expression if wire == tree else f"CAST({expression}, {literal(str(wire))})"


def sent_type(clickhouse_type: str) -> str:
    """The type of values that are sent to a query: the column's, without what changes no value around it.

    JSON is sent as text: the reader of Arrow would take texts in it for times, whatever the query's settings say.
    """
    tree = parse_type(clickhouse_type)
    while tree.name in ("LowCardinality", "SimpleAggregateFunction") and tree.items:
        tree = tree.items[0]
    return str(_wire(tree) if tree.holds("JSON") else tree)


def travels_as_text(clickhouse_type: str) -> bool:
    """Whether a column's values travel as text."""
    return parse_type(sent_type(clickhouse_type)).bare.name in _AS_TEXT


def without_unreadable_nulls(
    values: pa.ChunkedArray, clickhouse_type: str, *, computed: bool = False
) -> pa.ChunkedArray:
    """The values of a column with those nulls replaced by their type's default for which no server takes it.

    These are the nulls of texts within arrays, maps and tuples; those of Enums, of which a plain insert makes 0,
    whatever the Enum has; and those of a Date32 column, of which it makes 1970, and an insert by query 1900.

    ``computed``: the column has a default of its own for the nulls in it.
    """
    tree = parse_type(clickhouse_type)
    name = tree.bare.name
    if name in _AS_TEXT or (name in _NOT_ZERO and (computed or tree.nullable or not values.null_count)):
        return values
    if name == "Date32":
        return pc.fill_null(values, _FIRST_DAY)
    if not any(map(tree.holds, _ENUMS)) and _wire(tree) == tree:
        return values
    return pa.chunked_array([_filled(chunk, tree) for chunk in values.chunks], values.type)


def _filled(values: pa.Array, tree: ChType) -> pa.Array:
    bare = tree.bare
    if bare.name in _AS_TEXT:
        return values if tree.nullable else pc.fill_null(values, _AS_TEXT[bare.name])
    if bare.name in _ENUMS:
        return values if tree.nullable else pc.fill_null(values, min(number for _, number in bare.values))
    if bare.name in ("Tuple", "Nested") and pa.types.is_struct(values.type):
        parts = [_filled(part, item) for part, item in zip(values.flatten(), bare.items, strict=True)]
        # Some servers make nulls of all parts of a null tuple.
        mask = pc.is_null(values) if tree.nullable else None
        return pa.StructArray.from_arrays(parts, fields=list(values.type), mask=mask)
    if bare.name == "Map":
        entries = pa.StructArray.from_arrays(
            [_filled(values.keys, bare.items[0]), _filled(values.items, bare.items[1])],
            fields=[values.type.key_field, values.type.item_field],
        )
        return _around(values, entries)
    if bare.name in ("Array", "Nested"):
        return _around(values, _filled(values.values, bare if bare.name == "Nested" else bare.items[0]))
    return _filled(values, bare.items[0]) if bare.name == "SimpleAggregateFunction" else values


def nulls_within(values: pa.Array, tree: ChType) -> npt.NDArray[np.bool_]:
    """The values in which an element of an array, a map or a tuple is null, and its type cannot hold null."""
    bare, found = tree.bare, np.zeros(len(values), dtype=np.bool_)
    if bare.name == "SimpleAggregateFunction":
        return nulls_within(values, bare.items[0])
    if bare.name == "Nested":
        bare = ChType("Array", (ChType("Tuple", bare.arguments, bare.names),))
    if bare.name == "Tuple":
        for part, item in zip(values.flatten(), bare.items, strict=True):
            found |= _nulls(part, item)
    elif bare.name in ("Array", "Map"):
        offsets = np.asarray(values.offsets)
        within = np.zeros(offsets[-1] - offsets[0], dtype=np.bool_)
        for items, item in zip(
            (values.keys, values.items) if bare.name == "Map" else (values.values,), bare.items, strict=True
        ):
            within |= _nulls(items.slice(offsets[0], len(within)), item)
        found[np.repeat(np.arange(len(values)), np.diff(offsets))[within]] = True
    valid: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return found & valid


def _nulls(values: pa.Array, tree: ChType) -> npt.NDArray[np.bool_]:
    found = nulls_within(values, tree)
    if not tree.nullable and tree.bare.name not in ("Dynamic", "Variant"):
        found |= values.is_null().to_numpy(zero_copy_only=False)
    return found


def _around(lists: pa.Array, items: pa.Array) -> pa.Array:
    """The same lists of other items."""
    return pa.Array.from_buffers(
        lists.type, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, children=[items]
    )


def _wire(tree: ChType) -> ChType:
    """The type as which the values of another one are read."""
    if tree.name in _AS_TEXT:
        return ChType("String")
    parts = tuple(_wire(a) if isinstance(a, ChType) else a for a in tree.arguments)
    if parts == tree.arguments:
        return tree
    if tree.name == "SimpleAggregateFunction":
        return _wire(tree.items[0])
    if tree.name == "Nested":
        return ChType("Array", (ChType("Tuple", parts, tree.names),))
    return replace(tree, arguments=parts)


def arrow_unit(precision: int) -> str:
    """Arrow's time unit that holds this many sub-second digits."""
    return "s" if precision == 0 else "ms" if precision <= 3 else "us" if precision <= 6 else "ns"


_FROM_EPOCH = {
    "ms": "fromUnixTimestamp64Milli",
    "us": "fromUnixTimestamp64Micro",
    "ns": "fromUnixTimestamp64Nano",
}


def sql_value(value: pa.Scalar, target: ChType) -> str | None:
    """SQL of an Arrow value as it is inserted into a column of this type; None for types that have no such SQL."""
    bare = target.bare
    name = bare.name
    if not value.is_valid:
        return "NULL"
    if name in WIDE_INTEGERS:
        return f"to{name}('{int.from_bytes(value.as_py(), 'little', signed=not name.startswith('U'))}')"
    if name in INTEGERS:
        return str(value.as_py())
    if name.startswith("Float"):
        number = value.as_py()
        return repr(number) if math.isfinite(number) else f"to{name}('{number}')"
    if name == "Bool":
        return "true" if value.as_py() else "false"
    if name in ("String", "FixedString", "JSON", "UUID"):
        return _text(value.as_py())
    if name == "Decimal":
        return literal(_digits(value.as_py()))
    if name == "Date32":
        return f"toDate32('1970-01-01') + {value.value}"
    if name == "DateTime64" and value.type.unit in _FROM_EPOCH:
        return f"{_FROM_EPOCH[value.type.unit]}({value.value}, 'UTC')"
    return _nested(value, bare)


def _nested(value: pa.Scalar, target: ChType) -> str | None:
    if target.name == "Array":
        return _call("[", (sql_value(item, target.items[0]) for item in value.values), "]")
    if target.name == "Map":
        pairs = [part for key, item in zip(*value.values.flatten(), strict=True) for part in (key, item)]
        kinds = [target.items[0], target.items[1]] * (len(pairs) // 2)
        return _call("map(", (sql_value(part, kind) for part, kind in zip(pairs, kinds, strict=True)), ")")
    if target.name == "Tuple":
        members = zip(value.values(), target.items, strict=True)
        return _call("tuple(", (sql_value(member, kind) for member, kind in members), ")")
    return None


def _call(opening: str, parts: Iterable[str | None], closing: str) -> str | None:
    known = list(parts)
    return None if None in known else f"{opening}{', '.join(str(part) for part in known)}{closing}"


def _text(value: str | bytes) -> str:
    if isinstance(value, str):
        return literal(value)
    try:
        return literal(value.decode())
    except UnicodeDecodeError:  # the server's own texts of expressions are UTF-8
        return f"unhex('{value.hex()}')"


def _digits(value: Any) -> str:
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def untimed(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The values with dates and times as numbers, at any depth: Python's own begin in the year 1, and the table's in 0.

    They are equal where the values are.
    """
    kind = _untimed(values.type)
    return values if kind == values.type else values.cast(kind)


def _untimed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.int32() if pa.types.is_date32(kind) or pa.types.is_time32(kind) else pa.int64()
    if pa.types.is_dictionary(kind):
        return _untimed(kind.value_type)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_untimed(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_untimed(kind.key_type), _untimed(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_untimed(field.type)) for field in kind])
    return kind


def python_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values as Python's; as numbers where there is a date or time that Python's cannot be."""
    try:
        return list(values.to_pylist())
    except (OverflowError, ValueError):
        return list(untimed(values).to_pylist())
