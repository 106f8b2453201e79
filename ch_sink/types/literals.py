"""What a source type's literals are: their form on the wire, told by the semantic name or guessed from the column."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from ch_sink.types.arrow import INTEGERS, WIDE_INTEGERS
from ch_sink.types.chtype import ChType
from ch_sink.types.column_type import WIDE
from ch_sink.types.connect import Field, SourceType
from ch_sink.types.connector_modes import Modes
from ch_sink.types.decimals import VariableScale
from ch_sink.types.propagated import told

__all__ = ["Form", "PointLiteral", "Reading", "infer", "reading"]


class Form(StrEnum):
    """Forms of literals."""

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

    form: Form
    wire: Any
    digits: int = 0
    """Sub-second digits of TICKS and TIME, scale of DECIMAL, length of BITS (0: it varies)."""
    wide: bool = False
    source: SourceType | None = None
    loose: bool = False
    """Guessed from the column: literals of more kinds are taken."""
    only: frozenset[str] = frozenset()
    """Names of the ClickHouse types that take it; empty where its form alone decides."""


_C = "org.apache.kafka.connect.data."
_T = "io.debezium.time."
_NAMED: dict[str, tuple[Form, Any, int]] = {
    _T + "Date": (Form.DAYS, int, 0),
    _C + "Date": (Form.DAYS, int, 0),
    _T + "Timestamp": (Form.TICKS, int, 3),
    _C + "Timestamp": (Form.TICKS, int, 3),
    _T + "MicroTimestamp": (Form.TICKS, int, 6),
    _T + "NanoTimestamp": (Form.TICKS, int, 9),
    _T + "Time": (Form.TIME, int, 3),
    _C + "Time": (Form.TIME, int, 3),
    _T + "MicroTime": (Form.TIME, int, 6),
    _T + "NanoTime": (Form.TIME, int, 9),
    _T + "ZonedTimestamp": (Form.ISO, str, 6),
    _T + "IsoTimestamp": (Form.ISO, str, 6),
    _T + "IsoDate": (Form.ISO_DATE, str, 0),
    _T + "IsoTime": (Form.ISO_TIME, str, 6),
    "io.debezium.data.VariableScaleDecimal": (Form.VARIABLE_DECIMAL, VariableScale, 0),
    "io.debezium.data.EnumSet": (Form.LABELS, str, 0),
    "io.debezium.data.geometry.Point": (Form.POINT, PointLiteral, 0),
    "io.debezium.data.geometry.Geometry": (Form.GEOMETRY, GeometryLiteral, 0),
    "io.debezium.data.geometry.Geography": (Form.GEOMETRY, GeometryLiteral, 0),
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
_BY_KIND: dict[str, tuple[Form, Any]] = {
    "int8": (Form.INTEGER, int),
    "int16": (Form.INTEGER, int),
    "int32": (Form.INTEGER, int),
    "int64": (Form.INTEGER, int),
    "float32": (Form.FLOAT, float | str),
    "float64": (Form.FLOAT, float | str),
    "boolean": (Form.BOOLEAN, bool),
    "string": (Form.TEXT, str),
    "bytes": (Form.BYTES, bytes),
    "array": (Form.ARRAY, list),
    "map": (Form.MAP, dict),
    "struct": (Form.STRUCT, msgspec.Raw),
}


_LONGEST_BITS = 83_886_080
"""PostgreSQL's longest BIT(n)."""


def reading(source: SourceType, *, numbers: bool = False) -> Reading:
    """The form that a declared type's literals have. ``numbers``: JSON has decimals as numbers, not as base64."""
    name = source.name or ""
    if name in _NAMED:
        form, wire, digits = _NAMED[name]
        # A name with another kind (an ISO mode of the converter) follows the kind.
        if source.kind == "string" and form in (Form.DAYS, Form.TICKS, Form.TIME):
            form, wire = {Form.DAYS: Form.ISO_DATE, Form.TICKS: Form.ISO, Form.TIME: Form.ISO_TIME}[form], str
        return Reading(form, wire, digits, WIDE in source.parameters, source)
    if name == _C + "Decimal" and source.kind == "bytes":
        scale = int(source.parameter("scale") or 0)
        # A number's digits reach the reader as a Decimal (the decoder's float_hook), where no type is asked for.
        return Reading(Form.DECIMAL, Any if numbers else bytes, scale, source=source, loose=numbers)
    if name == "io.debezium.data.Bits" and source.kind == "bytes":
        return Reading(Form.BITS, bytes, _fixed_length(source), source=source)
    form, wire = _BY_KIND[source.kind]
    return Reading(form, wire, source=source, only=_ONLY.get(name, frozenset()) if form is Form.TEXT else frozenset())


def _fixed_length(source: SourceType) -> int:
    """Length of the bit strings of a column, 0 where it varies: VARBIT, where told, and without a limit (2³¹−1)."""
    length = int(source.parameter("length") or 0)
    return 0 if told(source).word == "VARBIT" or length > _LONGEST_BITS else length


def infer(target: ChType, modes: Modes) -> Reading:
    """The form that schemaless literals of a column most likely have: what a connector in these modes sends."""
    name = target.name
    if name in INTEGERS or name in WIDE_INTEGERS or name in ("Time", "Time64"):
        if name.startswith("Time"):
            return Reading(Form.TIME, int | str, modes.tick_digits(target), loose=True)
        extra: Any = int | bool if name in ("Int8", "UInt8") else int | bytes if name == "UInt64" else int
        return Reading(Form.INTEGER, extra, loose=extra is not int)
    if name.startswith("Float"):
        return Reading(Form.FLOAT, float | str, loose=True)
    if name == "Decimal" and modes.decimal == "string":
        return Reading(Form.TEXT, str, loose=True)
    if name == "Decimal":
        return Reading(Form.DECIMAL, Any, target.scale, loose=True)
    if name in ("Date", "Date32"):
        return Reading(Form.DAYS, int | str, loose=True)
    if name in ("DateTime", "DateTime64"):
        return Reading(Form.TICKS, int | str, modes.tick_digits(target), loose=True)
    if name == "Bool":
        return Reading(Form.BOOLEAN, bool | int, loose=True)
    if name in ("UUID", "Enum8", "Enum16", "IPv4", "IPv6", "FixedString"):
        return Reading(Form.TEXT, str, loose=True)
    if name == "Point":
        return Reading(Form.POINT, PointLiteral, loose=True)
    unknown = SourceType("string")
    if name in ("Array", "Nested"):
        return Reading(Form.ARRAY, list, source=SourceType("array", items=None), loose=True)
    if name == "Map":
        return Reading(Form.MAP, dict, source=SourceType("map", items=None), loose=True)
    if name == "Tuple" and len(target.items) == 1 and target.items[0].bare.name in ("Array", "Map"):
        return infer(target.items[0].bare, modes)
    if name == "Tuple":
        return Reading(
            Form.STRUCT,
            dict,
            source=SourceType("struct", fields=tuple(Field(n, unknown) for n in target.names)),
            loose=True,
        )
    return Reading(Form.ANY, Any, loose=True)
