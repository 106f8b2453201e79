"""ClickHouse types as Arrow: with which Arrow type a column is inserted and looked up.

Each pair was inserted through ``FORMAT Arrow`` into engine 26.9 and read back equal to the byte (the reader
may have to cast: UUID comes back as ``arrow.uuid``, JSON as ``arrow.json``, a zone's name may differ).
"""

from functools import lru_cache

import pyarrow as pa

from ch_sink.errors import TableError
from ch_sink.types.chtype import ChType, parse_type

__all__ = ["INTEGERS", "WIDE_INTEGERS", "arrow_of", "arrow_type"]

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

_PLAIN: dict[str, pa.DataType] = {
    **{name: getattr(pa, name.lower())() for name in INTEGERS},
    **{name: pa.binary(size) for name, (size, _, _) in WIDE_INTEGERS.items()},
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "Bool": pa.bool_(),
    # A ClickHouse String is bytes: text and binary columns share one Arrow type, so that what was read
    # back goes with what was decoded.
    "String": pa.binary(),
    "JSON": pa.string(),
    "UUID": pa.binary(16),
    "Date": pa.date32(),
    "Date32": pa.date32(),
    "DateTime": pa.uint32(),
    "Enum8": pa.int8(),
    "Enum16": pa.int16(),
    "IPv4": pa.uint32(),
    "IPv6": pa.binary(16),
    # Read back through FORMAT Arrow only within a day: the server refuses others.
    "Time": pa.int32(),
}
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
    if name in _GEO:
        return _GEO[name]
    if name == "Decimal":
        return (pa.decimal128 if bare.precision <= 38 else pa.decimal256)(bare.precision, bare.scale)
    if name == "DateTime64":
        return pa.timestamp(arrow_unit(bare.precision), tz="UTC")
    if name == "Time64":
        # Of 32 bits, milliseconds would end at 596 hours.
        return pa.time64("us" if bare.precision <= 6 else "ns")
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


def arrow_unit(precision: int) -> str:
    """Arrow's time unit that holds this many sub-second digits."""
    return "s" if precision == 0 else "ms" if precision <= 3 else "us" if precision <= 6 else "ns"
