"""Dates, timestamps and times: integers of days or ticks, and ISO texts."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import DecodeError
from ch_sink.types import calendar as civil
from ch_sink.types.arrow import arrow_of, arrow_unit
from ch_sink.types.chtype import ChType
from ch_sink.types.converter import Converted, PerValue, Reaction, as_arrow
from ch_sink.types.integers import Linear, fit, floored, infinite

__all__ = ["IsoColumn", "bounds", "from_days", "from_ticks", "iso_date"]

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
        digits = 0 if target.name == "Time" else 6 if target.precision <= 6 else 9
        end = 3_600_000 * 10**digits - 1
        return digits, -end, end
    digits = _DIGITS[arrow_unit(target.precision)]
    low = civil.days_from_civil(years[0], 1, 1) * 86_400 * 10**digits
    high = (civil.days_from_civil(years[1], 12, 31) + 1) * 86_400 * 10**digits - 1
    # Nanoseconds reach no further than 64 bits do.
    step = _step(target, digits)
    return digits, max(low, -((1 << 63) // step * step)), min(high, (1 << 63) - 1)


def _step(target: ChType, digits: int) -> int:
    """Ticks of Arrow's unit in one of the column's: the server would cut what is finer, but towards 1970."""
    return int(10 ** (digits - target.precision)) if target.name == "DateTime64" else 1


def from_ticks(target: ChType, source_digits: int, years: tuple[int, int], reaction: Reaction) -> Linear:
    """Integer ticks of 10^-digits seconds into DateTime, DateTime64, Time or Time64.

    Digits finer than the column's are cut off, towards the past.
    """
    digits, low, high = bounds(target, years)
    return Linear(
        arrow_of(target),
        low,
        high,
        reaction=reaction,
        what=_named(target),
        multiply=10 ** max(digits - source_digits, 0),
        divide=10 ** max(source_digits - digits, 0),
        step=_step(target, digits),
    )


def from_days(target: ChType, years: tuple[int, int], reaction: Reaction) -> Linear:
    """Days since 1970 into Date, Date32, DateTime or DateTime64 (midnight UTC)."""
    digits, low, high = bounds(target, years)
    factor = 1 if target.name.startswith("Date") and "Time" not in target.name else 86_400 * 10**digits
    return Linear(
        arrow_of(target),
        low,
        high,
        reaction=reaction,
        what=_named(target),
        multiply=factor,
        infinite=civil.INFINITE_DAYS,
    )


def iso_date(target: ChType, years: tuple[int, int], reaction: Reaction) -> PerValue:
    """ISO dates into Date or Date32."""
    _, low, high = bounds(target, years)

    def one(text: str) -> int:
        days = civil.parse_date(text)
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


class IsoColumn:
    """ISO date-times (UTC where they name no zone) or times into DateTime, DateTime64, Time or Time64."""

    columnar = True
    whole = ("texts",)
    wire: Any = str

    def __init__(self, target: ChType, years: tuple[int, int], reaction: Reaction) -> None:
        self.arrow = arrow_of(target)
        self._digits, self._low, self._high = bounds(target, years)
        self._what = _named(target)
        self._step = _step(target, self._digits)
        self._time = target.name in ("Time", "Time64")
        self._raw = (
            pa.uint32() if target.name == "DateTime" else pa.int32() if self.arrow.bit_width == 32 else pa.int64()
        )
        self._slow = PerValue(str, self.arrow, self._one, reaction=reaction, build=self._build)

    def convert(self, values: list[Any]) -> Converted:
        if self._time or self.arrow == pa.uint32():
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
        if not isinstance(text, str):
            raise DecodeError(f"expected an ISO text, found {type(text).__name__}")
        ticks = civil.parse_time(text, self._digits) if self._time else civil.parse_instant(text, self._digits)
        found = fit(ticks, self._low, self._high, self._what)
        return found - found % self._step

    def _build(self, ticks: list[int | None]) -> pa.Array:
        array = pa.array(ticks, self._raw)
        return array if self._raw == self.arrow else array.view(self.arrow)


def _named(target: ChType) -> str:
    return f"{target.name}({target.precision})" if target.precision else target.name


def days_of_ticks(target: ChType, source_digits: int, years: tuple[int, int], reaction: Reaction) -> Linear:
    """Integer ticks into Date or Date32: the day in UTC."""
    _, low, high = bounds(target, years)
    return Linear(
        arrow_of(target), low, high, reaction=reaction, what=_named(target), divide=86_400 * 10**source_digits
    )
