"""BSON values into ClickHouse columns: which values each type holds, and how they become a converter's literals."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from ch_sink.decode.mongodb.texts import (
    Binary,
    Date,
    Other,
    decimal_of,
    flag_of,
    float_of,
    integer_of,
    iso,
    plain_text,
    text_of,
)
from ch_sink.errors import DecodeError, TableError
from ch_sink.types import Converted, Converter, converter
from ch_sink.types.arrow import INTEGERS, WIDE_INTEGERS, arrow_of, integer_bounds
from ch_sink.types.chtype import ChType, parse_type
from ch_sink.types.column import WIDE_YEARS, Column, ValuePolicy, Years, held_as_null
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import PerValue, Reaction, shown
from ch_sink.types.families import whole_numbers
from ch_sink.types.nested import Arrays, Maps, Structs, Wrapped
from ch_sink.types.scalars import Floats, fixed_string, uuid_of, uuid_text
from ch_sink.types.text_columns import JsonColumn

TEXT_TYPES = ("String", "JSON")
"""Column types that hold a whole document or part of one."""
_OBJECT_ID = re.compile(r"[0-9a-f]{24}")
_TICKS = SourceType("int64", "io.debezium.time.Timestamp")
_ISO = SourceType("string", "io.debezium.time.ZonedTimestamp")


@dataclass(frozen=True, slots=True)
class _Context:
    """Settings that apply to every part of a column."""

    policy: ValuePolicy
    years: Years
    text: Callable[[Any], str | bytes | None]


def into(
    column: Column,
    policy: ValuePolicy,
    years: Years = WIDE_YEARS,
    text: Callable[[Any], str | bytes | None] = text_of,
) -> Converter:
    """The converter of BSON values into a column; ``text`` returns the text for String columns.

    ``years``: the range of the server's Date32 and DateTime64.

    Raises TableError, naming the column, if its type holds no BSON value.
    """
    try:
        return _into(parse_type(column.type), _Context(policy, years, text))
    except TableError as error:
        raise TableError(f"column {column.name!r}: {error.message}", hint=error.hint) from error


def document_converter(column: Column) -> Converter:
    """The converter of whole documents into a String or JSON column. Raises TableError for any other type."""
    target = parse_type(column.type).bare
    if target.name not in TEXT_TYPES:
        raise TableError(
            f"column {column.name!r}: a {target.name} column does not hold a document",
            hint="make it String or JSON, or name another column in document.column",
        )
    if target.name == "JSON":
        return _json(lambda value: plain_text(value).decode(), "fail")
    return PerValue(Any, pa.binary(), plain_text, reaction="fail")


def _json(write: Callable[[Any], str], reaction: Reaction) -> Converter:
    """Into a JSON column: a value that the server would refuse fails one event, not the insert."""
    return JsonColumn(Any, reaction, text=write, is_placeholder=None)


class Prepared:
    """A converter with a function that turns BSON values into its literals."""

    wire: Any = Any

    def __init__(self, prepare: Callable[[Any], Any], inner: Converter) -> None:
        self.arrow = inner.arrow
        self._prepare, self._inner = prepare, inner

    def convert(self, values: list[Any]) -> Converted:
        prepare = self._prepare
        return self._inner.convert([None if value is None else prepare(value) for value in values])


class _Moments:
    """Dates into Date, DateTime and similar types; texts and timestamps are accepted too."""

    wire: Any = Any

    def __init__(self, target: Column, context: "_Context") -> None:
        self._ticks = _plain_converter(_TICKS, target, context)
        self._iso = _plain_converter(_ISO, target, context)
        self.arrow = self._ticks.arrow

    def convert(self, values: list[Any]) -> Converted:
        moments = [_moment(value) for value in values]
        if str in set(map(type, moments)):
            return self._iso.convert([iso(m) if isinstance(m, int) else m for m in moments])
        return self._ticks.convert(moments)


def _moment(value: Any) -> int | str | None:
    """Milliseconds, or an ISO text unchanged."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Date):
        found: int = value.value
        return found
    if isinstance(value, Other) and value.kind == "$timestamp":
        seconds: int = value.value["$timestamp"]["t"]
        return seconds * 1000
    raise DecodeError(f"expected a date, found {shown(value)}")


def _into(part: ChType, context: _Context) -> Converter:
    """The converter for a column's type, or that of a part of it."""
    target, context = part.bare, replace(context, policy=held_as_null(context.policy, part))
    name, reaction = target.name, context.policy.out_of_range
    if name == "SimpleAggregateFunction":
        return _into(target.items[0], context)
    if name == "String":
        return PerValue(Any, pa.binary(), context.text, reaction=reaction)
    if name == "JSON":
        return _json(_document, reaction)
    if name in INTEGERS or name in WIDE_INTEGERS:
        return _integers(target, context)
    if name in ("Float32", "Float64"):
        return Prepared(float_of, Floats(target, reaction))
    if name == "Bool":
        return PerValue(Any, pa.bool_(), flag_of, reaction=reaction)
    if name == "UUID":
        return PerValue(Any, arrow_of(target), _uuid, reaction=reaction)
    if name in ("Date", "Date32", "DateTime", "DateTime64"):
        return _Moments(_column(target), context)
    if name == "Decimal":
        return Prepared(decimal_of, _of_text(target, context))
    if name == "FixedString":
        return Prepared(_fixed(target.precision, context.text), fixed_string(target, reaction, Any))
    if name in ("Array", "Map", "Tuple", "Point"):
        return _nested(target, context)
    return Prepared(_text, _of_text(target, context))


def _nested(target: ChType, context: _Context) -> Converter:
    if target.name == "Array":
        return Prepared(_list, Arrays(_into(target.items[0], context), None))
    if target.name == "Map":
        keys = _into(target.items[0], context)
        if target.items[0].bare.name in INTEGERS:
            keys = Prepared(int, keys)
        return Prepared(_dict, Maps(keys, _into(target.items[1], context), None))
    if target.name == "Point":
        part = Floats(ChType("Float64"), "fail")
        return Prepared(_point, Structs(arrow_of(target), ("x", "y"), ("x", "y"), (part, part), Any))
    parts = tuple(_into(item, context) for item in target.items)
    if len(parts) == 1 and target.items[0].bare.name in ("Array", "Map"):
        return Wrapped(parts[0], target.names[0] if target.names else "1")
    if not target.names:
        raise TableError(
            "a document cannot fill a Tuple without names: its fields have no fixed order",
            hint="name the Tuple's members",
        )
    return Prepared(_dict, Structs(arrow_of(target), target.names, target.names, parts, Any))


def _of_text(target: ChType, context: _Context) -> Converter:
    return _plain_converter(SourceType("string"), _column(target), context)


def _column(target: ChType) -> Column:
    """For `converter`: whether the column may be null has been decided."""
    return Column("", f"Nullable({target})")


def _plain_converter(source: SourceType, column: Column, context: _Context) -> Converter:
    return converter(source, column, encoding="json", policy=context.policy, omits=False, years=context.years)


def _integers(target: ChType, context: _Context) -> Converter:
    low, high = integer_bounds(target) or (0, 0)
    read = partial(integer_of, low=low, high=high, what=target.name)
    return whole_numbers(target, Any, read, context.policy.out_of_range)


def _uuid(value: Any) -> str:
    if isinstance(value, Binary) and len(value.value) == 16:
        return uuid_of(value.value)
    return uuid_text(value)


def _fixed(size: int, text: Callable[[Any], str | bytes | None]) -> Callable[[Any], str | bytes]:
    def one(value: Any) -> str | bytes:
        found = text(value)
        if size == 12 and isinstance(found, str) and _OBJECT_ID.fullmatch(found):
            return bytes.fromhex(found)
        if found is None:
            raise DecodeError(f"expected a text, found {shown(value)}")
        return found

    return one


def _text(value: Any) -> str:
    found = text_of(value)
    if not isinstance(found, str):
        raise DecodeError(f"expected a text, found {shown(value)}")
    return found


def _document(value: Any) -> str:
    if isinstance(value, dict):
        return plain_text(value).decode()
    raise DecodeError(f"a JSON column takes documents, found {shown(value)}", hint="make the column String")


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    raise DecodeError(f"expected an array, found {shown(value)}")


def _dict(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise DecodeError(f"expected a document, found {shown(value)}")


def _point(value: Any) -> dict[str, Any]:
    """A GeoJSON point, or a legacy pair of coordinates."""
    pair = value.get("coordinates") if isinstance(value, dict) and value.get("type") == "Point" else value
    if isinstance(pair, list) and len(pair) == 2:
        return {"x": float_of(pair[0]), "y": float_of(pair[1])}
    raise DecodeError(f"expected a point, found {shown(value)}")
