"""Integers and what is an integer times a constant: dates as days, timestamps and times as ticks. Their ISO texts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import DecodeError
from ch_sink.types import calendar as civil
from ch_sink.types.arrow import arrow_of, arrow_unit
from ch_sink.types.chtype import ChType
from ch_sink.types.converter import Converted, OutOfRange, PerValue, Reaction, as_arrow, shown

_HINT = "widen the column, or set out_of_range to clamp or null"


@dataclass(frozen=True, slots=True)
class Scale:
    """The conversion of a source integer to a target integer: one multiplication or one floor division."""

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


_DAY = 86_400 * 10**9
"""Nanoseconds."""
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def bounds(target: ChType, years: tuple[int, int]) -> tuple[int, int, int]:
    """Digits of the Arrow unit and the least and greatest tick (days for Date and Date32) that a column holds."""
    if target.name == "Date":
        return 0, 0, 65_535
    if target.name == "Date32":
        return 0, civil.days_from_civil(years[0], 1, 1), civil.days_from_civil(years[1], 12, 31)
    if target.name == "DateTime":
        return 0, 0, (1 << 32) - 1
    if target.name in ("Time", "Time64"):
        end = 3_600_000 * 10**target.precision - 1
        return target.precision, -end, end
    digits = _DIGITS[arrow_unit(target.precision)]
    low = civil.days_from_civil(years[0], 1, 1) * 86_400 * 10**digits
    high = (civil.days_from_civil(years[1], 12, 31) + 1) * 86_400 * 10**digits - 1
    # Nanoseconds reach no further than 64 bits do.
    step = _step(target, digits)
    return digits, max(low, -((1 << 63) // step * step)), min(high, (1 << 63) - 1)


def _step(target: ChType, digits: int) -> int:
    """Ticks of Arrow's unit in one of the column's: the server would cut what is finer, but towards 1970."""
    return int(10 ** (digits - target.precision)) if target.name == "DateTime64" else 1


def from_ticks(target: ChType, source_digits: int, years: tuple[int, int], reaction: Reaction) -> "Linear | Times":
    """Integer ticks of 10^-digits seconds into DateTime, DateTime64, Time or Time64.

    Digits finer than the column's are cut off, towards the past.
    """
    digits, _, _ = bounds(target, years)
    finer, coarser = 10 ** max(digits - source_digits, 0), 10 ** max(source_digits - digits, 0)
    ticks = _linear(target, years, reaction, Scale(finer, coarser, _step(target, digits)))
    return Times(ticks, digits) if target.name in ("Time", "Time64") else ticks


def _linear(
    target: ChType,
    years: tuple[int, int],
    reaction: Reaction,
    scale: Scale,
    infinite: Mapping[int, str] | None = None,
) -> Linear:
    _, *limits = bounds(target, years)
    arrow = pa.int64() if target.name in ("Time", "Time64") else arrow_of(target)
    return Linear(arrow, (limits[0], limits[1]), reaction=reaction, what=_named(target), scale=scale, infinite=infinite)


class Times:
    """Ticks of the column's precision, by another converter, into Time or Time64: the server's texts of them."""

    columnar = True
    whole = Linear.whole
    arrow = pa.string()

    def __init__(self, ticks: Linear, digits: int) -> None:
        self.wire: Any = ticks.wire
        self._ticks, self._digits = ticks, digits

    def convert(self, values: list[Any]) -> Converted:
        found = self._ticks.convert(values)
        return replace(found, array=_time_texts(found.array, self._digits))


def _time_texts(ticks: pa.Array, digits: int) -> pa.Array:
    """``[-]HH:MM:SS[.fraction]`` of ticks of 10^-digits seconds."""
    size, unit = pc.abs(ticks), 10**digits
    seconds = pc.divide(size, unit)
    minutes = pc.divide(seconds, 60)
    hours = pc.divide(minutes, 60)
    parts = [hours, pc.subtract(minutes, pc.multiply(hours, 60)), pc.subtract(seconds, pc.multiply(minutes, 60))]
    clock = pc.binary_join_element_wise(*(_padded(part, 2) for part in parts), ":")
    if digits:
        clock = pc.binary_join_element_wise(clock, _padded(pc.subtract(size, pc.multiply(seconds, unit)), digits), ".")
    return pc.binary_join_element_wise(pc.if_else(pc.less(ticks, 0), "-", ""), clock, "")


def _padded(numbers: pa.Array, width: int) -> pa.Array:
    return pc.utf8_lpad(numbers.cast(pa.string()), width, "0")


def from_days(target: ChType, years: tuple[int, int], reaction: Reaction) -> Linear:
    """Days since 1970 into Date, Date32, DateTime or DateTime64 (midnight UTC)."""
    digits, _, _ = bounds(target, years)
    factor = 1 if target.name.startswith("Date") and "Time" not in target.name else 86_400 * 10**digits
    return _linear(target, years, reaction, Scale(multiply=factor), civil.INFINITE_DAYS)


def iso_date(target: ChType, years: tuple[int, int], reaction: Reaction) -> PerValue:
    """ISO dates into Date or Date32."""
    _, low, high = bounds(target, years)

    def one(text: str) -> int:
        days = civil.parse_date(text)
        if reaction == "exact" and days not in civil.INFINITE_DAYS and civil.parse_instant(text, 9) % _DAY:
            raise cut(text, _named(target))
        if days in civil.INFINITE_DAYS:
            raise infinite(civil.INFINITE_DAYS[days], low, high, _named(target))
        return fit(days, low, high, _named(target))

    return PerValue(
        str,
        arrow_of(target),
        one,
        reaction=reaction,
        build=lambda days: pa.array(days, pa.int32()).view(pa.date32()),
    )


def iso_time(target: ChType, reaction: Reaction) -> PerValue:
    """ISO times into Time or Time64. Digits finer than the column's are cut off."""
    digits, low, high = bounds(target, (0, 0))

    def one(text: Any) -> int:
        if reaction == "exact" and civil.parse_time(_text(text), 9) % 10 ** (9 - digits):
            raise cut(text, _named(target))
        return fit(civil.parse_time(_text(text), digits), low, high, _named(target))

    def build(ticks: list[int | None]) -> pa.Array:
        return _time_texts(pa.array(ticks, pa.int64()), digits)

    return PerValue(str, arrow_of(target), one, reaction=reaction, build=build)


class IsoColumn:
    """ISO date-times (UTC where they name no zone) into DateTime or DateTime64."""

    columnar = True
    whole = ("texts",)
    wire: Any = str

    def __init__(self, target: ChType, years: tuple[int, int], reaction: Reaction) -> None:
        self.arrow = arrow_of(target)
        self._digits, self._low, self._high = bounds(target, years)
        self._what = _named(target)
        self._step = _step(target, self._digits)
        self._raw = pa.uint32() if target.name == "DateTime" else pa.int64()
        self._slow = PerValue(str, self.arrow, self._one, reaction=reaction, build=self._build)
        self._smallest = 10 ** (9 - target.precision) if reaction == "exact" else 0

    def convert(self, values: list[Any]) -> Converted:
        if self.arrow == pa.uint32() or self._smallest:
            return self._slow.convert(values)
        try:
            array = as_arrow(values, pa.string()).cast(self.arrow)
        except (pa.ArrowException, TypeError, ValueError):
            # Fractions finer than the column, no zone, years of more digits, infinity: one by one.
            return self._slow.convert(values)
        if array.null_count < len(array):
            extremes = pc.min_max(array.view(pa.int64()))
            if extremes["min"].as_py() < self._low or extremes["max"].as_py() > self._high:
                return self._slow.convert(values)
        if self._step != 1:
            ticks = pc.multiply(floored(array.view(pa.int64()), self._step), self._step)
            array = ticks.view(self.arrow)
        return Converted(array)

    def _one(self, text: str) -> int:
        found = fit(civil.parse_instant(_text(text), self._digits), self._low, self._high, self._what)
        if self._smallest and civil.parse_instant(text, 9) % self._smallest:
            raise cut(text, self._what)
        return found - found % self._step

    def _build(self, ticks: list[int | None]) -> pa.Array:
        array = pa.array(ticks, self._raw)
        return array if self._raw == self.arrow else array.view(self.arrow)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise DecodeError(f"expected an ISO text, found {type(value).__name__}")


def _named(target: ChType) -> str:
    return f"{target.name}({target.precision})" if target.precision else target.name


def days_of_ticks(target: ChType, source_digits: int, years: tuple[int, int], reaction: Reaction) -> Linear:
    """Integer ticks into Date or Date32: the day in UTC."""
    return _linear(target, years, reaction, Scale(divide=86_400 * 10**source_digits))
