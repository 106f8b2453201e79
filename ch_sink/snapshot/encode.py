"""Values as a database writes them, in the form in which Debezium's JSON has them.

From there the stream's own converters make them what the stream would store.
"""

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from datetime import date
from decimal import Context, Decimal
from functools import lru_cache
from math import isfinite
from typing import Any

from ch_sink.snapshot.composite import array, bits, geometry, hstore, hstore_json, point
from ch_sink.snapshot.durations import micro_duration, zoned_time
from ch_sink.snapshot.reader import Value
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column
from ch_sink.types.connect import SourceType

__all__ = ["encoder", "source_type"]

Encode = Callable[[str | bytes], Any]
_EPOCH = date(1970, 1, 1).toordinal()
_EXACT = Context(prec=2000)
_INFINITE = {"infinity": 9223372036825200000, "-infinity": -9223372036832400000}
"""What PostgreSQL's connector sends for these."""
_INFINITE_DATES = {"infinity": -2147472692, "-infinity": -2147472691}
_MOMENT = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d+))?)?(?:Z|[+-]00(?::?00)?)?")
_CLOCK = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?")
_CONNECT, _TIME, _DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."
_OTHER_TEXT = re.compile(
    r"(interval|time|timetz|money|point|geometry|geography|bit)\b|json \(binary\)|(numeric|decimal)(?!\()"
)
"""Types whose texts are not those of the connector; decimals without a scale lose zeros on their way."""
_MOMENT_TYPE = re.compile(r"timestamp(\(\d\))?( with time zone)?")
"""Of PostgreSQL with a zone, or of MySQL."""
_TEXTS = {_DATA + name for name in ("Uuid", "Enum", "EnumSet", "Json", "Xml", "Ltree")}


def source_type(column: Column) -> SourceType | None:
    """The source type for a column whose events declare none; None if it cannot be told."""
    if column.stated is not None:
        return column.stated
    kind = parse_type(column.type).bare
    if re.fullmatch(r"U?Int(8|16|32|64)", kind.name):
        return SourceType("int64")
    if kind.name == "Decimal":
        scale = (("scale", str(kind.scale)), ("connect.decimal.precision", str(kind.precision)))
        return SourceType("bytes", _CONNECT + "Decimal", scale)
    plain = {
        "Bool": ("boolean", None),
        "Float32": ("float32", None),
        "Float64": ("float64", None),
        "String": ("string", None),
        "UUID": ("string", _DATA + "Uuid"),
        "Date": ("int32", _TIME + "Date"),
        "Date32": ("int32", _TIME + "Date"),
        "DateTime": ("int64", _TIME + "MicroTimestamp"),
        "DateTime64": ("int64", _TIME + "MicroTimestamp"),
    }.get(kind.name)
    return SourceType(*plain) if plain is not None else None


def encoder(source: SourceType, database_type: str, binary_mode: str = "bytes") -> Encode | None:
    """The function for values of this type; None if they cannot be compared with what the connector makes of them.

    ``binary_mode``: the connector's ``binary.handling.mode``.
    """
    binary = re.match(r"(bytea|binary|varbinary|\w*blob)\b", database_type) is not None
    name = source.name or ""
    if source.kind == "array":
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
        return _integer
    if source.kind.startswith("float"):
        return _number
    if source.kind == "boolean":
        return _boolean
    if source.kind == "string" and name in _ZONED:
        return _ZONED[name]
    if source.kind == "string" and binary and not name:
        return _BINARY.get(binary_mode)
    if source.kind == "string" and not name and _MOMENT_TYPE.fullmatch(database_type):
        return _zoned  # without a schema nothing else tells these texts
    if source.kind == "string" and (not name or name in _TEXTS):
        return _text if not _OTHER_TEXT.match(database_type) and not database_type.endswith("[]") else None
    return None


def _array(source: SourceType, database_type: str, binary_mode: str) -> Encode | None:
    if source.items is None or not database_type.endswith("[]"):
        return None
    element = encoder(source.items, database_type[:-2], binary_mode)
    return array(element) if element is not None else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _integer(value: str | bytes) -> int:
    text = _text(value)
    return {"t": 1, "f": 0}[text] if text in ("t", "f") else int(text)


def _number(value: str | bytes) -> Any:
    text = _text(value)
    return float(text) if isfinite(float(text)) else text


def _boolean(value: str | bytes) -> bool:
    return _text(value) in ("t", "true", "1", "\x01")


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


def _micros(value: str | bytes) -> int | None:
    text = _text(value)
    if text in _INFINITE:
        return _INFINITE[text]
    found = _MOMENT.fullmatch(text.removesuffix(" BC"))
    if found is None or found[2] == "00" or found[1] == "0000":
        return None
    year = 1 - int(found[1]) if text.endswith(" BC") else int(found[1])
    days = _days(year, int(found[2]), int(found[3]))
    clock = int(found[4] or 0) * 3600 + int(found[5] or 0) * 60 + int(found[6] or 0)
    return (days * 86_400 + clock) * 1_000_000 + int((found[7] or "0").ljust(6, "0")[:6])


@lru_cache(1 << 16)
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 in the Gregorian calendar, of any year."""
    cycles, year = divmod(year - 1, 400)
    return cycles * 146_097 + date(year + 1, month, day).toordinal() - _EPOCH


def _date(value: str | bytes) -> int | None:
    text = _text(value)
    micros = _micros(text)
    if text in _INFINITE_DATES:
        return _INFINITE_DATES[text]
    return None if micros is None else micros // 86_400_000_000


def _time(value: str | bytes) -> int | None:
    found = _CLOCK.fullmatch(_text(value))
    if found is None:
        return None
    micros = (int(found[2]) * 3600 + int(found[3]) * 60 + int(found[4])) * 1_000_000
    return (-1 if found[1] else 1) * (micros + int((found[5] or "0").ljust(6, "0")[:6]))


def _scaled(read: Callable[[str | bytes], int | None], multiply: int = 1, divide: int = 1) -> Encode:
    def encode(value: str | bytes) -> int | None:
        micros = read(value)
        return None if micros is None else micros * multiply // divide

    return encode


def _zoned(value: str | bytes) -> str:
    if _text(value) in _INFINITE:
        return _text(value)
    text = _text(value).replace(" ", "T")
    if text.endswith("+00"):
        return text[:-3] + "Z"
    return re.sub(r"([+-]00(:?00)?)?$", "", text.removesuffix("Z")) + "Z"


_BINARY: dict[str, Encode] = {
    "base64": _base64,
    "base64-url-safe": lambda value: urlsafe_b64encode(_raw(value)).decode(),
    "hex": lambda value: _raw(value).hex(),
}
_BY_NAME: dict[str, Encode] = {
    _DATA + "VariableScaleDecimal": _variable_decimal,
    _TIME + "Date": _date,
    _CONNECT + "Date": _date,
    _TIME + "Timestamp": _scaled(_micros, 1, 1000),
    _CONNECT + "Timestamp": _scaled(_micros, 1, 1000),
    _TIME + "MicroTimestamp": _scaled(_micros),
    _TIME + "NanoTimestamp": _scaled(_micros, 1000),
    _TIME + "Time": _scaled(_time, 1, 1000),
    _CONNECT + "Time": _scaled(_time, 1, 1000),
    _TIME + "MicroTime": _scaled(_time),
    _TIME + "NanoTime": _scaled(_time, 1000),
    _TIME + "Year": _integer,
    _TIME + "MicroDuration": micro_duration,
    _DATA + "Bits": bits,
    _DATA + "geometry.Point": point,
    _DATA + "geometry.Geometry": geometry,
    _DATA + "geometry.Geography": geometry,
}


_ZONED: dict[str, Encode] = {_TIME + "ZonedTimestamp": _zoned, _TIME + "ZonedTime": zoned_time}


def encoded(encode: Encode, values: list[Value]) -> list[Any]:
    """The values of one column."""
    return [None if value is None else encode(value) for value in values]
