"""BSON values as text: plain JSON, canonical Extended JSON, and the text of a single value.

Plain JSON is what people expect to query: numbers as numbers, ObjectIds as their hexadecimal digits, dates as ISO
texts in UTC, UUIDs as their text, Decimal128 and non-finite doubles as texts (a JSON number would lose digits). What
has no such form (other binary data, regular expressions, code, timestamps, dates outside the years 0 to 9999, …) stays
in canonical Extended JSON, so that no value is lost and plain JSON can be read back.
"""

import base64
from decimal import Decimal as Number
from typing import Any

import msgspec

from ch_sink.decode.mongodb.special import Binary, Date, Decimal, Int64, NonFinite, ObjectId, Other, Special
from ch_sink.types.calendar import civil_from_days, ticks_text

__all__ = ["canonical", "canonical_text", "key_text", "plain_text", "text_of", "typed_key_text"]

_DAY = 86_400_000
_YEAR_0, _YEAR_10000 = -719_528 * _DAY, 2_932_897 * _DAY


def plain_text(value: Any) -> bytes:
    """Plain JSON of a value."""
    return _plain.encode(value)


def canonical_text(value: Any) -> bytes:
    """Canonical Extended JSON v2 of a value that was read with its integers typed."""
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
    """The same for a key: numbers that are equal in MongoDB have one text: 1, 1.0 and Decimal128 1.00."""
    if isinstance(value, (float, Decimal)):
        try:
            number = Number(repr(value) if isinstance(value, float) else value.value)
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
    if isinstance(value, (int, float, Int64, Decimal)) and not isinstance(value, bool):
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
    if isinstance(value, (ObjectId, Decimal, NonFinite, Int64)):
        return value.value
    if isinstance(value, Date):
        return iso(value.value) if _YEAR_0 <= value.value < _YEAR_10000 else _canonical(value)
    if isinstance(value, Binary) and value.subtype == 4 and value.uuid is not None:
        return value.uuid
    if isinstance(value, Other) and value.kind == "$symbol":
        return value.value["$symbol"]
    if isinstance(value, Other) and value.kind == "$undefined":
        return None
    return _canonical(value)


def _canonical(value: Special) -> Any:
    if isinstance(value, ObjectId):
        return {"$oid": value.value}
    if isinstance(value, Date):
        return {"$date": {"$numberLong": str(value.value)}}
    if isinstance(value, Decimal):
        return {"$numberDecimal": value.value}
    if isinstance(value, NonFinite):
        return {"$numberDouble": value.value}
    if isinstance(value, Int64):
        return {"$numberLong": str(value.value)}
    if isinstance(value, Binary):
        return {"$binary": {"base64": base64.b64encode(value.value).decode(), "subType": f"{value.subtype:02x}"}}
    return value.value


_plain = msgspec.json.Encoder(enc_hook=_hook)
