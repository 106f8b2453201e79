"""Dates and times of any year, against Python's own."""

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.types import OutOfRange
from ch_sink.types import calendar as civil
from ch_sink.types.column import Years
from ch_sink.types.connect import SourceType
from tests.unit.types.columns import make

EPOCH = datetime.datetime(1970, 1, 1)


def test_older_servers_hold_fewer_years() -> None:
    source = SourceType("int32", "io.debezium.time.Date")
    assert make(source, "Date32").convert([-25568]).clamped == 0
    for years in (Years((1900, 2299), (1900, 2299)), Years((1900, 2299), (0, 9999))):
        with pytest.raises(OutOfRange):
            make(source, "Date32", years=years).convert([-25568])
        assert make(source, "Date32", "clamp", years=years).convert([-25568, 120530]).clamped == 2
    stamp = SourceType("int64", "io.debezium.time.MicroTimestamp")
    early = [-2208988800000001]  # 1899-12-31 23:59:59.999999
    assert make(stamp, "DateTime64(6, 'UTC')", years=Years((1900, 2299), (0, 9999))).convert(early).clamped == 0
    with pytest.raises(OutOfRange):
        make(stamp, "DateTime64(6, 'UTC')", years=Years((1900, 2299), (1900, 2299))).convert(early)


@given(st.dates())
def test_calendar_equals_pythons(day: datetime.date) -> None:
    days = (day - EPOCH.date()).days
    assert civil.days_from_civil(day.year, day.month, day.day) == days
    assert civil.civil_from_days(days) == (day.year, day.month, day.day)
    assert civil.parse_date(civil.date_text(days)) == days == civil.parse_date(day.isoformat())


@given(st.integers(-(10**10), 10**10))
def test_days_round_trip_beyond_pythons_years(days: int) -> None:
    assert civil.days_from_civil(*civil.civil_from_days(days)) == days
    assert civil.parse_date(civil.date_text(days)) == days


@given(st.datetimes(timezones=st.timezones() | st.none()))
def test_iso_texts_equal_pythons(moment: datetime.datetime) -> None:
    zone = moment.tzinfo or datetime.UTC
    offset = (moment.utcoffset() or datetime.timedelta()) if moment.tzinfo else datetime.timedelta()
    assert zone is not None
    expected = (
        (moment.replace(tzinfo=None) - offset - EPOCH) // datetime.timedelta(microseconds=1)
        if _safe(moment, offset)
        else None
    )
    if expected is None or (offset.total_seconds() % 60):
        return
    text = moment.isoformat()
    assert civil.parse_instant(text, 6) == expected
    made = make(SourceType("string", "io.debezium.time.ZonedTimestamp"), "DateTime64(6, 'UTC')")
    assert made.convert([text]).array.cast("int64").to_pylist() == [expected]
    assert made.convert([text, "2024-01-01T00:00:00.0000001Z"]).array.cast("int64").to_pylist()[0] == expected


def _safe(moment: datetime.datetime, offset: datetime.timedelta) -> bool:
    try:
        moment.replace(tzinfo=None) - offset
    except OverflowError:
        return False
    return True


@given(ticks=st.lists(st.integers(-(10**15), 10**15), min_size=1), precision=st.integers(0, 9))
def test_finer_digits_of_a_moment_are_cut_towards_the_past(ticks: list[int], precision: int) -> None:
    source = SourceType("int64", "io.debezium.time.MicroTimestamp")
    converted = make(source, f"DateTime64({precision}, 'UTC')").convert(ticks).array
    unit = {"s": 10**6, "ms": 10**3, "us": 1}.get(converted.type.unit)
    step = 10 ** max(6 - precision, 0)
    found = [t * unit if unit else t // 1000 for t in converted.view(pa.int64()).to_pylist()]
    assert found == [t // step * step for t in ticks]
