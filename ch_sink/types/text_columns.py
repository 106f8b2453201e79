"""Targets String and JSON: which text each form of literal becomes.

What the server would refuse in a column of type JSON is found here, where it concerns one record and not the insert.
ClickHouse's JSON holds objects only, each path once (``{"a":{"b":1},"a.b":2}`` has one twice), no number beyond a
Float64, and 500 levels at most here (the server ends at about a thousand). A null member vanishes there.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ch_sink.errors import DecodeError
from ch_sink.types import calendar as civil
from ch_sink.types.converter import (
    Converted,
    Converter,
    Encoding,
    OutOfRange,
    PerValue,
    Placeholder,
    Reaction,
    as_arrow,
    shown,
    without,
)
from ch_sink.types.decimals import decimal_text, read_decimal, read_variable
from ch_sink.types.literals import Reading, Shape

_OBJECTS = (Shape.MAP, Shape.STRUCT, Shape.POINT)
_NESTED = (Shape.ARRAY, *_OBJECTS)


def into_string(read: Reading, encoding: Encoding, known: Placeholder | None) -> Converter:
    """Any form into String."""
    if read.form in (Shape.TEXT, Shape.LABELS, Shape.ISO_DATE, Shape.ISO_TIME) or (
        read.form is Shape.ISO and not read.wide
    ):
        return Plain(str, known.texts if known is not None else ())
    if read.form is Shape.BYTES:
        return Plain(bytes, (known.raw,) if known is not None else ())
    if read.form is Shape.ANY:
        return SchemalessText(known)
    if read.form in _NESTED:
        wire: Any = msgspec.Raw if encoding == "json" else read.wire
        return AnyText(wire, json_text, known, known.is_json if known is not None and encoding == "json" else None)
    return AnyText(read.wire, _renderer(read))


def into_json(read: Reading, encoding: Encoding, reaction: Reaction, known: Placeholder | None) -> Converter | None:
    """Texts (of JSON), maps, points and structs into JSON; arrays are not objects."""
    if read.form is Shape.TEXT:
        check = known.is_text if known is not None else None
        return JsonColumn(str, reaction, text=str, is_placeholder=check)
    if read.form in _OBJECTS or read.form is Shape.ANY:
        wire: Any = msgspec.Raw if encoding == "json" and read.form is not Shape.ANY else Any
        return JsonColumn(wire, reaction, text=_decoded_text, is_placeholder=_is_placeholder(known))
    return None


_encode = msgspec.json.Encoder(decimal_format="number").encode
"""JSON in which a number of the wire (a Decimal) has its own digits."""


class SchemalessText:
    """Schemaless literals into String: texts as they are, everything else as its JSON."""

    whole = ("texts",)
    wire: Any = Any
    arrow = pa.binary()

    def __init__(self, known: Placeholder | None) -> None:
        self._plain = Plain(str, known.texts if known is not None else ())
        self._slow = AnyText(Any, json_text, known, _is_placeholder(known))

    def convert(self, values: list[Any]) -> Converted:
        try:
            return self._plain.convert(values)
        except DecodeError:
            return self._slow.convert(values)


def json_text(value: Any) -> bytes | None:
    """JSON of a literal: the wire's own text where it was kept, a decimal's digits for a VariableScaleDecimal."""
    if isinstance(value, msgspec.Raw):
        text = bytes(value)
        return None if text == b"null" else text
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"scale", "value"}:
        return _schemaless_variable(value)
    text = _encode(value)
    return _encode(spelled(value)) if b"null" in text else text


def spelled(value: Any) -> Any:
    """A literal with NaN and the infinities, for which JSON has no number, as texts."""
    if isinstance(value, dict):
        return {name: spelled(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def _decoded_text(value: Any) -> str | None:
    text = json_text(value)
    return None if text is None else text.decode()


def _schemaless_variable(value: dict[str, Any]) -> bytes:
    """A schemaless VariableScaleDecimal; the JSON itself if it is none."""
    try:
        read = msgspec.convert(value, type=_Variable) if isinstance(value["value"], str) else None
        return _encode(value) if read is None else decimal_text(read_variable(value | {"value": read.value})).encode()
    except (msgspec.ValidationError, DecodeError):
        return _encode(value)


class _Variable(msgspec.Struct):
    scale: int
    value: bytes


def _is_placeholder(known: Placeholder | None) -> Callable[[Any], bool] | None:
    if known is None:
        return None

    def check(value: Any) -> bool:
        if isinstance(value, str):
            return known.is_text(value)
        if isinstance(value, dict):
            return known.is_map(value)
        return (
            known.is_array(value)
            if isinstance(value, list)
            else isinstance(value, msgspec.Raw) and known.is_json(value)
        )

    return check


def _renderer(read: Reading) -> Callable[[Any], str | bytes]:
    digits = read.digits
    if read.form is Shape.INTEGER:
        return str
    if read.form is Shape.BOOLEAN:
        return lambda value: "true" if value else "false"
    if read.form is Shape.FLOAT:
        return _single_text if read.source is not None and read.source.kind == "float32" else _float_text
    if read.form is Shape.DAYS:
        return civil.date_text
    if read.form is Shape.TICKS:
        return lambda ticks: civil.ticks_text(ticks, digits)
    if read.form is Shape.TIME:
        return lambda ticks: civil.time_text(ticks, digits)
    if read.form is Shape.ISO:
        return _zoned_text
    if read.form is Shape.DECIMAL:
        unscaled = read_decimal(digits)
        return lambda value: decimal_text(unscaled(value))
    if read.form is Shape.VARIABLE_DECIMAL:
        return lambda value: decimal_text(read_variable(value))
    if read.form is Shape.BITS:
        return lambda value: binary_text(value, digits)
    if read.form is Shape.GEOMETRY:
        return lambda value: bytes(value["wkb"] if isinstance(value, dict) else value.wkb)
    raise DecodeError(f"cannot write {shown(read.form)} as text")


def _float_text(value: float | str) -> str:
    """The text of a float; of NaN and the infinities the one that JSON has."""
    return value if isinstance(value, str) else str(spelled(value)) if not math.isfinite(value) else repr(value)


def _single_text(value: float | str) -> str:
    """The same of a float32, with its own digits: Avro gives 1.100000023841858 for 1.1."""
    if isinstance(value, str) or not math.isfinite(value):
        return _float_text(value)
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return repr(float(str(single))) if np.isfinite(single) else repr(value)


def _zoned_text(text: str) -> str:
    """A date-time of any year in UTC, as PostgreSQL writes it."""
    if text.endswith("infinity"):
        return text
    found = civil.ticks_text(civil.parse_instant(text, 9), 9)
    moment, before_christ, _ = found.partition(" BC")
    return f"{moment}+00{before_christ}"


class Plain:
    """Text or bytes as they are, into String."""

    columnar = True
    arrow = pa.binary()

    def __init__(self, wire: Any, forms: tuple[bytes, ...] = ()) -> None:
        """``forms``: the bytes that mean an unavailable value; empty if the source sends none."""
        self.wire = wire
        self.whole = ("texts",) if wire is str else ()
        self._forms = forms

    def convert(self, values: list[Any]) -> Converted:
        try:
            # Text goes in faster as what it is; the cast shares its buffers.
            array = as_arrow(values, pa.string() if self.wire is str else self.arrow).cast(self.arrow)
        except (pa.ArrowException, TypeError, ValueError) as fault:
            raise DecodeError(f"expected text or bytes: {fault}") from fault
        if not isinstance(array, pa.Array):
            raise DecodeError("more than 2 GiB of text in one chunk", hint="make chunks smaller (chunk_bytes)")
        if not self._forms:
            return Converted(array)
        array, unavailable = without(array, self._forms)
        return Converted(array, unavailable)


class AnyText(PerValue):
    """Any other value into String, by a function that gives its text or bytes."""

    def __init__(self, wire: Any, function: Any, known: Placeholder | None = None, is_placeholder: Any = None) -> None:
        super().__init__(
            wire,
            pa.binary(),
            function,
            reaction="fail",
            is_placeholder=is_placeholder if known is not None else None,
        )


_MOST_MISSING = 4096


def binary_text(value: bytes, length: int) -> str:
    """Binary digits of a little-endian bit string, as long as declared; from the first 1 on where that varies (0).

    Raises DecodeError for a length that is far beyond the bytes: connectors send all bytes of a bit string.
    """
    if length > 8 * len(value) + _MOST_MISSING:
        raise DecodeError(f"a bit string of {len(value)} bytes is declared to have {length} bits")
    return format(int.from_bytes(value, "little"), "b").rjust(length, "0")


_DEEPEST = 500
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


class JsonColumn(PerValue):
    """JSON texts, or literals that ``text`` makes texts of, into JSON."""

    def __init__(
        self,
        wire: Any,
        reaction: Reaction,
        *,
        text: Callable[[Any], str | None],
        is_placeholder: Callable[[Any], bool] | None,
    ) -> None:
        def one(value: Any) -> str | None:
            found = text(value)
            if found is not None:
                _check(found)
            return found

        super().__init__(wire, pa.string(), one, reaction=reaction, is_placeholder=is_placeholder)


def _check(text: str) -> None:
    """Raises OutOfRange for a text that the server would not take."""
    try:
        msgspec.json.decode(text)
        found = json.loads(text, object_pairs_hook=_object)
    except OutOfRange:
        raise
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise _refused(f"not JSON: {shown(text)} ({fault})") from fault
    if not isinstance(found, dict):
        raise _refused(f"not a JSON object: {shown(text)}")
    _walk(found, 1, {})


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _refused(f"the JSON object has a key twice: {shown(sorted(name for name, _ in pairs))}")
    return found


def _walk(value: Any, depth: int, paths: dict[str | None, Any]) -> None:
    """Raises OutOfRange if a dotted path is there twice or too deep, or a number has more digits than the server reads.

    ``paths``: those found so far from here on, as a tree of their parts: as texts they would be as long as all names
    around them. A path ends where its tree has None.
    """
    if depth > _DEEPEST:
        raise _refused(f"the JSON has more than {_DEEPEST} levels")
    if isinstance(value, list):
        for item in value:
            _walk(item, depth + 1, {})
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise _refused(f"an integer of more than 64 bits in JSON: {shown(value)}")  # the server would make it a text
    if not isinstance(value, dict):
        return
    for name, member in value.items():
        below = paths
        for part in name.split("."):
            below = below.setdefault(part, {})
        if isinstance(member, dict):
            _walk(member, depth + 1, below)
            continue
        if None in below:
            raise _refused(f"the JSON object has a path twice: {shown(name)} at its end")
        below[None] = {}
        _walk(member, depth + 1, {})


def _refused(message: str) -> OutOfRange:
    return OutOfRange(message, hint="make the column String, which keeps JSON as it was sent")
