"""Dates, moments, times and intervals at the edges of what databases hold, as recorded from their connectors."""

import pytest

from ch_sink.snapshot.values import days, micro_duration, moment, zoned, zoned_time
from ch_sink.types.calendar import days_from_civil, parse_instant


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("00:00:00", 0),
        ("1 year 2 mons -3 days +04:05:06.789", 36_572_706_789_000),
        ("-1 mons +5 days 00:00:00.000001", -2_197_799_999_999),
        ("-00:00:01.5", -1_500_000),
        ("2 days", 172_800_000_000),
        ("178000000 years", 2**63 - 1),
        ("-178000000 years", -(2**63)),
    ],
)
def test_intervals_are_microseconds(text: str, micros: int) -> None:
    assert micro_duration(text) == micros


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("12:34:56.789012+05:30", "07:04:56.789012Z"),
        ("00:00:00+00", "00:00:00Z"),
        ("23:30:00.5-01", "00:30:00.5Z"),
        ("01:00:00+02", "23:00:00Z"),
    ],
)
def test_times_of_day_are_in_utc(text: str, utc: str) -> None:
    assert zoned_time(text) == utc


@pytest.mark.parametrize(
    "text", ["2024-01-00", "2024-00-15", "2024-00-00", "0000-00-00", "0000-01-01", "2024-02-31 10:00:00"]
)
def test_a_day_that_does_not_exist_is_null(text: str) -> None:
    assert days(text) is None
    assert moment(text) is None


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("0044-03-15 12:00:00+00 BC", "-0043-03-15T12:00:00Z"),
        ("0001-12-31 23:59:59.999999+00 BC", "0000-12-31T23:59:59.999999Z"),
        ("4713-01-01 00:00:00+00 BC", "-4712-01-01T00:00:00Z"),
        ("294276-12-31 23:59:59+00", "294276-12-31T23:59:59Z"),
        ("0000-00-00 00:00:00", "1970-01-01T00:00:00Z"),
        ("0000-00-00 00:00:00.000000", "1970-01-01T00:00:00.000000Z"),
        ("2024-02-29 12:34:56.789012+00", "2024-02-29T12:34:56.789012Z"),
    ],
)
def test_moments_with_a_zone_are_those_of_streamed_changes(text: str, sent: str) -> None:
    assert zoned(text) == sent


def test_years_before_the_first_are_counted_without_a_gap() -> None:
    assert parse_instant(zoned("0001-01-01 00:00:00+00 BC"), 0) == days_from_civil(0, 1, 1) * 86_400
