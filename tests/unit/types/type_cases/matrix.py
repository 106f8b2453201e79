"""Which column types of an existing table take which source type, with a value for each pair that goes together.

What is not listed for a source type is refused.
"""

from dataclasses import dataclass
from typing import Any

from tests.unit.types.type_cases.case import CONNECT, DATA, TIME, array, b64, connect_decimal, field, named

__all__ = ["MATRIX", "TARGETS", "Row"]

TARGETS = (
    *("String", "LowCardinality(String)", "FixedString(40)", "JSON"),
    *("Enum8('a' = 1, '5' = 5, '' = -1)", "Enum16('a' = 1, '5' = 5, '' = -1)", "UUID", "IPv4", "IPv6", "Bool"),
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256)),
    *("LowCardinality(Int32)", "Float32", "Float64", "BFloat16"),
    *("Decimal(9, 2)", "Decimal(38, 4)", "Decimal(76, 10)"),
    *("Date", "Date32", "DateTime('UTC')", "DateTime64(0, 'UTC')", "DateTime64(3, 'UTC')", "DateTime64(6, 'UTC')"),
    *("DateTime64(9, 'UTC')", "DateTime64(3, 'Asia/Tokyo')", "Time", "Time64(3)", "Time64(6)", "Time64(9)"),
    *("Array(String)", "Array(LowCardinality(String))", "Array(Int32)", "Array(Nullable(Float64))"),
    *("Array(Array(Int32))", "Array(Tuple(a Int32, b String))", "Nested(a Int32, b String)"),
    *("Map(String, String)", "Map(LowCardinality(String), Nullable(Int64))", "Map(Int32, String)"),
    *("Tuple(a Int32, b String)", "Tuple(wkb String, srid Int32)", "Tuple(items Array(Int32))"),
    *("Tuple(Float64, Float64)", "Point", "Ring", "Polygon", "Geometry", "Variant(Int64, String)", "Dynamic"),
    *("SimpleAggregateFunction(max, Int64)", "SimpleAggregateFunction(anyLast, String)"),
    *("AggregateFunction(sum, Int64)", "IntervalDay", "Nothing"),
)


@dataclass(frozen=True)
class Row:
    """A source type, a value of it, and what each column type that takes it shows."""

    what: str
    schema: dict[str, Any]
    literal: Any
    accepts: dict[str, Any]
    """The text that is shown, or a pair of another literal and its text."""


_INTEGERS = tuple(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256))
_EVERY_INTEGER = (*_INTEGERS, "LowCardinality(Int32)", "SimpleAggregateFunction(max, Int64)")
_STRINGS = ("String", "LowCardinality(String)", "SimpleAggregateFunction(anyLast, String)")
_DECIMALS = ("Decimal(9, 2)", "Decimal(38, 4)", "Decimal(76, 10)")
_FLOATS = ("Float32", "Float64")
_ENUMS = ("Enum8('a' = 1, '5' = 5, '' = -1)", "Enum16('a' = 1, '5' = 5, '' = -1)")
_FIXED = "FixedString(40)"


def _all(names: tuple[str, ...], shown: Any) -> dict[str, Any]:
    return dict.fromkeys(names, shown)


def _fixed(text: str) -> dict[str, Any]:
    # toString leaves out the zero bytes with which the column is filled up.
    return {_FIXED: text.rstrip("\0")}


def _integer(what: str, kind: str, name: str | None = None) -> Row:
    accepts = _all((*_EVERY_INTEGER, *_STRINGS, *_DECIMALS, *_FLOATS), "5") | _all(_ENUMS, "5")
    return Row(what, field(kind, name), 5, accepts | {"Bool": (1, "true"), "IPv4": (167772161, "10.0.0.1")})


def _at(clock: str, tokyo: str, fraction: str = "") -> dict[str, str]:
    """2024-02-29 at this time, which is that in Tokyo, in every column of moments."""
    day = "2024-02-29"
    digits = {n: f".{fraction[:n].ljust(n, '0')}" for n in (3, 6, 9)}
    return {
        **dict.fromkeys(("Date", "Date32"), day),
        **dict.fromkeys(("DateTime('UTC')", "DateTime64(0, 'UTC')"), f"{day} {clock}"),
        **{f"DateTime64({n}, 'UTC')": f"{day} {clock}{shown}" for n, shown in digits.items()},
        "DateTime64(3, 'Asia/Tokyo')": f"{day} {tokyo}{digits[3]}",
    }


def _ticks(what: str, name: str, digits: int) -> Row:
    """2024-02-29 12:34:56.789012345 in such ticks."""
    ticks = 1_709_210_096_789_012_345 // 10 ** (9 - digits)
    fraction = "789012345"[:digits]
    text = f"2024-02-29 12:34:56.{fraction}"
    small = ("Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "LowCardinality(Int32)")
    integers: dict[str, Any] = _all(_EVERY_INTEGER, str(ticks)) | _all(small, (5, "5"))
    return Row(
        what,
        field("int64", name),
        ticks,
        integers | _all(_STRINGS, text) | _at("12:34:56", "21:34:56", fraction),
    )


_MOMENT, _DAY = _at("12:34:56", "21:34:56", "789012"), _at("00:00:00", "09:00:00")
_CLOCK = {
    "Time": "12:34:56",
    "Time64(3)": "12:34:56.789",
    "Time64(6)": "12:34:56.789012",
    "Time64(9)": "12:34:56.789012000",
}


def _time(what: str, kind: str, name: str, digits: int) -> Row:
    ticks = 45_296_789_012_000 // 10 ** (9 - digits)
    small = ("Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "LowCardinality(Int32)")
    clock = {k: v if digits > 3 else v.replace(".789012", ".789000") for k, v in _CLOCK.items()}
    text = "12:34:56.789" if digits == 3 else "12:34:56.789012"
    accepts = _all(_EVERY_INTEGER, str(ticks)) | _all(small, (5, "5")) | _all(_STRINGS, text) | clock
    return Row(what, field(kind, name), ticks, accepts)


_UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
_SPATIAL = {"wkb": field("bytes", optional=False), "srid": field("int32")}
_PAIR = {"a": field("int32"), "b": field("string")}
_POINT = {"x": field("double"), "y": field("double"), "wkb": field("bytes"), "srid": field("int32")}
_DECIMAL = field("bytes", CONNECT + "Decimal", scale=2, connect__dot__decimal__dot__precision=9)
_VARIABLE = named(DATA + "VariableScaleDecimal", {"scale": field("int32"), "value": field("bytes")})


def _number(shown: str, whole: Any) -> dict[str, Any]:
    """Every column of numbers; ``whole`` is a literal of 7 for the integers."""
    return _all((*_DECIMALS, *_FLOATS), shown) | _all(_EVERY_INTEGER, (whole, "7"))


MATRIX: list[Row] = [
    _integer("int8", "int8"),
    _integer("int16", "int16"),
    _integer("int32", "int32"),
    _integer("int64", "int64"),
    _integer("year", "int32", TIME + "Year"),
    _integer("duration", "int64", TIME + "MicroDuration"),
    Row(
        "boolean",
        field("boolean"),
        True,
        _all(_EVERY_INTEGER, "1") | _all(_STRINGS, "true") | {"Bool": "true"},
    ),
    Row("float32", field("float"), 1.5, _number("1.5", 7.0) | _all(_STRINGS, "1.5")),
    Row("float64", field("double"), 1.5, _number("1.5", 7.0) | _all(_STRINGS, "1.5")),
    Row(
        "text",
        field("string"),
        "a",
        _number("1.5", "7")
        | dict.fromkeys((*_DECIMALS, *_FLOATS), ("1.5", "1.5"))
        | _all(_STRINGS, "a")
        | _fixed("a")
        | _all(_ENUMS, "a")
        | {name: ("2024-02-29T12:34:56.789012Z", shown) for name, shown in _MOMENT.items()}
        | {name: ("12:34:56.789012", shown) for name, shown in _CLOCK.items()}
        | {
            "UUID": (_UUID, _UUID),
            "IPv4": ("10.0.0.1", "10.0.0.1"),
            "IPv6": ("10.0.0.1", "::ffff:10.0.0.1"),
            "Bool": ("true", "true"),
            "JSON": ('{"a":1}', '{"a":1}'),
        },
    ),
    Row(
        "enum",
        field("string", DATA + "EnumSet", allowed="a,b"),
        "a",
        _all(_STRINGS, "a")
        | _fixed("a")
        | _all(_ENUMS, "a")
        | {"Array(String)": ("a,b", "['a','b']"), "Array(LowCardinality(String))": ("", "[]")}
        | {"Array(Int32)": ("1,2", "[1,2]"), "Array(Nullable(Float64))": ("1.5", "[1.5]")},
    ),
    Row(
        "json",
        field("string", DATA + "Json"),
        '{"a":"1"}',
        _all(_STRINGS, '{"a":"1"}')
        | _fixed('{"a":"1"}')
        | {
            "JSON": '{"a":"1"}',
            "Map(String, String)": "{'a':'1'}",
            "Map(LowCardinality(String), Nullable(Int64))": ('{"a": 1, "b": null}', "{'a':1,'b':NULL}"),
            "Map(Int32, String)": ('[[1,"x"]]', "{1:'x'}"),
            "Array(String)": ('["a", "é"]', "['a','é']"),
            "Array(LowCardinality(String))": ("[]", "[]"),
            "Array(Int32)": ("[1, 2]", "[1,2]"),
            "Array(Nullable(Float64))": ("[1.5, null]", "[1.5,NULL]"),
            "Array(Array(Int32))": ("[[1],[]]", "[[1],[]]"),
            "Array(Tuple(a Int32, b String))": ('[{"a":1,"b":"x"}]', "[(1,'x')]"),
            "Nested(a Int32, b String)": ('[{"a":1,"b":"x"}]', "[(1,'x')]"),
            "Tuple(a Int32, b String)": ('{"b":"x","a":1}', "(1,'x')"),
            "Tuple(wkb String, srid Int32)": ('{"wkb":"x","srid":1}', "('x',1)"),
            "Tuple(items Array(Int32))": ("[1]", "([1])"),
        },
    ),
    Row("xml", field("string", DATA + "Xml"), "<a/>", _all(_STRINGS, "<a/>") | _fixed("<a/>")),
    Row("interval", field("string", TIME + "Interval"), "P1D", _all(_STRINGS, "P1D") | _fixed("P1D")),
    Row(
        "zoned time",
        field("string", TIME + "ZonedTime"),
        "12:34:56.789012Z",
        _all(_STRINGS, "12:34:56.789012Z") | _fixed("12:34:56.789012Z") | _CLOCK,
    ),
    Row("uuid", field("string", DATA + "Uuid"), _UUID, _all(_STRINGS, _UUID) | _fixed(_UUID) | {"UUID": _UUID}),
    Row(
        "bytes",
        field("bytes"),
        b64(b"a\x00"),
        _all(_STRINGS, "a\0")
        | _fixed("a\0")
        | {
            "UUID": (b64(bytes.fromhex(_UUID.replace("-", ""))), _UUID),
            "IPv4": (b64(b"\n\0\0\1"), "10.0.0.1"),
            "IPv6": (b64(b"\0" * 15 + b"\1"), "::1"),
        },
    ),
    Row(
        "bits",
        field("bytes", DATA + "Bits", length=8),
        b64(b"\x05"),
        _all(_EVERY_INTEGER, "5") | _all(_STRINGS, "00000101") | _fixed("\x05"),
    ),
    Row(
        "decimal",
        _DECIMAL,
        connect_decimal("1.50", 2),
        _number("1.5", connect_decimal("7.00", 2)) | _all(_STRINGS, "1.50"),
    ),
    Row(
        "variable decimal",
        _VARIABLE,
        {"scale": 2, "value": connect_decimal("1.50", 2)},
        _number("1.5", {"scale": 0, "value": connect_decimal("7", 0)}) | _all(_STRINGS, "1.50"),
    ),
    Row(
        "date",
        field("int32", TIME + "Date"),
        19782,
        _all(_EVERY_INTEGER, "19782") | {"Int8": (5, "5"), "UInt8": (5, "5")} | _all(_STRINGS, "2024-02-29") | _DAY,
    ),
    _ticks("timestamp, milliseconds", TIME + "Timestamp", 3),
    _ticks("timestamp, microseconds", TIME + "MicroTimestamp", 6),
    _ticks("timestamp, nanoseconds", TIME + "NanoTimestamp", 9),
    Row(
        "timestamp with zone",
        field("string", TIME + "ZonedTimestamp"),
        "2024-02-29T13:34:56.789012+01:00",
        _MOMENT | _all(_STRINGS, "2024-02-29T13:34:56.789012+01:00"),
    ),
    Row(
        "iso date",
        field("string", TIME + "IsoDate"),
        "2024-02-29Z",
        _DAY | _all(_STRINGS, "2024-02-29Z"),
    ),
    Row(
        "iso time",
        field("string", TIME + "IsoTime"),
        "12:34:56.789012Z",
        _CLOCK | _all(_STRINGS, "12:34:56.789012Z"),
    ),
    _time("time, milliseconds", "int32", TIME + "Time", 3),
    _time("time, microseconds", "int64", TIME + "MicroTime", 6),
    _time("time, nanoseconds", "int64", TIME + "NanoTime", 9),
    Row(
        "point",
        named(DATA + "geometry.Point", _POINT),
        {"x": 1.5, "y": -2.0},
        _all(_STRINGS, '{"x":1.5,"y":-2.0}')
        | {"Point": "(1.5,-2)", "Tuple(Float64, Float64)": "(1.5,-2)", "JSON": '{"x":1.5,"y":-2}'},
    ),
    Row(
        "geometry",
        named(DATA + "geometry.Geometry", _SPATIAL),
        {"wkb": b64(b"\1\2"), "srid": 4326},
        _all(_STRINGS, "\1\2") | {"Tuple(wkb String, srid Int32)": "('\x01\x02',4326)"},
    ),
    Row(
        "array of integers",
        array(field("int32")),
        [1, 2],
        _all(_STRINGS, "[1,2]")
        | {
            "Array(Int32)": "[1,2]",
            "Array(String)": "['1','2']",
            "Array(LowCardinality(String))": "['1','2']",
            "Array(Nullable(Float64))": ([1, None], "[1,NULL]"),
            "Tuple(items Array(Int32))": "([1,2])",
        },
    ),
    Row(
        "array of arrays",
        array(array(field("int32"))),
        [[1], []],
        _all(_STRINGS, "[[1],[]]")
        | {
            "Array(Array(Int32))": "[[1],[]]",
            "Array(String)": "['[1]','[]']",
            "Array(LowCardinality(String))": "['[1]','[]']",
        },
    ),
    Row(
        "array of structs",
        array(named("com.example.Line", _PAIR)),
        [{"a": 1, "b": "x"}],
        _all(_STRINGS, '[{"a":1,"b":"x"}]')
        | {
            "Array(Tuple(a Int32, b String))": "[(1,'x')]",
            "Nested(a Int32, b String)": "[(1,'x')]",
            "Array(String)": '[\'{"a":1,"b":"x"}\']',
            "Array(LowCardinality(String))": '[\'{"a":1,"b":"x"}\']',
        },
    ),
    Row(
        "map",
        field("map", keys=field("string", optional=False), values=field("string")),
        {"a": "1"},
        _all(_STRINGS, '{"a":"1"}')
        | {
            "JSON": '{"a":"1"}',
            "Map(String, String)": "{'a':'1'}",
            "Map(LowCardinality(String), Nullable(Int64))": "{'a':1}",
            "Map(Int32, String)": ({"7": "1"}, "{7:'1'}"),
        },
    ),
    Row(
        "struct",
        named("com.example.Pair", _PAIR),
        {"a": 1, "b": "x"},
        _all(_STRINGS, '{"a":1,"b":"x"}') | {"JSON": '{"a":1,"b":"x"}', "Tuple(a Int32, b String)": "(1,'x')"},
    ),
]
