"""Intervals and times with a zone."""

import pytest

from ch_sink.snapshot.values import micro_duration, zoned_time


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
