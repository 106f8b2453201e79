"""Intervals and times with a zone, as Debezium's JSON has them."""

import re

__all__ = ["micro_duration", "zoned_time"]

_INTERVAL = re.compile(
    r"(?:([+-]?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?"
    r"(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?"
)
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?([+-])(\d\d)(?::?(\d\d))?(?::?(\d\d))?")
_DAYS_OF_A_MONTH = 365.25 / 12
_DAY = 86_400_000_000


def micro_duration(value: str | bytes) -> int | None:
    """Microseconds of an interval in PostgreSQL's own style; a month counts as a twelfth of 365.25 days.

    What an int64 cannot hold is its limit.
    """
    found = _INTERVAL.fullmatch(str(value))
    if found is None:
        return None
    years, months, days = (int(part or 0) for part in found.groups()[:3])
    sign = -1 if found[4] == "-" else 1
    hours, minutes = (sign * int(part or 0) for part in found.groups()[4:6])
    seconds = sign * float(f"{found[7] or 0}.{found[8] or 0}")
    # In floating point and in this order, as the connector computes it.
    all_days = (years * 12 + months) * _DAYS_OF_A_MONTH + days
    micros = int((((all_days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1e6)
    return min(max(micros, -(2**63)), 2**63 - 1)


def zoned_time(value: str | bytes) -> str | None:
    """A time of day in UTC: ``07:04:56.789Z``."""
    found = _TIME.fullmatch(str(value))
    if found is None:
        return None
    hours, minutes, seconds = int(found[1]), int(found[2]), int(found[3])
    away = (int(found[6]) * 60 + int(found[7] or 0)) * 60 + int(found[8] or 0)
    clock = (hours * 60 + minutes) * 60 + seconds - (away if found[5] == "+" else -away)
    micros = (clock * 1_000_000 + int((found[4] or "0").ljust(6, "0"))) % _DAY
    whole, part = divmod(micros, 1_000_000)
    fraction = f".{part:06d}".rstrip("0") if part else ""
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{fraction}Z"
