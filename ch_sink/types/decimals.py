"""Decimals: Connect's Decimal (big-endian two's complement bytes), VariableScaleDecimal, numbers and texts."""

import binascii
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import DecodeError
from ch_sink.types.converter import Converted, OutOfRange, PerValue, Reaction, Whole, as_arrow, shown

Unscaled = tuple[int, int]
"""An unscaled integer and its scale: the value is ``unscaled * 10**-scale``."""

_TEXT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,6}))?", re.ASCII)
_CHUNK = 4000
"""Digits that Python turns into text at once (its limit is 4300)."""
_MOST_SCALE = 16_383
"""Digits after the point of PostgreSQL's NUMERIC, which has more than any other source; Decimal128 has 6,176."""
_MOST_DIGITS = 131_072 + _MOST_SCALE
"""All digits of such a number. Beyond it arithmetic, which takes the square of the digits, takes seconds."""
_BITS_A_DIGIT = 3.3219


class VariableScale(msgspec.Struct, gc=False):
    """``io.debezium.data.VariableScaleDecimal``"""

    scale: int
    value: bytes


def read_decimal(scale: int) -> Callable[[Any], Unscaled]:
    """Reader of a decimal: bytes or their base64 with that scale, numbers, {scale, value}."""

    def read(value: Any) -> Unscaled:
        if isinstance(value, str):
            value = _undone(value)
        if isinstance(value, bytes):
            return int.from_bytes(value, "big", signed=True), scale
        if isinstance(value, int | float | Decimal):
            return read_text(str(value))
        if isinstance(value, dict) and isinstance(value.get("value"), str):
            value = value | {"value": _undone(value["value"])}
        return read_variable(value)

    return read


def _undone(text: str) -> bytes:
    """Bytes of a base64 text. Raises DecodeError."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise DecodeError(
            f"not the base64 of a decimal: {shown(text)}",
            hint="where the connector sends decimals as texts, say so in the column's comment: debezium: string",
        ) from None


def read_variable(value: Any) -> Unscaled:
    """Reads a VariableScaleDecimal, as a Struct (JSON) or a dict (Avro)."""
    scale, raw = (value["scale"], value["value"]) if isinstance(value, dict) else (value.scale, value.value)
    if not -_MOST_SCALE <= scale <= _MOST_SCALE:
        raise DecodeError(f"impossible scale {scale}")
    return int.from_bytes(raw, "big", signed=True), scale


def read_text(value: Any) -> Unscaled:
    """Reads a decimal number's text, or an int or float (by its shortest text). Raises DecodeError."""
    text = value if isinstance(value, str) else repr(value)
    match = _TEXT.fullmatch(text.strip())
    if match is None or not (match[2] or match[3]):
        raise DecodeError(f"not a decimal number: {shown(text)}")
    sign, whole, fraction, exponent = match.groups()
    fraction = fraction or ""
    scale = len(fraction) - int(exponent or 0)
    if abs(scale) > _MOST_SCALE:
        raise DecodeError(f"impossible exponent in {shown(text)}")
    digits = (whole + fraction).lstrip("0")
    if len(digits) > _MOST_DIGITS:
        raise DecodeError(f"a number of {len(digits)} digits, more than any source has")
    unscaled = _int(digits)
    return (-unscaled if sign == "-" else unscaled), scale


def decimal_text(value: Unscaled) -> str:
    """Plain digits without exponent, with as many after the point as the scale says.

    Raises DecodeError for more digits than any source has.
    """
    unscaled, scale = value
    if _digits_of(unscaled) > _MOST_DIGITS:
        raise DecodeError(f"a number of about {_digits_of(unscaled)} digits, more than any source has")
    if scale < 0:
        unscaled, scale = unscaled * 10**-scale, 0
    digits = _digits(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


class DecimalColumn:
    """Decimals into a ``Decimal(precision, scale)`` column.

    ``source_scale`` is the scale of every value where the schema fixes it (then ``read`` is not called for
    Connect Decimal bytes), else None. Digits beyond the column's scale that are not zero do not fit.
    """

    columnar = True

    def __init__(
        self,
        wire: Any,
        precision: int,
        scale: int,
        read: Callable[[Any], Unscaled],
        *,
        reaction: Reaction,
        source_scale: int | None = None,
    ) -> None:
        self.wire = wire
        self.arrow = (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
        self._precision, self._scale = precision, scale
        self._limit = 10**precision
        self._read = read
        self._fast = source_scale == scale
        self.whole: tuple[Whole, ...] = ("base64",) if self._fast else ("texts",) if wire is str else ()
        self._size = 16 if precision <= 38 else 32
        self._slow = PerValue(wire, self.arrow, self._one, reaction=reaction, build=self.build)

    def convert(self, values: list[Any]) -> Converted:
        # Of other columns, as those of Avro's integers, they are numbers.
        if self._fast and isinstance(values, pa.Array) and values.type == pa.int64():
            return Converted(self._of_words(values))
        kinds = {bytes} if isinstance(values, pa.Array) else set(map(type, values))
        if not self._fast or kinds <= {Decimal, int, type(None)}:
            together = self._together(values)
            return self._slow.convert(values) if together is None else Converted(together)
        if kinds <= {str, type(None)}:
            try:
                values = [None if v is None else binascii.a2b_base64(v, strict_mode=True) for v in values]
            except (binascii.Error, ValueError):
                return self._slow.convert(values)
        elif not kinds <= {bytes, type(None)}:  # (Python makes an integer of a list, too.)
            return self._slow.convert(values)
        short = self._short(values)
        if short is not None:
            return Converted(short)
        if isinstance(values, pa.Array):
            values = values.to_pylist()
        from_bytes, limit = int.from_bytes, self._limit
        try:
            unscaled = [None if v is None else from_bytes(v, "big", signed=True) for v in values]
            present = [v for v in unscaled if v is not None]
            if present and (max(present) >= limit or min(present) <= -limit):
                return self._slow.convert(values)
            return Converted(self.build(unscaled))
        except (TypeError, ValueError):
            return self._slow.convert(values)

    def _together(self, values: list[Any]) -> pa.Array | None:
        """All numbers, or texts of plain digits, at once where every one fits; else None."""
        kinds = {str} if isinstance(values, pa.Array) else set(map(type, values))
        try:
            if kinds <= {Decimal, int, type(None)}:
                return pa.array(values, self.arrow)
            if not kinds <= {str, type(None)} or self._read is not read_text:
                return None
            texts = as_arrow(values, pa.string())
            longest = pc.max(pc.binary_length(texts)).as_py() or 0
            # Longer ones could overflow in Arrow unseen, at the latest when they are scaled up; so could exponents.
            if longest + self._scale > (38 if self._size == 16 else 76):
                return None
            if pc.any(pc.match_substring(texts, "e", ignore_case=True)).as_py():
                return None
            return texts.cast(self.arrow)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return None

    def _one(self, value: Any) -> int:
        unscaled, scale = self._read(value)
        return rescale(unscaled, scale, self._precision, self._scale)

    def _of_words(self, values: pa.Array) -> pa.Array:
        """Unscaled integers of the column's scale."""
        words = np.frombuffer(values.buffers()[1], dtype=np.int64)[: len(values)]
        if not self._fits(words):
            raise OutOfRange("a number does not fit the column")
        return pa.Array.from_buffers(
            self.arrow, len(values), [values.buffers()[0], self._widen(words)], null_count=values.null_count
        )

    def _fits(self, words: npt.NDArray[np.int64]) -> bool:
        return self._precision >= 19 or not len(words) or (words.max() < self._limit and words.min() > -self._limit)

    def _short(self, values: list[Any]) -> pa.Array | None:
        """All values at once where none has more than eight bytes and all fit; else None."""
        try:
            raw = as_arrow(values, pa.binary())
        except (pa.ArrowException, TypeError, ValueError):
            return None
        if raw.offset:  # its buffers begin before it
            raw = raw.take(pa.array(np.arange(len(raw))))
        validity, offset_buffer, content = raw.buffers()
        ends = np.frombuffer(offset_buffer, dtype=np.int32)[: len(raw) + 1]
        lengths = np.diff(ends)
        if content is None or not content.size or not len(raw) or lengths.max() > 8:
            return None
        octets = np.frombuffer(content, dtype=np.uint8)
        # Right-align each value in eight bytes and fill the rest with its sign.
        place = np.arange(8, dtype=np.int32)
        window = octets[np.maximum(ends[1:, None] - 8 + place, 0)]
        negative = (octets[np.minimum(ends[:-1], len(octets) - 1)] > 127) & (lengths > 0)
        filler = np.where(negative, np.uint8(255), np.uint8(0))
        aligned = np.where(place >= 8 - lengths[:, None], window, filler[:, None])
        words = aligned.view(">i8").astype(np.int64).ravel()
        if not self._fits(words):
            return None
        return pa.Array.from_buffers(self.arrow, len(raw), [validity, self._widen(words)], null_count=raw.null_count)

    def _widen(self, words: npt.NDArray[np.int64]) -> pa.Buffer:
        """64-bit integers as the column's integers: the other words repeat the sign."""
        block = np.empty((len(words), self._size // 8), dtype=np.int64)
        block[:, 0] = words
        block[:, 1:] = (words >> 63)[:, None]
        return pa.py_buffer(block)

    def build(self, unscaled: list[int | None]) -> pa.Array:
        """The array of these unscaled values, which must fit."""
        size = self._size
        nulls = unscaled.count(None)
        filled = [0 if v is None else v for v in unscaled] if nulls else unscaled
        try:
            buffer = self._widen(np.array(filled, dtype=np.int64))
        except OverflowError:
            buffer = pa.py_buffer(b"".join([v.to_bytes(size, "little", signed=True) for v in filled]))  # type: ignore[union-attr]
        validity = None
        if nulls:
            validity = pa.py_buffer(np.packbits([v is not None for v in unscaled], bitorder="little"))
        return pa.Array.from_buffers(self.arrow, len(unscaled), [validity, buffer], null_count=nulls)


def rescale(unscaled: int, scale: int, precision: int, wanted: int) -> int:
    """The unscaled value at the wanted scale. Raises OutOfRange if digits would be lost."""
    if not unscaled:
        return 0
    limit = 10**precision - 1
    digits = _digits_of(unscaled)
    # What has too many digits before the point, or none near the column's last one, is never calculated with.
    if digits - scale > precision - wanted + 2:
        raise _too_large(unscaled, scale, precision, wanted)
    if digits - scale < -wanted - 2:
        raise _too_fine(unscaled, scale, precision, wanted, 0)
    if scale <= wanted:
        moved, remainder = unscaled * 10 ** (wanted - scale), 0
    else:
        moved, remainder = divmod(unscaled, 10 ** (scale - wanted))
    if abs(moved) > limit:
        raise _too_large(unscaled, scale, precision, wanted)
    if remainder:
        half = 10 ** (scale - wanted)
        raise _too_fine(unscaled, scale, precision, wanted, min(moved + (2 * remainder >= half), limit))
    return int(moved)


def _too_large(unscaled: int, scale: int, precision: int, wanted: int) -> OutOfRange:
    digits = _digits_of(unscaled) if abs(unscaled).bit_length() > 1024 else len(str(abs(unscaled)))
    limit = 10**precision - 1
    return OutOfRange(
        f"a number of {digits} digits, {scale} after the point, does not fit Decimal({precision}, {wanted})",
        limit if unscaled > 0 else -limit,
        hint="widen the column, or set out_of_range to clamp or null",
    )


def _too_fine(unscaled: int, scale: int, precision: int, wanted: int, nearest: int) -> OutOfRange:
    short = _digits_of(unscaled) < _CHUNK and abs(scale) < _CHUNK
    what = shown(decimal_text((unscaled, scale))) if short else f"a number of {scale} digits after the point"
    return OutOfRange(
        f"{what} has more digits after the point than Decimal({precision}, {wanted})",
        nearest,
        hint="give the column a larger scale, or set out_of_range to clamp (rounds) or null",
    )


def _digits_of(value: int) -> int:
    """How many digits an integer has, or one more."""
    return int(abs(value).bit_length() / _BITS_A_DIGIT) + 1


def _digits(value: int) -> str:
    """Decimal digits of a non-negative integer of any length."""
    if value.bit_length() < 3 * _CHUNK:
        return str(value)
    parts: list[str] = []
    while value:
        value, low = divmod(value, 10**_CHUNK)
        parts.append(str(low).rjust(_CHUNK, "0"))
    return "".join(reversed(parts)).lstrip("0")


def _int(digits: str) -> int:
    value = 0
    for start in range(0, len(digits), _CHUNK):
        part = digits[start : start + _CHUNK]
        value = value * 10 ** len(part) + int(part)
    return value
