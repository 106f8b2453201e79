"""Values as a database writes them, in the form in which Debezium's JSON has them.

From there the stream's own converters make them what the stream would store.
"""

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from decimal import Context, Decimal
from math import isfinite
from typing import Any

from ch_sink.snapshot.reader import Value
from ch_sink.snapshot.values import (
    array,
    bit_number,
    bits,
    clock_time,
    day_time,
    days,
    geometry,
    hstore,
    hstore_json,
    micro_duration,
    moment,
    point,
    scaled,
    zoned,
    zoned_time,
)
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column, ValuePolicy
from ch_sink.types.connect import SourceType

Encode = Callable[[str | bytes], Any]
_EXACT = Context(prec=2000)
_AS_IT_IS = ValuePolicy()
_CONNECT, _TIME, _DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."
_OTHER_TEXT = re.compile(
    r"(interval|time|timetz|timestamp|date|(small)?datetime2?|datetimeoffset|(small)?money)\b|"
    r"((multi)?(point|linestring|polygon)|geom(etry)?(collection)?|geography|line|lseg|box|path|circle|tsvector)\b|"
    r"(bit|boolean|real|float|double)\b|tinyint\(1\)|json \(binary\)|(numeric|decimal)(?!\(\d+(,\d+)?\))"
)
"""Types whose texts are not those of the connector; decimals without a scale, or with a negative one, lose zeros.

Of a whole number as a float the connector writes ``3.0``; a ``tinyint(1)`` it sends as a number or as a truth value.
"""
_NEVER_READ = re.compile(r"(computed|clr|sql_variant)\b")
"""Columns of SQL Server whose values the connector does not send, or in a form that is not known."""
_BIT_TYPE = re.compile(r"bit\b")
_TIME_TYPE = re.compile(r"(time|timetz|timestamp|(small)?datetime2?|datetimeoffset)\b")
_BINARY_TYPE = re.compile(r"(bytea|binary|varbinary|\w*blob|image|rowversion|hierarchyid)\b")
_DECIMAL_TYPE = re.compile(r"numeric|decimal|(small)?money")
_LOCAL_TYPE = re.compile(r"without time zone|^(small)?datetime2?\b")
"""Moments without a zone."""
_MOMENT_TYPE = re.compile(r"timestamp(\(\d\))?")
"""Of MySQL, whose texts have as many digits as the connector's; PostgreSQL leaves out zeros at the end."""
_TEXTS = {_DATA + name for name in ("Uuid", "Enum", "EnumSet", "Json", "Xml", "Ltree")}


def source_type(column: Column, database_type: str = "", policy: ValuePolicy = _AS_IT_IS) -> SourceType | None:
    """The source type for a column whose events declare none; None if unknown.

    ``policy`` knows the connector's modes: it may send decimals as floats, and moments without a zone in milliseconds.
    """
    if column.stated is not None:
        return column.stated
    kind = parse_type(column.type).bare
    if policy.decimal_handling == "double" and kind.name == "Decimal" and _DECIMAL_TYPE.match(database_type):
        return SourceType("float64")
    if policy.time_precision == "connect" and kind.name == "DateTime64" and _LOCAL_TYPE.search(database_type):
        return SourceType("int64", _CONNECT + "Timestamp")
    if re.fullmatch(r"U?Int(8|16|32|64)", kind.name):
        return SourceType("int64")
    if kind.name == "Decimal":
        scale = (("scale", str(kind.scale)), ("connect.decimal.precision", str(kind.precision)))
        return SourceType("bytes", _CONNECT + "Decimal", scale)
    if kind.name == "DateTime64" and kind.precision > 6:
        return SourceType("int64", _TIME + "NanoTimestamp")
    plain = {
        "Bool": ("boolean", None),
        "Float32": ("float32", None),
        "Float64": ("float64", None),
        **dict.fromkeys(("String", "FixedString", "Enum8", "Enum16", "IPv4", "IPv6"), ("string", None)),
        "UUID": ("string", _DATA + "Uuid"),
        "Date": ("int32", _TIME + "Date"),
        "Date32": ("int32", _TIME + "Date"),
        "DateTime": ("int64", _TIME + "MicroTimestamp"),
        "DateTime64": ("int64", _TIME + "MicroTimestamp"),
    }.get(kind.name)
    return SourceType(*plain) if plain is not None else None


def is_sent(database_type: str) -> bool:
    """Whether the connector sends columns of this type, in a form that is known."""
    return _NEVER_READ.match(database_type) is None


def encoder(source: SourceType, database_type: str, binary_mode: str = "bytes") -> Encode | None:
    """The function for values of this type; None if they cannot be compared with what the connector makes of them.

    ``binary_mode``: the connector's ``binary.handling.mode``.
    """
    if not is_sent(database_type):
        return None
    binary = _BINARY_TYPE.match(database_type) is not None
    name = source.name or ""
    if source.kind == "array" or database_type.endswith("[]"):
        return _array(source, database_type, binary_mode)
    if database_type == "hstore":
        return {"map": hstore, "string": hstore_json}.get(source.kind)
    if name in _BY_NAME and source.kind != "string":
        return _BY_NAME[name]
    if name == _CONNECT + "Decimal":
        return _decimal(int(source.parameter("scale") or 0))
    if source.kind == "bytes":
        return _base64 if binary and not name else None
    if source.kind.startswith("int") and not name:
        return _whole_number(database_type)
    if source.kind.startswith("float"):
        return _number
    if source.kind == "boolean":
        return _boolean
    if source.kind == "string" and name in _ZONED:
        return _ZONED[name]
    if source.kind == "string" and binary and not name:
        return _BINARY.get(binary_mode)
    if source.kind == "string" and not name and _MOMENT_TYPE.fullmatch(database_type):
        return zoned  # without a schema nothing else tells these texts
    if source.kind == "string" and (not name or name in _TEXTS):
        return _text if not _OTHER_TEXT.match(database_type) else None
    return None


def same_moment_text(source: SourceType, database_type: str) -> bool:
    """Whether the text of a moment is the connector's to the last digit, as a column of text has it.

    True for values of other types.
    """
    return source.name != _TIME + "ZonedTimestamp" or _MOMENT_TYPE.fullmatch(database_type) is not None


def same_decimal_text(source: SourceType, database_type: str, handling: str) -> bool:
    """Whether the text of a decimal is the connector's, whose events declare no types.

    True for values of other types. ``handling``: its ``decimal.handling.mode``.
    """
    return source.kind != "string" or handling == "string" or not _DECIMAL_TYPE.match(database_type)


def _array(source: SourceType, database_type: str, binary_mode: str) -> Encode | None:
    if source.items is None or not database_type.endswith("[]"):
        return None
    element = encoder(source.items, database_type[:-2], binary_mode)
    if element is None:
        return None
    return array(element, nulls=source.items.optional, texts=source.items.kind == "string")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _whole_number(database_type: str) -> Encode | None:
    """For integers that no schema tells from the numbers of other types. Those of moments have a unit that it would."""
    if _BIT_TYPE.match(database_type):
        return bit_number
    if database_type == "date":
        return days
    if database_type.startswith("interval"):
        return micro_duration
    return None if _TIME_TYPE.match(database_type) else _integer


def _integer(value: str | bytes) -> int:
    text = _text(value)
    return {"t": 1, "f": 0}[text] if text in ("t", "f") else int(text)


def _number(value: str | bytes) -> Any:
    text = _text(value).replace("$", "").replace(",", "")
    return float(text) if isfinite(float(text)) else text


def _boolean(value: str | bytes) -> bool:
    text = _text(value)
    # Of numbers, TinyIntOneToBooleanConverter takes all but 0 for true.
    return text in ("t", "true", "\x01") or (text.lstrip("-").isdigit() and int(text) != 0)


def _raw(value: str | bytes) -> bytes:
    return bytes.fromhex(value.removeprefix("\\x")) if isinstance(value, str) else value


def _base64(value: str | bytes) -> str:
    return b64encode(_raw(value)).decode()


def _decimal(scale: int) -> Encode:
    def encode(value: str | bytes) -> str | None:
        text = _text(value)
        whole, _, part = text.partition(".")
        if len(part) == scale and whole.lstrip("-").isdigit():
            unscaled = int(whole + part)
            return b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()
        number = Decimal(text.replace("$", "").replace(",", ""))
        return _unscaled(number, scale) if number.is_finite() else None

    return encode


def _variable_decimal(value: str | bytes) -> dict[str, Any] | None:
    number = Decimal(_text(value))
    if not number.is_finite():
        return None
    # The connector leaves out zeros at the end.
    scale = max(0, -int(number.normalize(_EXACT).as_tuple().exponent))
    return {"scale": scale, "value": _unscaled(number, scale)}


def _unscaled(number: Decimal, scale: int) -> str:
    unscaled = int(number.scaleb(scale, _EXACT).to_integral_value(context=_EXACT))
    return b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()


_BINARY: dict[str, Encode] = {
    "base64": _base64,
    "base64-url-safe": lambda value: urlsafe_b64encode(_raw(value)).decode(),
    "hex": lambda value: _raw(value).hex(),
}
_BY_NAME: dict[str, Encode] = {
    _DATA + "VariableScaleDecimal": _variable_decimal,
    _TIME + "Date": days,
    _CONNECT + "Date": days,
    _TIME + "Timestamp": scaled(moment, 1_000_000),
    _CONNECT + "Timestamp": scaled(moment, 1_000_000),
    _TIME + "MicroTimestamp": scaled(moment, 1000),
    _TIME + "NanoTimestamp": moment,
    _TIME + "Time": scaled(clock_time, 1_000_000),
    _CONNECT + "Time": scaled(day_time, 1_000_000),
    _TIME + "MicroTime": scaled(clock_time, 1000),
    _TIME + "NanoTime": clock_time,
    _TIME + "Year": _integer,
    _TIME + "MicroDuration": micro_duration,
    _DATA + "Bits": bits,
    _DATA + "geometry.Point": point,
    _DATA + "geometry.Geometry": geometry,
    _DATA + "geometry.Geography": geometry,
}


_ZONED: dict[str, Encode] = {_TIME + "ZonedTimestamp": zoned, _TIME + "ZonedTime": zoned_time}


def encoded(encode: Encode, values: list[Value]) -> list[Any]:
    """The values of one column."""
    return [None if value is None else encode(value) for value in values]
