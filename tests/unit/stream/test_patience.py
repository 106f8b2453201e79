"""How long a stream waits for a server that is away, and what the log says of it."""

import logging
import math

import pytest

from ch_sink.errors import BrokerUnavailable, ClickHouseUnavailable
from ch_sink.stream.pace import Patience, Pauses
from ch_sink.stream.roster import Outages


def lower(low: float, _high: float) -> float:
    return low


def upper(_low: float, high: float) -> float:
    return high


def test_pauses_double_up_to_the_longest_and_vary_by_half():
    pauses = Pauses(1.0, 30.0, upper)
    assert [pauses.before(n) for n in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert Pauses(1.0, 30.0, lower).before(7) == 15
    assert {round(Pauses().before(9), 6) for _ in range(5)} != {15.0}
    assert pauses.before(100_000) == 30


def test_a_stream_gives_up_when_the_time_is_over_and_not_before():
    patience, now, tries = Patience(100.0, Pauses(1.0, 30.0, upper)), 5.0, 0
    while patience.failed(now):
        assert now < patience.due <= 105.0
        now, tries = patience.due, tries + 1
    assert (now, tries) == (105.0, 8)


def test_each_failure_in_a_row_counts_from_the_first():
    patience = Patience(10.0, Pauses(1.0, 1.0, upper))
    assert patience.failed(0.0)
    assert patience.failed(9.0)
    patience.reset()
    assert patience.failed(50.0)
    assert not patience.failed(60.0)


def test_unlimited_patience_never_ends():
    patience = Patience(math.inf)
    assert all(patience.failed(now) for now in (0.0, 1e9, 1e12))
    assert patience.due <= 1e12 + 30


def test_no_patience_stops_at_the_first_failure():
    assert not Patience(0.0).failed(3.0)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_an_outage_is_three_kinds_of_lines_however_many_streams_wait(caplog):
    caplog.set_level(logging.INFO, "ch_sink")
    outages, away = Outages(), ClickHouseUnavailable("ClickHouse does not answer")
    for second in range(0, 150, 5):
        for n in range(200):
            outages.waits(f"s{n}", away, float(second))
        outages.remind(float(second))
    assert lines(caplog) == [
        "s0 waits: ClickHouse does not answer",
        "200 streams waiting for 60 s: ClickHouse does not answer",
        "200 streams waiting for 2 min: ClickHouse does not answer",
    ]
    for n in range(200):
        outages.over(f"s{n}", 150.0)
    assert lines(caplog) == ["s199 goes on after 2 min"]
    outages.remind(1000.0)
    assert lines(caplog) == []


def test_another_server_is_another_outage(caplog):
    caplog.set_level(logging.INFO, "ch_sink")
    outages = Outages()
    outages.waits("a", ClickHouseUnavailable("ClickHouse is away"), 0.0)
    outages.waits("a", BrokerUnavailable("Kafka is away"), 5.0)
    outages.over("a", 9.0)
    assert lines(caplog) == ["a waits: ClickHouse is away", "a waits: Kafka is away", "a goes on after 4 s"]
