"""Changes that wait for a hand-over while the table's columns change: they wait on, and lose nothing."""

import pytest

from ch_sink.errors import StreamFailed
from tests.support.hand import PLACEHOLDER, postgres
from tests.support.waiting import BOTH, FIRST, Stream, change, row, waits_for_its_value


def test_a_change_waits_on_until_the_table_has_its_column_again() -> None:
    stream = Stream(BOTH)
    waits_for_its_value(stream)
    stream.alter(FIRST)
    stream.feed(1, change()[0])
    sink = stream.retry()
    assert (sink.waiting, stream.current()) == (1, [])
    assert [(c.name, c.clickhouse_type) for c in sink.lacking.columns] == [("extra", "Nullable(Int64)")]
    assert sink.lacking.key == ("id",)
    stream.alter(BOTH)
    sink = stream.retry()
    assert (sink.waiting, sink.lacking, stream.letters.stored) == (0, None, {})
    assert stream.current() == [{"id": 2, "big": "value", "extra": 7}]


def test_what_waits_in_front_of_the_lacking_column_waits_for_it_too() -> None:
    stream = Stream(FIRST)
    stream.feed(1, postgres("c", {"id": 1}, None, row(1, "value"), 100, 90))
    stream.feed(0, change()[2])
    stream.alter(BOTH)
    stream.feed(0, postgres("u", {"id": 2}, None, row(2, PLACEHOLDER, 8), 300, 290))
    stream.alter(FIRST)
    stream.feed(1, change()[0])
    sink = stream.retry()
    assert (sink.waiting, sink.lacking is None, stream.current()) == (2, False, [])
    stream.alter(BOTH)
    assert stream.retry().waiting == 0
    assert stream.current() == [{"id": 2, "big": "value", "extra": 8}]


def test_columns_that_were_ignored_when_a_change_began_to_wait_are_told_once_they_are_wanted() -> None:
    stream = Stream(FIRST, evolve="ignore")
    waits_for_its_value(stream)
    stream.feed(1, change()[0])
    stream.alter(FIRST, evolve="add_columns")
    sink = stream.retry()
    assert sink.lacking is not None
    assert (sink.waiting, [c.name for c in sink.lacking.columns]) == (1, ["extra"])


def test_a_change_that_waits_stops_a_stream_that_may_not_follow_the_source() -> None:
    stream = Stream(BOTH)
    waits_for_its_value(stream)
    stream.alter(FIRST, evolve="fail")
    stream.feed(1, change()[0])
    with pytest.raises(StreamFailed, match="'extra'"):
        stream.retry()
    assert stream.sinks[0].waiting == 1


def test_values_handed_over_before_a_column_came_fill_a_change_that_has_it() -> None:
    stream = Stream(FIRST)
    stream.feed(1, postgres("c", {"id": 1}, None, row(1, "value"), 100, 90), change()[0])
    stream.alter(BOTH)
    stream.feed(0, change(extra=7)[2])
    assert stream.current() == [{"id": 2, "big": "value", "extra": 7}]
