"""A value of a column as ClickHouse SQL that gives exactly this value."""

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ch_sink.types.arrow import INTEGERS, WIDE_INTEGERS
from ch_sink.types.chtype import ChType
from ch_sink.types.sql import literal

__all__ = ["sql_value"]

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
