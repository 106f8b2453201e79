"""ClickHouse's calendar functions over Arrow columns, in UTC, for the ranges in which their results are exact."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.types.chtype import ChType

__all__ = ["CALENDAR", "Moment", "calendar_value", "moment_of"]

_DAY = 86_400
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

CALENDAR = frozenset(
    (
        "toYear",
        "toYYYYMM",
        "toYYYYMMDD",
        "toDate",
        "toMonday",
        "toStartOfYear",
        "toStartOfQuarter",
        "toStartOfMonth",
        "toStartOfWeek",
        "toStartOfDay",
        "toStartOfHour",
    )
)
"""Functions that :func:`calendar_value` knows."""

_NUMBERS = frozenset(("toYear", "toYYYYMM", "toYYYYMMDD"))
_TO_TIME = frozenset(("toStartOfDay", "toStartOfHour"))


@dataclass(frozen=True, slots=True)
class Moment:
    """Points in time: days since 1970 (``unit`` 86400) or seconds since 1970 (``unit`` 1), 0 if ``null``."""

    values: npt.NDArray[np.int64]
    unit: int
    null: npt.NDArray[np.bool_] | None

    @property
    def days(self) -> npt.NDArray[np.int64]:
        return self.values if self.unit == _DAY else self.values // _DAY

    @property
    def seconds(self) -> npt.NDArray[np.int64]:
        return self.values * self.unit


def moment_of(array: pa.Array, kind: ChType) -> Moment | None:
    """An Arrow column inserted into a Date, Date32, DateTime or DateTime64 column; None for other types.

    Numbers are taken as the server takes them: days for dates, seconds for DateTime.
    """
    null = np.asarray(array.is_null()) if array.null_count else None
    if kind.name not in ("Date", "Date32", "DateTime", "DateTime64"):
        return None
    dated = kind.name in ("Date", "Date32")
    if pa.types.is_timestamp(array.type):
        ticks = np.asarray(pc.fill_null(array.cast(pa.int64()), 0))
        seconds = ticks // _UNITS[array.type.unit]
        return Moment(seconds // _DAY if dated else seconds, _DAY if dated else 1, null)
    if pa.types.is_date32(array.type) and dated:
        return Moment(np.asarray(pc.fill_null(array.cast(pa.int32()), 0)).astype(np.int64), _DAY, null)
    if pa.types.is_integer(array.type) and kind.name != "DateTime64":
        values = np.asarray(pc.fill_null(array.cast(pa.int64()), 0))
        return Moment(values, _DAY if dated else 1, null)
    return None


def calendar_value(name: str, moment: Moment, mode: int = 0) -> tuple[npt.NDArray[np.int64], str] | None:
    """The function's result and its kind: ``plain`` numbers, ``date`` in days, ``time`` in seconds since 1970.

    None if a result would leave the range of ClickHouse's Date (1970–2149) or DateTime (1970–2106): the server
    wraps or clamps it there. ``mode`` is toStartOfWeek's: 0 begins weeks on Sunday, 1 on Monday.
    """
    days = moment.days
    if name in _NUMBERS:
        return _number(name, days)
    if name in _TO_TIME:
        step = _DAY if name == "toStartOfDay" else 3_600
        if name == "toStartOfHour" and moment.unit == _DAY:
            return None
        return (moment.seconds // step * step, "time") if _within(days, 0, 49_709, moment) else None
    # Weeks that begin before 1970-01-01 are cut there by the server.
    if not _within(days, 7, 65_379, moment):
        return None
    if name == "toDate":
        return days, "date"
    if name == "toMonday" or (name == "toStartOfWeek" and mode == 1):
        return (days + 3) // 7 * 7 - 3, "date"
    if name == "toStartOfWeek":
        return ((days + 4) // 7 * 7 - 4, "date") if mode == 0 else None
    months = days.astype("M8[D]").astype("M8[M]")
    if name == "toStartOfYear":
        months = months.astype("M8[Y]").astype("M8[M]")
    elif name == "toStartOfQuarter":
        months = (months.astype(np.int64) // 3 * 3).astype("M8[M]")
    return months.astype("M8[D]").astype(np.int64), "date"


def _within(days: npt.NDArray[np.int64], low: int, high: int, moment: Moment) -> bool:
    real = days if moment.null is None else days[~moment.null]
    return not len(real) or (int(real.min()) >= low and int(real.max()) <= high)


def _number(name: str, days: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], str] | None:
    if len(days) and (int(days.min()) < -25_567 or int(days.max()) > 120_529):
        return None  # outside 1900–2299, the range of Date32 and DateTime64
    date = days.astype("M8[D]")
    months = date.astype("M8[M]").astype(np.int64)
    year, month = months // 12 + 1970, months % 12 + 1
    if name == "toYear":
        return year, "plain"
    if name == "toYYYYMM":
        return year * 100 + month, "plain"
    day = (date - date.astype("M8[M]").astype("M8[D]")).astype(np.int64) + 1
    return (year * 100 + month) * 100 + day, "plain"
