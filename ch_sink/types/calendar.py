"""The proleptic Gregorian calendar without Python's limits of years 1 to 9999: days, ticks and their texts.

Ticks are integers since 1970-01-01T00:00:00Z in a unit of 10^-digits seconds. Texts are those that PostgreSQL
and ClickHouse write: ``2024-02-29 12:34:56.789012``, with `` BC`` behind years before 1, and ``infinity``.
"""

import re
from functools import lru_cache

from ch_sink.errors import DecodeError

INFINITE_DAYS = {
    -2147472692: "infinity",
    -2147472691: "-infinity",
    -622191234: "infinity",
    -625821272: "-infinity",
}
"""PostgreSQL's infinite dates as Debezium sends them: two in streamed events, two in snapshots."""
INFINITE_TICKS = {9223372036825200000: "infinity", -9223372036832400000: "-infinity"}
"""PostgreSQL's infinite timestamps as Debezium sends them in microseconds."""
_INFINITE = {6: INFINITE_TICKS, 3: {ticks // 1000: name for ticks, name in INFINITE_TICKS.items()}}
"""The same by digits of the unit; nanoseconds do not reach that far."""

_SECONDS_A_DAY = 86_400
_POWERS = tuple(int(10**n) for n in range(10))
_INSTANT = re.compile(
    r"([+-]?\d{4,})-(\d\d)-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)?)?"
    r"\s?(Z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)?( BC)?",
    re.ASCII,
)
_TIME = re.compile(r"([+-]?)(\d{1,3}):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?Z?", re.ASCII)


@lru_cache(1 << 16)
def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01; year 0 is 1 BC. Raises DecodeError for a date that does not exist."""
    if not 1 <= month <= 12 or not 1 <= day <= _month_days(year, month):
        raise DecodeError(f"not a date: {year}-{month:02}-{day:02}")
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def civil_from_days(days: int) -> tuple[int, int, int]:
    """Year (0 is 1 BC), month and day."""
    days += 719_468
    era, of_era = divmod(days, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def date_text(days: int) -> str:
    """``2024-02-29``, ``4713-01-01 BC``, ``infinity``."""
    if days in INFINITE_DAYS:
        return INFINITE_DAYS[days]
    text, before_christ = _date(days)
    return text + before_christ


def ticks_text(ticks: int, digits: int) -> str:
    """``2024-02-29 12:34:56.789012``: the fraction without trailing zeros, or left out if it is zero."""
    infinite = _INFINITE.get(digits, {}).get(ticks)
    if infinite is not None:
        return infinite
    seconds, fraction = divmod(ticks, 10**digits)
    days, second = divmod(seconds, _SECONDS_A_DAY)
    date, before_christ = _date(days)
    return f"{date} {_clock(second)}{_fraction(fraction, digits)}{before_christ}"


def time_text(ticks: int, digits: int) -> str:
    """``-838:59:59.5``, ``24:00:00``."""
    seconds, fraction = divmod(abs(ticks), 10**digits)
    return f"{'-' if ticks < 0 else ''}{_clock(seconds)}{_fraction(fraction, digits)}"


def parse_instant(text: str, digits: int) -> int:
    """Ticks of an ISO date-time; without zone it is UTC; finer digits are cut off (towards the past).

    ``infinity`` and ``-infinity`` give the ticks of INFINITE_TICKS in that unit. Raises DecodeError for other texts.
    """
    for ticks, name in INFINITE_TICKS.items():
        if text == name:
            return ticks * _POWERS[digits] // 1_000_000
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise DecodeError(f"not an ISO date-time: {text[:60]!r}")
    year, month, day, hour, minute, second, fraction, zone, before_christ = match.groups()
    days = days_from_civil(1 - int(year) if before_christ else int(year), int(month), int(day))
    clock = (int(hour or 0), int(minute or 0), int(second or 0))
    if clock > (24, 0, 0) or clock[1] > 59 or clock[2] > 59:
        raise DecodeError(f"not a time: {text[:60]!r}")
    seconds = days * _SECONDS_A_DAY + clock[0] * 3600 + clock[1] * 60 + clock[2] - _zone(zone)
    nanos = int((fraction or "0").ljust(9, "0"))
    return (seconds * 1_000_000_000 + nanos) // _POWERS[9 - digits]


def parse_date(text: str) -> int:
    """Days of an ISO date (a time or zone after it is ignored). Raises DecodeError."""
    for days, name in INFINITE_DAYS.items():
        if text == name:
            return days
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise DecodeError(f"not an ISO date: {text[:60]!r}")
    year = int(match[1])
    return days_from_civil(1 - year if match[9] else year, int(match[2]), int(match[3]))


def parse_time(text: str, digits: int) -> int:
    """Ticks of ``[-]HH:MM[:SS[.fraction]]``. Raises DecodeError."""
    match = _TIME.fullmatch(text)
    if match is None or int(match[3]) > 59 or int(match[4] or 0) > 59:
        raise DecodeError(f"not a time: {text[:60]!r}")
    sign, hours, minutes, seconds, fraction = match.groups()
    whole = int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)
    ticks = (whole * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))) // _POWERS[9 - digits]
    return -ticks if sign == "-" else ticks


def _month_days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _date(days: int) -> tuple[str, str]:
    year, month, day = civil_from_days(days)
    if year < 1:
        return f"{1 - year:04}-{month:02}-{day:02}", " BC"
    return f"{year:04}-{month:02}-{day:02}", ""


def _clock(second: int) -> str:
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def _fraction(fraction: int, digits: int) -> str:
    return f".{fraction:0{digits}}".rstrip("0") if fraction else ""


def _zone(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(6, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:])
    return -seconds if zone[0] == "-" else seconds
