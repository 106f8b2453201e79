"""The form of a source type's literals: by the semantic name, the connector's modes, else guessed from the column."""

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from ch_sink.errors import DecodeError
from ch_sink.types.arrow import INTEGERS, WIDE_INTEGERS
from ch_sink.types.chtype import ChType
from ch_sink.types.column import WIDE, ValuePolicy
from ch_sink.types.connect import Field, SourceType, propagated_type
from ch_sink.types.converter import Converted, Converter, shown
from ch_sink.types.decimals import VariableScale


class Shape(StrEnum):
    """The kind of literal that is on the wire."""

    INTEGER = "integer"
    BOOLEAN = "boolean"
    FLOAT = "float"
    DAYS = "days"
    TICKS = "ticks"
    TIME = "time"
    ISO = "iso"
    ISO_DATE = "iso date"
    ISO_TIME = "iso time"
    DECIMAL = "decimal"
    VARIABLE_DECIMAL = "variable decimal"
    TEXT = "text"
    LABELS = "labels"
    BYTES = "bytes"
    BITS = "bits"
    ARRAY = "array"
    MAP = "map"
    POINT = "point"
    GEOMETRY = "geometry"
    STRUCT = "struct"
    ANY = "any"
    """Schemaless: what the literal is, it shows itself."""


class PointLiteral(msgspec.Struct, gc=False):
    """``io.debezium.data.geometry.Point``; ``wkb`` and ``srid`` repeat or qualify x and y."""

    x: float
    y: float
    wkb: bytes | None = None
    srid: int | None = None


class GeometryLiteral(msgspec.Struct, gc=False):
    """``io.debezium.data.geometry.Geometry`` and ``Geography``."""

    wkb: bytes
    srid: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A form with what is needed to read it."""

    form: Shape
    wire: Any
    digits: int = 0
    """Sub-second digits of TICKS and TIME, scale of DECIMAL, length of BITS (0: it varies)."""
    wide: bool = False
    source: SourceType | None = None
    guessed: bool = False
    """Guessed from the column: literals of more kinds are taken."""
    only: frozenset[str] = frozenset()
    """Names of the ClickHouse types that take it; empty if its form alone decides."""


_C = "org.apache.kafka.connect.data."
_T = "io.debezium.time."
_NAMED: dict[str, tuple[Shape, Any, int]] = {
    _T + "Date": (Shape.DAYS, int, 0),
    _C + "Date": (Shape.DAYS, int, 0),
    _T + "Timestamp": (Shape.TICKS, int, 3),
    _C + "Timestamp": (Shape.TICKS, int, 3),
    _T + "MicroTimestamp": (Shape.TICKS, int, 6),
    _T + "NanoTimestamp": (Shape.TICKS, int, 9),
    _T + "Time": (Shape.TIME, int, 3),
    _C + "Time": (Shape.TIME, int, 3),
    _T + "MicroTime": (Shape.TIME, int, 6),
    _T + "NanoTime": (Shape.TIME, int, 9),
    _T + "ZonedTimestamp": (Shape.ISO, str, 6),
    _T + "IsoTimestamp": (Shape.ISO, str, 6),
    _T + "IsoDate": (Shape.ISO_DATE, str, 0),
    _T + "IsoTime": (Shape.ISO_TIME, str, 6),
    "io.debezium.data.VariableScaleDecimal": (Shape.VARIABLE_DECIMAL, VariableScale, 0),
    "io.debezium.data.EnumSet": (Shape.LABELS, str, 0),
    "io.debezium.data.geometry.Point": (Shape.POINT, PointLiteral, 0),
    "io.debezium.data.geometry.Geometry": (Shape.GEOMETRY, GeometryLiteral, 0),
    "io.debezium.data.geometry.Geography": (Shape.GEOMETRY, GeometryLiteral, 0),
}
_TEXTS = frozenset(("String", "FixedString"))
_ONLY: dict[str, frozenset[str]] = {
    # Texts with a meaning that no other column has.
    _T + "ZonedTime": _TEXTS | {"Time", "Time64"},
    _T + "Interval": _TEXTS,
    "io.debezium.data.Uuid": _TEXTS | {"UUID"},
    "io.debezium.data.Xml": _TEXTS,
    "io.debezium.data.Ltree": _TEXTS,
    "io.debezium.data.Tsvector": _TEXTS,
    "io.debezium.data.Json": _TEXTS | {"JSON", "Array", "Map", "Tuple", "Nested"},
}
_BY_KIND: dict[str, tuple[Shape, Any]] = {
    "int8": (Shape.INTEGER, int),
    "int16": (Shape.INTEGER, int),
    "int32": (Shape.INTEGER, int),
    "int64": (Shape.INTEGER, int),
    "float32": (Shape.FLOAT, float | str),
    "float64": (Shape.FLOAT, float | str),
    "boolean": (Shape.BOOLEAN, bool),
    "string": (Shape.TEXT, str),
    "bytes": (Shape.BYTES, bytes),
    "array": (Shape.ARRAY, list),
    "map": (Shape.MAP, dict),
    "struct": (Shape.STRUCT, msgspec.Raw),
}
_LONGEST_BITS = 83_886_080
"""PostgreSQL's longest BIT(n)."""


def reading(source: SourceType) -> Reading:
    """The form that a declared type's literals have."""
    name = source.name or ""
    if name in _NAMED:
        form, wire, digits = _NAMED[name]
        # A name with another kind (an ISO mode of the converter) follows the kind.
        if source.kind == "string" and form in (Shape.DAYS, Shape.TICKS, Shape.TIME):
            form, wire = (
                {
                    Shape.DAYS: Shape.ISO_DATE,
                    Shape.TICKS: Shape.ISO,
                    Shape.TIME: Shape.ISO_TIME,
                }[form],
                str,
            )
        return Reading(form, wire, digits, WIDE in source.parameters, source)
    if name == _C + "Decimal" and source.kind == "bytes":
        scale = int(source.parameter("scale") or 0)
        # Bytes, their base64, or a number (JsonConverter's ``decimal.format=NUMERIC``), whose digits reach the reader
        # as a Decimal (the decoder's float_hook), where no type is asked for.
        return Reading(Shape.DECIMAL, Any, scale, source=source)
    if name == "io.debezium.data.Bits" and source.kind == "bytes":
        return Reading(Shape.BITS, bytes, _fixed_length(source), source=source)
    form, wire = _BY_KIND[source.kind]
    return Reading(form, wire, source=source, only=_ONLY.get(name, frozenset()) if form is Shape.TEXT else frozenset())


def _fixed_length(source: SourceType) -> int:
    """Length of a column's bit strings; 0 if it varies, as in VARBIT and in columns without a limit (2³¹−1)."""
    length = int(source.parameter("length") or 0)
    return 0 if propagated_type(source).word == "VARBIT" or length > _LONGEST_BITS else length


def tick_digits(target: ChType, mode: str) -> int:
    """Sub-second digits of the integers for a date-time or time column; ``mode``: ``time.precision.mode``.

    The adaptive modes send milliseconds for columns of up to three digits, then micro- and nanoseconds.
    """
    if mode == "adaptive_time_microseconds" and target.name in ("Time", "Time64"):
        return 6
    adaptive = 3 if target.precision <= 3 else 6 if target.precision <= 6 else 9
    return _TICKS.get(mode, adaptive)


def infer(target: ChType, policy: ValuePolicy) -> Reading:
    """The form that schemaless literals of a column most likely have: what a connector in these modes sends."""
    name = target.name
    if name in INTEGERS or name in WIDE_INTEGERS or name in ("Time", "Time64"):
        if name.startswith("Time"):
            return Reading(Shape.TIME, int | str, tick_digits(target, policy.time_precision), guessed=True)
        extra: Any = int | bool if name in ("Int8", "UInt8") else int | bytes if name == "UInt64" else int
        return Reading(Shape.INTEGER, extra, guessed=extra is not int)
    if name.startswith("Float"):
        return Reading(Shape.FLOAT, float | str, guessed=True)
    if name == "Decimal" and policy.decimal_handling == "string":
        return Reading(Shape.TEXT, str, guessed=True)
    if name == "Decimal":
        return Reading(Shape.DECIMAL, Any, target.scale, guessed=True)
    if name in ("Date", "Date32"):
        return Reading(Shape.DAYS, int | str, guessed=True)
    if name in ("DateTime", "DateTime64"):
        return Reading(Shape.TICKS, int | str, tick_digits(target, policy.time_precision), guessed=True)
    if name == "Bool":
        return Reading(Shape.BOOLEAN, bool | int, guessed=True)
    if name in ("UUID", "Enum8", "Enum16", "IPv4", "IPv6", "FixedString"):
        return Reading(Shape.TEXT, str, guessed=True)
    if name == "Point":
        return Reading(Shape.POINT, PointLiteral, guessed=True)
    unknown = SourceType("string")
    if name in ("Array", "Nested"):
        return Reading(Shape.ARRAY, list, source=SourceType("array", items=None), guessed=True)
    if name == "Map":
        return Reading(Shape.MAP, dict, source=SourceType("map", items=None), guessed=True)
    if name == "Tuple" and len(target.items) == 1 and target.items[0].bare.name in ("Array", "Map"):
        return infer(target.items[0].bare, policy)
    if name == "Tuple":
        return Reading(
            Shape.STRUCT,
            dict,
            source=SourceType("struct", fields=tuple(Field(n, unknown) for n in target.names)),
            guessed=True,
        )
    return Reading(Shape.ANY, Any, guessed=True)


_TICKS = {"connect": 3, "microseconds": 6, "nanoseconds": 9}


class Encoded:
    """Bytes that the connector wrote as text: decoded, then converted."""

    wire: Any = str

    def __init__(self, inner: Converter, mode: str) -> None:
        self.arrow = inner.arrow
        self._inner = inner
        self._decode = _DECODERS[mode]
        self._mode = mode

    def convert(self, values: list[Any]) -> Converted:
        try:
            return self._inner.convert([None if v is None else self._decode(v) for v in values])
        except (binascii.Error, ValueError, TypeError) as fault:
            text = next((v for v in values if v is not None and not self._reads(v)), None)
            raise DecodeError(f"not {self._mode} text: {shown(text)}", hint="see binary_handling") from fault

    def _reads(self, value: Any) -> bool:
        try:
            self._decode(value)
        except (binascii.Error, ValueError, TypeError):
            return False
        return True


_DECODERS: dict[str, Callable[[Any], bytes]] = {
    "base64": lambda text: binascii.a2b_base64(text, strict_mode=True),
    "base64-url-safe": lambda text: base64.b64decode(text, altchars=b"-_", validate=True),
    "hex": bytes.fromhex,
}
