"""BSON values without a Python type, and all of them as texts, numbers and column types.

Plain JSON is what people expect to query: numbers as numbers, ObjectIds as their hexadecimal digits, dates as ISO
texts in UTC, UUIDs as their text, Decimal128 and non-finite doubles as texts (a JSON number would lose digits). What
has no such form (other binary data, regular expressions, code, timestamps, dates outside the years 0 to 9999, …) stays
in canonical Extended JSON, so that no value is lost and plain JSON can be read back.
"""

import base64
import decimal
import uuid
from collections.abc import Iterable
from decimal import Decimal as Number
from typing import Any

import msgspec

from ch_sink.errors import DecodeError
from ch_sink.types import OutOfRange
from ch_sink.types.calendar import civil_from_days, ticks_text
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import shown
from ch_sink.types.temporal import fit

_DAY = 86_400_000
_YEAR_0, _YEAR_10000 = -719_528 * _DAY, 2_932_897 * _DAY


def plain_text(value: Any) -> bytes:
    """Plain JSON of a value."""
    return _plain.encode(value)


def canonical_text(value: Any) -> bytes:
    """Canonical Extended JSON v2 of a value; integers that fit 32 bits are written as such."""
    return msgspec.json.encode(canonical(value))


def canonical(value: Any) -> Any:
    """A value as the JSON tree of canonical Extended JSON v2."""
    kind = type(value)
    if kind is dict:
        return {name: canonical(part) for name, part in value.items()}
    if kind is list:
        return [canonical(part) for part in value]
    if kind is int:
        return {"$numberInt": str(value)} if -(1 << 31) <= value < 1 << 31 else {"$numberLong": str(value)}
    if kind is float:
        return {"$numberDouble": repr(value)}
    return _canonical(value) if isinstance(value, Special) else value


def text_of(value: Any) -> str | bytes | None:
    """A value for a text column: text and bytes unchanged, everything else as in plain JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Binary):
        uuid: str | bytes = value.uuid or value.value
        return uuid
    if isinstance(value, Date):
        return iso(value.value)
    plain = _hook(value) if isinstance(value, Special) else value
    return plain if isinstance(plain, str) or plain is None else plain_text(plain).decode()


def key_text(value: Any) -> str | bytes | None:
    """The same for a key: numbers have one text if they are equal in MongoDB: 1, 1.0 and Decimal128 1.00.

    The double 0.1 is not the Decimal128 0.1, so a double has all of its digits.
    """
    if isinstance(value, (float, Decimal)):
        try:
            number = Number(value if isinstance(value, float) else value.value)
        except ArithmeticError:
            return text_of(value)
        if number.is_finite():
            # Not by normalize(), which rounds to fewer digits than Decimal128 has.
            plain = format(number, "f")
            plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
            return "0" if plain == "-0" else plain
    return text_of(value)


def typed_key_text(value: Any) -> str | bytes | None:
    """A key as JSON: texts in quotes, equal numbers in one form, everything else in canonical Extended JSON."""
    if value is None:
        return None
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return key_text(value)
    return canonical_text(value).decode()


def iso(milliseconds: int) -> str:
    """``2024-02-29T12:34:56.789Z``; years outside 0 to 9999 as :func:`civil.ticks_text` writes them."""
    if not _YEAR_0 <= milliseconds < _YEAR_10000:
        return ticks_text(milliseconds, 3)
    days, rest = divmod(milliseconds, _DAY)
    year, month, day = civil_from_days(days)
    second, fraction = divmod(rest, 1000)
    return f"{year:04}-{month:02}-{day:02}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.{fraction:03}Z"


def _hook(value: Any) -> Any:
    """A special value for plain JSON."""
    if isinstance(value, (ObjectId, Decimal, NonFinite)):
        return value.value
    if isinstance(value, Date):
        return iso(value.value) if _YEAR_0 <= value.value < _YEAR_10000 else _canonical(value)
    if isinstance(value, Binary) and value.subtype == 4 and value.uuid is not None:
        return value.uuid
    if isinstance(value, Other) and value.kind == "$symbol":
        return value.value["$symbol"]
    return _canonical(value)


class Special:
    """A BSON value without a matching Python type; compared by type and value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and bool(other.value == self.value)

    def __hash__(self) -> int:
        return hash((type(self), repr(self.value)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


def _canonical(value: Special) -> Any:
    if isinstance(value, ObjectId):
        return {"$oid": value.value}
    if isinstance(value, Date):
        return {"$date": {"$numberLong": str(value.value)}}
    if isinstance(value, Decimal):
        return {"$numberDecimal": value.value}
    if isinstance(value, NonFinite):
        return {"$numberDouble": value.value}
    if isinstance(value, Binary):
        return {"$binary": {"base64": base64.b64encode(value.value).decode(), "subType": f"{value.subtype:02x}"}}
    return value.value


_plain = msgspec.json.Encoder(enc_hook=_hook)


class ObjectId(Special):
    """24 hexadecimal digits."""

    __slots__ = ()


class Date(Special):
    """Milliseconds since 1970, any 64-bit number."""

    __slots__ = ()


class Decimal(Special):
    """Decimal128, as its text: digits, exponent, ``NaN``, ``Infinity``."""

    __slots__ = ()


class NonFinite(Special):
    """A double without a JSON literal: ``NaN``, ``Infinity`` or ``-Infinity``."""

    __slots__ = ()


class Binary(Special):
    """Bytes with their subtype."""

    __slots__ = ("subtype",)

    def __init__(self, value: bytes, subtype: int) -> None:
        super().__init__(value)
        self.subtype = subtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Binary) and (other.value, other.subtype) == (self.value, self.subtype)

    __hash__ = Special.__hash__

    @property
    def uuid(self) -> str | None:
        """The text of a UUID (subtype 4, and 3 in its bytes' order); None for other bytes."""
        return str(uuid.UUID(bytes=self.value)) if self.subtype in (3, 4) and len(self.value) == 16 else None


class Other(Special):
    """Regular expression, code, symbol, timestamp, min and max key: its canonical Extended JSON."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """The first name, such as ``$timestamp``."""
        return str(next(iter(self.value)))


_MOST_DIGITS = 100


def integer_of(value: Any, low: int, high: int, what: str) -> int:
    """A whole number of any of BSON's numeric types (old shells wrote every number as a double), or the text of one.

    A stored plain document holds a Decimal128 as text. Raises DecodeError, and OutOfRange for numbers that are
    not whole or not within the bounds.
    """
    if isinstance(value, int):
        return fit(int(value), low, high, what)
    number = _number(value)
    if number is None:
        raise DecodeError(f"expected a number, found {shown(value)}")
    if not number.is_finite():
        raise OutOfRange(f"{number} does not fit {what}")
    if number.adjusted() > _MOST_DIGITS:  # do not build an integer of thousands of digits
        raise OutOfRange(f"{number} does not fit {what}", low if number < 0 else high)
    if number != number.to_integral_value():
        raise OutOfRange(f"{number} is not a whole number, but the column is {what}", max(low, min(high, int(number))))
    return fit(int(number), low, high, what)


def _number(value: Any) -> decimal.Decimal | None:
    text = repr(value) if isinstance(value, float) else value
    if isinstance(value, (Decimal, NonFinite)):
        text = value.value
    try:
        return decimal.Decimal(text) if isinstance(text, str) else None
    except decimal.InvalidOperation:
        return None


def float_of(value: Any) -> float:
    """A double; Decimal128 becomes the nearest one. Raises DecodeError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    number = _number(value)
    if number is None:
        raise DecodeError(f"expected a number, found {shown(value)}")
    return float(number)


def decimal_of(value: Any) -> str:
    """The text of a number, a double's shortest one. Raises DecodeError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, Decimal):
        text: str = value.value
        return text
    if isinstance(value, str):
        return value
    raise DecodeError(f"expected a number, found {shown(value)}")


def flag_of(value: Any) -> bool:
    """A boolean, 0 or 1. Raises DecodeError."""
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    raise DecodeError(f"expected true or false, found {shown(value)}")


_TEXT = SourceType("string")
_JSON = SourceType("string", "io.debezium.data.Json")
_TYPES = {
    bool: SourceType("boolean"),
    int: SourceType("int64"),
    float: SourceType("float64"),
    str: _TEXT,
    NonFinite: SourceType("float64"),
    Date: SourceType("int64", "io.debezium.time.Timestamp"),
    dict: _JSON,
    list: _JSON,
}


def field_type(values: Iterable[Any]) -> SourceType | None:
    """The type that holds all these values of a field; None if all of them are null.

    Integers mixed with doubles become double, a Decimal128 becomes text, and any other mixture becomes text.
    """
    found: SourceType | None = None
    for value in values:
        if value is not None:
            one = _one(value)
            found = one if found is None or found == one else _joined(found, one)
    return found


def key_type(values: Iterable[Any]) -> SourceType:
    """The type of the key: integer or UUID if all sampled keys are, else text."""
    seen = list(values)
    if seen and all(isinstance(v, int) and not isinstance(v, bool) for v in seen):
        return SourceType("int64", optional=False)
    if seen and all(isinstance(v, Binary) and v.uuid for v in seen):
        return SourceType("string", "io.debezium.data.Uuid", optional=False)
    return SourceType("string", optional=False)


def _one(value: Any) -> SourceType:
    if isinstance(value, Binary) and value.subtype == 4 and value.uuid:
        return SourceType("string", "io.debezium.data.Uuid")
    if isinstance(value, Decimal):
        return _TEXT
    return _TYPES.get(type(value), _TEXT)


def _joined(one: SourceType, other: SourceType) -> SourceType:
    if {one.kind, other.kind} == {"int64", "float64"} and one.name is None and other.name is None:
        return SourceType("float64")
    return _TEXT
