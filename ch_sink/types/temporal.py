"""Dates, timestamps and times: integers of days or ticks, and ISO texts."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import DecodeError
from ch_sink.types import calendar as civil
from ch_sink.types.arrow import arrow_of, arrow_unit
from ch_sink.types.chtype import ChType
from ch_sink.types.converter import Converted, PerValue, Reaction, as_arrow
from ch_sink.types.integers import Linear, Scale, cut, fit, floored, infinite

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
    digits, low, high = bounds(target, years)
    clock = target.name in ("Time", "Time64")
    ticks = Linear(
        pa.int64() if clock else arrow_of(target),
        (low, high),
        reaction=reaction,
        what=_named(target),
        scale=Scale(10 ** max(digits - source_digits, 0), 10 ** max(source_digits - digits, 0), _step(target, digits)),
    )
    return Times(ticks, digits) if clock else ticks


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
    digits, low, high = bounds(target, years)
    factor = 1 if target.name.startswith("Date") and "Time" not in target.name else 86_400 * 10**digits
    return Linear(
        arrow_of(target),
        (low, high),
        reaction=reaction,
        what=_named(target),
        scale=Scale(multiply=factor),
        infinite=civil.INFINITE_DAYS,
    )


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
    _, low, high = bounds(target, years)
    return Linear(
        arrow_of(target),
        (low, high),
        reaction=reaction,
        what=_named(target),
        scale=Scale(divide=86_400 * 10**source_digits),
    )
