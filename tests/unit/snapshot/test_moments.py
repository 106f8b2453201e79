"""Dates and moments at the edges of what databases hold, as recorded from their connectors."""

import pytest

from ch_sink.snapshot.values import days, moment, zoned
from ch_sink.types.calendar import days_from_civil, parse_instant


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
