"""Floats, booleans, UUIDs, enums, fixed strings and network addresses, with schema or without."""

import ipaddress
import math
import string
import struct
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import DecodeError
from ch_sink.types.arrow import arrow_of
from ch_sink.types.chtype import ChType
from ch_sink.types.converter import (
    Converted,
    Converter,
    OutOfRange,
    PerValue,
    Reaction,
    Whole,
    as_arrow,
    shown,
    takes_whole,
)
from ch_sink.types.temporal import cut, fit

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Texts by which JSON carries the floats that it has no literal for."""
_FLAGS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class Floats:
    """Floats into Float32 or Float64; ``NaN``, ``Infinity`` and ``-Infinity`` may come as texts."""

    columnar = True
    whole = ("floats",)
    wire: Any = float | str

    def __init__(self, target: ChType, reaction: Reaction) -> None:
        self.arrow = arrow_of(target)
        self._single, self._exact = target.name == "Float32", reaction == "exact"
        self._slow = PerValue(self.wire, self.arrow, self._one, reaction=reaction)

    def convert(self, values: list[Any]) -> Converted:
        if not self._single or (isinstance(values, pa.Array) and values.type == self.arrow):
            try:
                return Converted(as_arrow(values, self.arrow))
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                pass
        return self._slow.convert(values)

    def _one(self, value: Any) -> float:
        if isinstance(value, str):
            if value not in _SPECIAL:
                raise DecodeError(f"not a number: {shown(value)}")
            return _SPECIAL[value]
        number = float(value)
        if self._single and math.isfinite(number):
            try:
                struct.pack("<f", number)
            except OverflowError:
                bound = math.copysign(3.4028234663852886e38, number)
                raise OutOfRange(f"{number!r} does not fit Float32", bound, hint="make the column Float64") from None
            single = np.float32(number)
            if self._exact and number not in (float(single), float(str(single))):
                raise cut(value, "Float32")
        return number


class Flags:
    """Booleans into Bool."""

    columnar = True
    whole = ("flags",)
    wire: Any = bool
    arrow = pa.bool_()

    def convert(self, values: list[Any]) -> Converted:
        try:
            return Converted(as_arrow(values, pa.bool_()))
        except (pa.ArrowException, TypeError) as fault:
            raise DecodeError(f"expected true or false: {fault}") from fault


def flag(value: Any) -> bool:
    """A boolean from true, false, 0 or 1 (TINYINT(1) comes as a number). Raises OutOfRange for other numbers."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return bool(fit(value, 0, 1, "Bool"))
    raise DecodeError(f"expected a boolean, found {shown(value)}")


def flag_text(value: Any) -> bool:
    """A boolean from true, false, t, f, 1 or 0, in any letter case. Raises DecodeError for other texts."""
    found = _FLAGS.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise DecodeError(f"expected true or false, found {shown(value)}")
    return found


class Uuids:
    """UUID texts into UUID: the server's form of them, in lower case."""

    columnar = True
    whole = ("texts",)
    wire: Any = str
    arrow = pa.string()

    def __init__(self, reaction: Reaction = "fail") -> None:
        self._exact = reaction == "exact"
        self._slow = PerValue(str, self.arrow, self._one, reaction="fail")

    def convert(self, values: list[Any]) -> Converted:
        try:
            texts = as_arrow(values, self.arrow)
        except (pa.ArrowException, TypeError, ValueError):
            return self._slow.convert(values)
        filled = pc.fill_null(texts, _NO_UUID) if texts.null_count else texts
        found = _canonical(filled)
        if found is None or (self._exact and not pc.all(pc.equal(found, filled)).as_py()):
            return self._slow.convert(values)
        return Converted(pc.if_else(pc.is_valid(texts), found, None) if texts.null_count else found)

    def _one(self, value: Any) -> str:
        found = uuid_text(value)
        if self._exact and value not in (found, found.upper()):
            raise cut(value, "UUID")
        return found


_NO_UUID = "00000000-0000-0000-0000-000000000000"
"""In place of null."""
_SHAPE = bytes(ord("0") if chr(c) in string.hexdigits else c if c == ord("-") else ord("?") for c in range(256))
"""Each digit as 0, a dash as itself, all else as something else."""


def _canonical(texts: pa.Array) -> pa.Array | None:
    """These texts in lower case; None unless all are of the usual form. None of them is null."""
    count = len(texts)
    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + count + 1] if count else np.zeros(1)
    if (np.diff(starts) != 36).any():
        return None
    characters = data[int(starts[0]) : int(starts[-1])].to_pybytes() if count else b""
    if characters.translate(_SHAPE) != _NO_UUID.encode() * count:
        return None
    places = pa.py_buffer(np.arange(0, 36 * count + 36, 36, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), count, [None, places, pa.py_buffer(characters.lower())])


def uuid_text(value: Any) -> str:
    """The usual form of a UUID's text. Raises DecodeError."""
    if isinstance(value, str):
        digits = value.strip("{}").replace("-", "")
        try:
            raw = bytes.fromhex(digits)
        except ValueError:
            raw = b""
        if len(digits) == 32 and len(raw) == 16:
            return uuid_of(raw)
    raise DecodeError(f"not a UUID: {shown(value)}")


def uuid_of(value: bytes) -> str:
    """The text of a UUID's sixteen bytes. Raises DecodeError."""
    if len(value) != 16:
        raise DecodeError(f"a UUID has 16 bytes, found {len(value)}")
    return str(uuid.UUID(bytes=bytes(value)))


def enum(target: ChType, reaction: Reaction, wire: Any) -> PerValue:
    """Labels (their numbers, if ``wire`` is int) into Enum8 or Enum16; one that the column lacks is out of range."""
    numbers: dict[Any, int] = dict(target.values) if wire is str else {number: number for _, number in target.values}

    def number(value: Any) -> int:
        if value not in numbers:
            raise OutOfRange(f"the Enum has no label {shown(value)}", hint="add the label to the column's Enum")
        return numbers[value]

    return PerValue(wire, arrow_of(target), number, reaction=reaction)


def fixed_string(target: ChType, reaction: Reaction, wire: Any) -> PerValue:
    """Text or bytes into FixedString(N), filled up with zero bytes as the server does."""
    size = target.precision

    def padded(value: Any) -> bytes:
        raw = value.encode() if isinstance(value, str) else bytes(value)
        if len(raw) > size:
            raise OutOfRange(f"{len(raw)} bytes do not fit FixedString({size})", hint="make the column String")
        if reaction == "exact" and raw.endswith(b"\0"):
            raise OutOfRange("a key that ends in a zero byte, as those do that are filled up", hint="make it String")
        return raw.ljust(size, b"\0")

    return PerValue(wire, pa.binary(size), padded, reaction=reaction)


def address(target: ChType, reaction: Reaction, wire: Any) -> PerValue:
    """Address texts, or addresses as the database packs them (4 or 16 bytes, an integer of 32 bits), into IPv4 or IPv6.

    An IPv4 address is mapped into IPv6.
    """
    if target.name == "IPv4":
        return PerValue(wire, pa.uint32(), lambda value: int(ipaddress.IPv4Address(value)), reaction=reaction)

    def six(value: Any) -> bytes:
        found = ipaddress.ip_address(value)
        if reaction == "exact" and wire is str and (str(found) != value or (found.version == 6 and found.ipv4_mapped)):
            raise cut(value, "IPv6")
        return found.packed if found.version == 6 else b"\0" * 10 + b"\xff\xff" + found.packed

    return PerValue(wire, pa.binary(16), six, reaction=reaction)


class Either:
    """Integers by one converter, texts by another."""

    def __init__(self, number: Converter, text: Converter) -> None:
        self.wire: Any = number.wire | str
        self.arrow = number.arrow
        self._number, self._text = number, text
        texts: tuple[Whole, ...] = ("texts",) if takes_whole(text, "texts") else ()
        self.whole: tuple[Whole, ...] = ("integers", *texts)

    def convert(self, values: list[Any]) -> Converted:
        if isinstance(values, pa.Array):
            return (self._text if pa.types.is_string(values.type) else self._number).convert(values)
        kinds = set(map(type, values))
        if str not in kinds:
            return self._number.convert(values)
        if kinds <= {str, type(None)}:
            return self._text.convert(values)
        texts = [isinstance(v, str) for v in values]
        number = self._number.convert([None if is_text else v for is_text, v in zip(texts, values, strict=True)])
        text = self._text.convert([v if is_text else None for is_text, v in zip(texts, values, strict=True)])
        array = pa.array(
            [
                t if is_text else n
                for is_text, t, n in zip(texts, _plain(text.array), _plain(number.array), strict=True)
            ],
            pa.int32() if self.arrow.bit_width == 32 else pa.int64(),
        )
        return Converted(array.view(self.arrow), None, number.clamped + text.clamped)


class SchemalessIntegers:
    """Integers, booleans as 0 and 1, and bit strings (little-endian bytes)."""

    whole = ("integers",)

    def __init__(self, numbers: Converter, wire: Any) -> None:
        self.wire = wire
        self.arrow = numbers.arrow
        self._numbers = numbers

    def convert(self, values: list[Any]) -> Converted:
        if isinstance(values, pa.Array):
            return self._numbers.convert(values)
        if not {bool, bytes}.isdisjoint(map(type, values)):
            values = [_integer(value) for value in values]
        return self._numbers.convert(values)


def _integer(value: Any) -> Any:
    if isinstance(value, bytes):
        return int.from_bytes(value, "little")
    return int(value) if isinstance(value, bool) else value


class SchemalessFlags(PerValue):
    """Booleans or 0 and 1 into Bool."""

    whole = ("flags",)

    def __init__(self, reaction: Reaction) -> None:
        super().__init__(bool | int, pa.bool_(), flag, reaction=reaction)

    def convert(self, values: list[Any]) -> Converted:
        try:
            return Converted(as_arrow(values, pa.bool_()))
        except (pa.ArrowException, TypeError):
            return super().convert(values)


def _plain(array: pa.Array) -> list[Any]:
    """The bits of 32- or 64-bit values as integers."""
    integers: list[Any] = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist()
    return integers
