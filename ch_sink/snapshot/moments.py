"""Dates, times of day and moments as Debezium's JSON has them."""

import re
from collections.abc import Callable
from datetime import date
from functools import lru_cache

__all__ = ["clock_time", "day_time", "days", "moment", "scaled", "zoned"]

_EPOCH = date(1970, 1, 1).toordinal()
_DAY = 86_400_000_000_000
_INFINITE = {"infinity": 9223372036825200000, "-infinity": -9223372036832400000}
"""What PostgreSQL's connector sends for these, in microseconds."""
_INFINITE_DATES = {"infinity": -2147472692, "-infinity": -2147472691}
_ZERO = "0000-00-00"
"""MySQL's zero timestamp: streamed changes have the beginning of 1970 in its place."""
_MOMENT = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d+))?)?(?:Z|[+-]00(?::?00)?)?")
_CLOCK = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?")


def moment(value: str | bytes) -> int | None:
    """Nanoseconds since 1970 of a moment in UTC; None if there is no such day."""
    text = _text(value)
    if text in _INFINITE:
        return _INFINITE[text] * 1000
    found = _MOMENT.fullmatch(text.removesuffix(" BC"))
    if found is None or found[1] == "0000":
        return None
    year = 1 - int(found[1]) if text.endswith(" BC") else int(found[1])
    try:
        day = _days(year, int(found[2]), int(found[3]))
    except ValueError:  # MySQL takes days such as 2024-01-00
        return None
    clock = int(found[4] or 0) * 3600 + int(found[5] or 0) * 60 + int(found[6] or 0)
    return day * _DAY + clock * 1_000_000_000 + _fraction(found[7])


def days(value: str | bytes) -> int | None:
    """Days since 1970."""
    text = _text(value)
    if text in _INFINITE_DATES:
        return _INFINITE_DATES[text]
    nanos = moment(text)
    return None if nanos is None else nanos // _DAY


def clock_time(value: str | bytes) -> int | None:
    """Nanoseconds of a time of day; MySQL's may be negative and longer than a day."""
    found = _CLOCK.fullmatch(_text(value))
    if found is None:
        return None
    whole = int(found[2]) * 3600 + int(found[3]) * 60 + int(found[4])
    return (-1 if found[1] else 1) * (whole * 1_000_000_000 + _fraction(found[5]))


def day_time(value: str | bytes) -> int | None:
    """The same in ``time.precision.mode=connect``, which knows no time before or behind the day."""
    nanos = clock_time(value)
    return nanos if nanos is not None and 0 <= nanos <= _DAY else None


def scaled(read: Callable[[str | bytes], int | None], divide: int) -> Callable[[str | bytes], int | None]:
    """The same in a coarser unit."""

    def encode(value: str | bytes) -> int | None:
        nanos = read(value)
        return None if nanos is None else nanos // divide

    return encode


def zoned(value: str | bytes) -> str:
    """A moment in UTC as text: ``2024-02-29T12:34:56.789Z``; years before the year 0 have a minus."""
    text = _text(value)
    if text in _INFINITE:
        return text
    if text.startswith(_ZERO):
        text = "1970-01-01" + text.removeprefix(_ZERO)
    if text.endswith(" BC"):
        year, rest = text.removesuffix(" BC").split("-", 1)
        text = f"{'-' if int(year) > 1 else ''}{int(year) - 1:04}-{rest}"
    text = text.replace(" ", "T")
    if text.endswith("+00"):
        return text[:-3] + "Z"
    return re.sub(r"([+-]00(:?00)?)?$", "", text.removesuffix("Z")) + "Z"


@lru_cache(1 << 16)
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 in the Gregorian calendar, of any year."""
    cycles, year = divmod(year - 1, 400)
    return cycles * 146_097 + date(year + 1, month, day).toordinal() - _EPOCH


def _fraction(digits: str | None) -> int:
    return int(digits.ljust(9, "0")[:9]) if digits else 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
