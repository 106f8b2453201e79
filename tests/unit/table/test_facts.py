"""What years the server's dates hold: told by the server, and heeded from the bytes to the column."""

from dataclasses import replace

import pytest

from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.table.detect import DETECT_SQL, assemble
from ch_sink.table.facts import YEARS_SQL, years_of
from ch_sink.types.column import Column, Years
from tests.support.decoding import replacing
from tests.support.engine import Engine
from tests.support.one_column import records
from tests.unit.types.type_cases.case import Case, field

NARROW = Years((1900, 2299), (1900, 2299))


@pytest.mark.parametrize(
    ("shown", "years"),
    [
        (["0001-01-01", "9999-12-31", "0001-01-01 00:00:00.000", "9999-12-31 00:00:00.000"], Years()),
        (["1900-01-01", "2299-12-31", "1900-01-01 00:00:00.000", "2299-12-31 23:59:59.000"], NARROW),
        (
            ["1900-01-01", "2299-12-31", "0001-01-01 00:00:00.000", "9999-12-31 00:00:00.000"],
            Years((1900, 2299), (0, 9999)),
        ),
        (
            ["1925-01-01", "2283-11-11", "1925-01-01 00:00:00.000", "2283-11-11 23:59:59.000"],
            Years((1925, 2282), (1925, 2282)),
        ),
    ],
)
def test_years_are_what_the_server_shows(shown: list[str], years: Years) -> None:
    assert years_of(shown) == years


def test_the_engine_shows_the_years_that_it_holds() -> None:
    engine = Engine()
    try:
        years = years_of(engine.rows(f"SELECT {YEARS_SQL} AS years")[0]["years"])
        engine.run("CREATE DATABASE t")
        engine.run("CREATE TABLE t.x (id Int64, d Date32, v UInt64) ENGINE = ReplacingMergeTree(v) ORDER BY id")
        row = engine.rows(DETECT_SQL, {"database": "t", "table": "x"})[0]
        assert assemble(row, policy_of()).years == years
        for low, high in (years.date, years.time):
            assert 0 <= low <= 1970 <= high <= 9999
        (first, last), (begin, end) = years.date, years.time
        cells = engine.rows(
            f"SELECT toString(toDate32('{max(first, 1):04}-01-01')) AS a, toString(toDate32('{last}-12-31')) AS b, "
            f"toString(toDateTime64('{max(begin, 1):04}-01-01 00:00:00', 0, 'UTC')) AS c, "
            f"toString(toDateTime64('{end}-12-31 23:59:59', 0, 'UTC')) AS d"
        )[0]
        assert cells == {
            "a": f"{max(first, 1):04}-01-01",
            "b": f"{last}-12-31",
            "c": f"{max(begin, 1):04}-01-01 00:00:00",
            "d": f"{end}-12-31 23:59:59",
        }
    finally:
        engine.close()


def events(*days: int) -> Records:
    values = tuple((day, "") for day in days)
    return records(Case("", field("int32", "io.debezium.time.Date", optional=False), "", values), schema=True)


def test_a_date_beyond_the_servers_years_is_a_bad_record_among_good_ones() -> None:
    columns = (Column("id", "Int64"), Column("x", "Nullable(Date32)"))
    table = replacing(columns, ("id",))
    assert not Decoder(table, policy_of()).decode(events(0, -25_568, 120_530)).bad
    old = Decoder(replace(table, years=NARROW), policy_of()).decode(events(0, -25_568, 120_530))
    assert [(b.index, b.column, b.kind) for b in old.bad] == [(1, "x", "range"), (2, "x", "range")]
    assert old.after["x"].null_count == 0
    assert len(old) == 1


def test_init_makes_texts_of_dates_that_an_older_server_cannot_hold() -> None:
    sample = events(0, -25_568)
    wide, narrow = sample_schema(sample), sample_schema(sample, None, NARROW)
    assert not wide.fields[1].type.parameters
    assert dict(narrow.fields[1].type.parameters) == {"ch_sink.wide": "true"}
