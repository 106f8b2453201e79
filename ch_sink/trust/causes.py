"""Causes of differences that a report's examples show: what connectors and converters are known to change.

Only a difference that fits to the day, or to the value, is explained. Everything else may have any cause.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ch_sink.trust.differences import Difference

_DAY = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(.*?)( BC)?", re.DOTALL)
_REFORM = (1582, 10, 15)
"""The first day of the Gregorian calendar, which PostgreSQL applies to all earlier days, too."""
_JULIAN = (
    "the table's days are those of the source taken for days of the Julian calendar, as PostgreSQL's connector does "
    "with times before 1582-10-15 in snapshots. A repair corrects them"
)
_DEFAULT = (
    "the table has the column's default where the source has NULL: the connector's converter replaces it. Set "
    "value.converter.replace.null.with.default=false there, then repair"
)


def causes(examples: Sequence[Difference], default_of: Callable[[str], Any]) -> tuple[str, ...]:
    """One sentence for each column and cause.

    ``default_of``: a column's default as the source declares it, in the form of the examples' values; None if it has
    none.
    """
    found = [*_of_values(examples, default_of), *_of_keys(examples)]
    return tuple(f"column {name}: {why}" for name, why in dict.fromkeys(found))


def _of_values(examples: Sequence[Difference], default_of: Callable[[str], Any]) -> Iterator[tuple[str, str]]:
    for name, (source, table) in (
        (n, pair) for e in examples if e.kind == "different" for n, pair in e.columns.items()
    ):
        if in_julian_calendar(source, table):
            yield name, _JULIAN
        elif source is None and table is not None and table == default_of(name):
            yield name, _DEFAULT


def _of_keys(examples: Sequence[Difference]) -> Iterator[tuple[str, str]]:
    """Of a row whose key has such a date, the one that the source has is missing and the one of the table is extra."""
    missing, extra = ([e.key for e in examples if e.kind == kind] for kind in ("missing", "extra"))
    for source, table in ((s, t) for s in missing for t in extra):
        moved = [name for name in source if source[name] != table[name]]
        if moved and all(in_julian_calendar(source[name], table[name]) for name in moved):
            yield from ((name, _JULIAN) for name in moved)


def in_julian_calendar(source: Any, table: Any) -> bool:
    """Whether two texts of dates or moments have one time of day, and the table's day is the source's as Julian."""
    if not (isinstance(source, str) and isinstance(table, str)):
        return False
    own, other = _DAY.fullmatch(source), _DAY.fullmatch(table)
    if own is None or other is None or own[4] != other[4] or source == table:
        return False
    day = _day(own)
    return day < _REFORM and _day_number(*day, julian=True) == _day_number(*_day(other), julian=False)


def _day(found: re.Match[str]) -> tuple[int, int, int]:
    """Year, month and day; the year 0 is 1 BC."""
    year = int(found[1])
    return 1 - year if found[5] else year, int(found[2]), int(found[3])


def _day_number(year: int, month: int, day: int, *, julian: bool) -> int:
    """Days since a fixed day, by the algorithm for Julian day numbers."""
    late = (14 - month) // 12
    years, months = year + 4800 - late, month + 12 * late - 3
    common = day + (153 * months + 2) // 5 + 365 * years + years // 4
    return common - 32083 if julian else common - years // 100 + years // 400 - 32045
