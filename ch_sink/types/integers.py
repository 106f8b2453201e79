"""Integers, and everything that is an integer times a constant: dates as days, timestamps and times as ticks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import DecodeError
from ch_sink.types.converter import Converted, OutOfRange, PerValue, Reaction, as_arrow, shown

_HINT = "widen the column, or set out_of_range to clamp or null"


@dataclass(frozen=True, slots=True)
class Scale:
    """What makes a target integer of a source integer: one multiplication or one floor division."""

    multiply: int = 1
    divide: int = 1
    step: int = 1
    """The target integer is cut down to a multiple of it."""


class Linear:
    """Source integers to target integers.

    ``limits``: the lowest and highest value of the target. ``unsigned``: a negative source integer is the two's
    complement of an unsigned one (MariaDB sends BIGINT UNSIGNED so). ``infinite``: source integers, below the lowest,
    that mean ``infinity`` or ``-infinity``.
    """

    columnar = True
    whole = ("integers",)

    def __init__(
        self,
        arrow: pa.DataType,
        limits: tuple[int, int],
        *,
        reaction: Reaction,
        what: str,
        scale: Scale = Scale(),
        unsigned: bool = False,
        infinite: Mapping[int, str] | None = None,
        wire: Any = int,
    ) -> None:
        self.wire = wire
        self.arrow = arrow
        self._low, self._high = limits
        self._multiply, self._divide, self._step = scale.multiply, scale.divide, scale.step
        self._unsigned = unsigned
        self._infinite = infinite or {}
        self._what = what
        self._exact = reaction == "exact" and (scale.divide != 1 or scale.step != 1)
        self._raw = _storage(arrow)
        self._slow = PerValue(self.wire, arrow, self._one, reaction=reaction, build=self._build)

    def convert(self, values: list[Any]) -> Converted:
        if self._exact:
            return self._slow.convert(values)
        try:
            array = as_arrow(values, pa.int64())
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return self._slow.convert(values)
        if array.null_count == len(array):
            return Converted(pa.nulls(len(array), self.arrow))
        least, greatest = extremes(array, rough=True)
        if array.null_count and (least < 0 or self._at(least) < self._low or self._at(greatest) > self._high):
            least, greatest = extremes(array)
        if self._unsigned and least < 0:
            return Converted(array.view(pa.uint64()))
        if self._at(least) < self._low or self._at(greatest) > self._high:
            return self._slow.convert(values)
        if self._multiply != 1:
            array = pc.multiply(array, self._multiply)
        elif self._divide != 1:
            array = floored(array, self._divide)
        if self._step != 1:
            array = pc.multiply(floored(array, self._step), self._step)
        return Converted(self._cast(array))

    def _at(self, value: int) -> int:
        return value * self._multiply // self._divide

    def _one(self, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise DecodeError(f"expected an integer, found {shown(value)}")
        if self._unsigned and -(1 << 63) <= value < 0:
            return value + (1 << 64)
        if value in self._infinite:
            raise infinite(self._infinite[value], self._low, self._high, self._what)
        found = fit(self._at(value), self._low, self._high, self._what)
        if self._exact and (value * self._multiply % self._divide or found % self._step):
            raise cut(value, self._what)
        return found - found % self._step

    def _build(self, values: list[int | None]) -> pa.Array:
        return self._cast(pa.array(values, pa.uint64() if self._high >= 1 << 63 else pa.int64()))

    def _cast(self, array: pa.Array) -> pa.Array:
        if not array.offset and array.type == pa.int64() and self._raw.bit_width < 64:
            # They fit, all but what may be in place of nulls.
            numbers = np.frombuffer(array.buffers()[1], dtype=np.int64)[: len(array)]
            narrow = pa.py_buffer(numbers.astype(self._raw.to_pandas_dtype()))
            return pa.Array.from_buffers(self.arrow, len(array), [array.buffers()[0], narrow], array.null_count)
        if array.type != self._raw:
            array = array.cast(self._raw)
        return array if self._raw == self.arrow else array.view(self.arrow)


def extremes(array: pa.Array, *, rough: bool = False) -> tuple[int, int]:
    """The least and the greatest of an int64 array's values, of which at least one is not null.

    ``rough``: with what may be in place of nulls, which takes less time.
    """
    if rough or not array.null_count:
        numbers = np.frombuffer(array.buffers()[1], dtype=np.int64)[array.offset : array.offset + len(array)]
        return int(numbers.min()), int(numbers.max())
    found = pc.min_max(array)
    return found["min"].as_py(), found["max"].as_py()


def floored(array: pa.Array, divisor: int) -> pa.Array:
    """64-bit integers divided, towards minus infinity: times before 1970 stay in order (Arrow goes towards zero)."""
    quotient = pc.divide(array, divisor)
    remainder = pc.subtract(array, pc.multiply(quotient, divisor))
    return pc.subtract(quotient, pc.less(remainder, 0).cast(pa.int64()))


def fit(value: int, low: int, high: int, what: str) -> int:
    """The value if the column holds it. Raises OutOfRange, with the nearest bound, if not."""
    if low <= value <= high:
        return value
    number = value if abs(value) < 1 << 512 else f"a number of {value.bit_length()} bits"
    raise OutOfRange(
        f"{number} does not fit {what} ({low} to {high})",
        low if value < low else high,
        hint=_HINT,
    )


def cut(value: Any, what: str) -> OutOfRange:
    """The error for a key of which a column would hold a part only."""
    return OutOfRange(f"{what} holds a part of {shown(value)} only, which may be that of another key", hint=_HINT)


def infinite(name: str, low: int, high: int, what: str) -> OutOfRange:
    """The error for ``infinity`` or ``-infinity``, with the last or first value that the column holds."""
    return OutOfRange(f"{name} does not fit {what}", low if name.startswith("-") else high, hint=_HINT)


def wide_integer(value: int, size: int) -> bytes:
    """Little-endian bytes of a 128- or 256-bit integer, signed ones in two's complement."""
    return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _storage(arrow: pa.DataType) -> pa.DataType:
    """The plain integer type of the same bits."""
    if pa.types.is_integer(arrow):
        return arrow
    return pa.int32() if arrow.bit_width == 32 else pa.int64()
