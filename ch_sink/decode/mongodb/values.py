"""BSON values as Python values, read from Extended JSON.

A document is a dict, an array a list; text, booleans, null, 32- and 64-bit integers and finite doubles are Python's
own. The other BSON types are the small classes of `special`. All Extended JSON dialects are read, distinguished by each
value: v1 strict (``{"$date": 123}``), v2 canonical (``{"$date": {"$numberLong": "123"}}``), v2 relaxed (an ISO text).
"""

import base64
import json
import math
import re
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from ch_sink.decode.mongodb.texts import Binary, Date, Decimal, NonFinite, ObjectId, Other, canonical
from ch_sink.errors import DecodeError
from ch_sink.types.calendar import parse_instant
from ch_sink.types.converter import shown


def parse(text: "str | bytes | dict[str, Any]") -> Any:
    """The value of an Extended JSON text (or of one that is parsed already). Raises DecodeError."""
    if isinstance(text, dict):
        return read(text)
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError):
        # v1 strict writes NaN and Infinity as bare words, as Python's own reader takes them.
        try:
            found = json.loads(text)
        except ValueError as error:
            raise DecodeError(f"not Extended JSON: {error}") from error
    else:
        if _is_plain(text):
            return found  # JSON numbers are finite
    return read(found)


def _is_plain(text: str | bytes) -> bool:
    """Whether the text surely has no wrapper, whose ``$`` may be escaped, and no more levels than a document has."""
    raw = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    return b"$" not in raw and b"\\u0024" not in raw and raw.count(b"{") + raw.count(b"[") <= _DEEPEST


def read(value: Any, level: int = 0) -> Any:
    """A JSON tree with Extended JSON's wrappers as BSON values; the tree is changed. Raises DecodeError.

    ``level``: how many levels are around the value.
    """
    kind = type(value)
    if level > _DEEPEST:
        raise DecodeError(f"the document has more than {_DEEPEST} levels, which MongoDB does not store")
    if kind is dict:
        for name in value:
            if name[:1] == "$":
                special = _special(value)
                if special is not None:
                    return None if special is _NULL else special
            break
        for name, part in value.items():
            if type(part) in _DEEP:
                value[name] = read(part, level + 1)
        return value
    if kind is list:
        for i, part in enumerate(value):
            if type(part) in _DEEP:
                value[i] = read(part, level + 1)
        return value
    if kind is float and not math.isfinite(value):
        return NonFinite(_name(value))
    return value


_DEEPEST = 200
"""MongoDB stores 100 levels; a wrapper has up to three of its own."""
_DEEP = frozenset((dict, list, float))
_NULL = object()
_NAMES = {"NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity", "+Infinity": "Infinity"}


def _name(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _special(found: dict[str, Any]) -> Any:
    """The BSON value of a wrapper; None if the object is a plain document."""
    reader = _READERS.get(frozenset(found))
    if reader is None:
        return None
    try:
        return reader(found)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise DecodeError(f"not Extended JSON: {shown(found)}") from error


_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_OID = re.compile(r"[0-9a-fA-F]{24}", re.ASCII)


def _oid(found: dict[str, Any]) -> Any:
    text = found["$oid"]
    if not isinstance(text, str) or not _OID.fullmatch(text):
        raise DecodeError(f"not an ObjectId: {shown(text)}")
    return ObjectId(text.lower())


def _date(found: dict[str, Any]) -> Any:
    at = found["$date"]
    if isinstance(at, dict):
        if len(at) > 1:
            raise DecodeError(f"not a date: {shown(found)}")
        at = _integer(at["$numberLong"])
    elif isinstance(at, str):
        at = parse_instant(at, 3)
    if not isinstance(at, int) or isinstance(at, bool):
        raise DecodeError(f"not a date: {shown(found)}")
    return Date(at)


def _integer(text: Any) -> int:
    """A number that is written as a text, or plainly. Raises ValueError."""
    if isinstance(text, str) and _INTEGER.fullmatch(text):
        return int(text)
    if type(text) is int:
        return text
    raise ValueError(text)


def _long(found: dict[str, Any]) -> Any:
    number = _integer(found["$numberLong"])
    if not -(1 << 63) <= number < 1 << 63:
        raise DecodeError(f"not a 64-bit integer: {shown(found)}")
    return number


def _double(found: dict[str, Any]) -> Any:
    text = found["$numberDouble"]
    if text in _NAMES:
        return NonFinite(_NAMES[text])
    number = float(text)
    return number if math.isfinite(number) else NonFinite(_name(number))


# Decimal128's exponent has four digits; with more, plain digits would be longer than any document.
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d{1,4})?|[+-]?NaN|[+-]?Inf(inity)?", re.ASCII | re.IGNORECASE)


def _decimal(found: dict[str, Any]) -> Any:
    text = found["$numberDecimal"]
    if not isinstance(text, str) or not _DECIMAL.fullmatch(text):
        raise DecodeError(f"not a Decimal128: {shown(text)}")
    return Decimal(text)


def _binary(found: dict[str, Any]) -> Any:
    content = found["$binary"]
    if isinstance(content, dict):
        data, subtype = content["base64"], content["subType"]
    else:
        data, subtype = content, found.get("$type", 0)
    return Binary(base64.b64decode(data, validate=True), subtype if isinstance(subtype, int) else int(subtype, 16))


def _uuid(found: dict[str, Any]) -> Any:
    return Binary(uuid.UUID(found["$uuid"]).bytes, 4)


def _regex(found: dict[str, Any]) -> Any:
    inner = found.get("$regularExpression")
    pattern = inner["pattern"] if inner is not None else found["$regex"]
    options = inner["options"] if inner is not None else found.get("$options", "")
    if not isinstance(pattern, str):
        return None  # a stored query: {"$regex": {…}}
    return Other({"$regularExpression": {"pattern": pattern, "options": "".join(sorted(options))}})


def _code(found: dict[str, Any]) -> Any:
    if "$scope" not in found:
        return Other({"$code": found["$code"]})
    return Other({"$code": found["$code"], "$scope": canonical(read(found["$scope"]))})


def _timestamp(found: dict[str, Any]) -> Any:
    at = found["$timestamp"]
    return Other({"$timestamp": {"t": int(at["t"]), "i": int(at["i"])}})


def _pointer(found: dict[str, Any]) -> Any:
    inner = found["$dbPointer"]
    return Other({"$dbPointer": {"$ref": inner["$ref"], "$id": {"$oid": inner["$id"]["$oid"]}}})


def _same(found: dict[str, Any]) -> Any:
    return Other(dict(found))


_READERS: dict[frozenset[str], Callable[[dict[str, Any]], Any]] = {
    frozenset(names.split()): reader
    for names, reader in (
        ("$oid", _oid),
        ("$date", _date),
        ("$numberLong", _long),
        ("$numberInt", lambda found: _integer(found["$numberInt"])),
        ("$numberDouble", _double),
        ("$numberDecimal", _decimal),
        ("$binary", _binary),
        ("$binary $type", _binary),
        ("$uuid", _uuid),
        ("$regex", _regex),
        ("$regex $options", _regex),
        ("$regularExpression", _regex),
        ("$code", _code),
        ("$code $scope", _code),
        ("$symbol", _same),
        ("$timestamp", _timestamp),
        ("$dbPointer", _pointer),
        ("$minKey", _same),
        ("$maxKey", _same),
        ("$undefined", lambda _: _NULL),
    )
}
