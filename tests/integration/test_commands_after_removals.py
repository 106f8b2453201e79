"""Marks that were purged and keys that were erased, and what repairs, replays and emptied tables make of that."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.trust.erase import erased
from ch_sink.trust.purge import purged
from ch_sink.trust.replay import replayed
from ch_sink.trust.resync import resynced
from tests.support.hand_commands import MARKING, Hand, each_of, hand, timed
from tests.support.hand_steps import (
    EVENTS,
    Rows,
    backup,
    empty,
    expect_nothing_read_again,
    put_back,
    repaired_from_source,
    trim,
)
from tests.support.hand_tables import delete, insert, row, update

pytestmark = pytest.mark.integration


def expect_replays_above_the_repair_only(it: Hand, first: dict[int, int], end: dict[int, int]) -> None:
    before = it.view()
    with pytest.raises(StreamFailed, match="was repaired from the source when offset") as caught:
        replayed(it.subject, dict.fromkeys(end, 0), end)
    assert "--from" in str(caught.value.hint)
    assert it.view() == before
    replayed(it.subject, first, end)
    assert it.view() == before


@each_of("engine", MARKING, "replacing")
def test_a_replay_after_the_repair_of_a_row_whose_mark_was_purged(client: Client, database: str, engine: str) -> None:
    """Partition 0 is at a low position, which bounds the version of the row: its delete in partition 1 has a higher."""
    other = [insert(6, "x", 100), delete(row(6, "x"), 110), insert(7, "y", 120)]
    it = hand(client, database, engine, [insert(1, "a", 10)], other)
    it.read((0, 1), (1, 3))
    assert purged(it.subject, it.own, {0: 1, 1: 3}, apply=True, settle=0.0).rows
    assert [r for r in it.stored() if r[0] == 6] == []
    repaired_from_source(it, (1, "a"), (6, "again"), (7, "y"))
    expect_replays_above_the_repair_only(it, {0: 1, 1: 3}, {0: 1, 1: 3})


@each_of("engine", MARKING, "sign")
def test_a_repair_that_every_change_is_older_than_forbids_no_replay(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, [*EVENTS[:3], delete(row(2, "b"), 130)])
    it.read((0, 4))
    purged(it.subject, it.own, {0: 4}, apply=True, settle=0.0)
    repaired_from_source(it, (1, "a"), (2, "again"), (3, "cc"))
    replayed(it.subject, {0: 0}, {0: 4})
    assert it.view() == [(1, "a"), (2, "again"), (3, "cc")]


@each_of("engine", MARKING, "sign")
@pytest.mark.parametrize("now", [[(6, "z")], []], ids=["changed", "deleted"])
def test_a_replay_after_the_repair_of_a_row_that_had_lost_its_newest_change(
    client: Client, database: str, engine: str, now: list[tuple[int, str | None]]
) -> None:
    """The table had an older row than the topic says, and the source a third one."""
    other = [insert(6, "x", 100), update(row(6, "x"), row(6, "y"), 110), insert(7, "q", 120)]
    it = hand(client, database, engine, [insert(1, "a", 10)], other)
    it.read((0, 1), (1, 1))
    backup(it)
    it.read((1, 3))
    put_back(it, 6)
    repaired_from_source(it, (1, "a"), *now, (7, "q"))
    expect_replays_above_the_repair_only(it, {0: 1, 1: 3}, {0: 1, 1: 3})


@each_of("engine", MARKING, "replacing")
def test_a_replay_after_the_repair_of_a_row_that_came_back_in_the_only_partition(
    client: Client, database: str, engine: str
) -> None:
    it = hand(
        client, database, engine, [insert(6, "x", 100), update(row(6, "x"), row(6, "y"), 110), insert(7, "q", 120)]
    )
    it.read((0, 1))
    backup(it)
    it.read((0, 3))
    put_back(it, 6)
    repaired_from_source(it, (7, "q"))
    replayed(it.subject, {0: 0}, {0: 3})
    assert it.view() == [(7, "q")]
    it.topic([insert(6, "x", 100), update(row(6, "x"), row(6, "y"), 110), insert(7, "q", 120), insert(6, "new", 130)])
    it.feed.at = {0: 3}
    it.read_all()
    assert it.view() == [(6, "new"), (7, "q")]


@pytest.mark.parametrize("engine", ["time", "time-auto"])
def test_a_replay_after_a_repair_of_a_table_with_times_as_versions(client: Client, database: str, engine: str) -> None:
    """The source's rows have no times of their changes."""
    it = timed(client, database, engine, [*EVENTS[:3], delete(row(2, "b"), 130)])
    it.read((0, 2), (0, 4))
    repaired_from_source(it, (1, "a"), (2, "again"), (3, "c"))
    expect_replays_above_the_repair_only(it, {0: 4}, {0: 4})


@each_of("engine", MARKING, "replacing")
def test_an_emptied_table_is_noticed_after_the_newest_row_was_erased(
    client: Client, database: str, engine: str
) -> None:
    it = hand(client, database, engine, [*EVENTS, delete(row(5, "e"), 150)])
    it.read((0, 2), (0, 6))
    erased(it.subject, it.own, {"id": 5}, apply=True)
    it.read_all()  # the erasure alone is not taken for a loss
    before = it.view()
    assert before == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    empty(it)
    it.read_all()
    assert it.view() == before
    assert it.verify() == (0, 0, 0)


@each_of("engine", MARKING, "sign")
def test_an_erasure_right_after_a_filling(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, EVENTS)
    it.read((0, 2), (0, 5))
    resynced(it.refill, apply=True, against="topic")
    erased(it.subject, it.own, {"id": 5}, apply=True, live=True)
    it.read_all()
    assert it.view() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    empty(it)
    it.read_all()
    assert [r for r in it.view() if r[0] != 5] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


@each_of("engine", MARKING, "sign")
def test_what_the_topic_no_longer_holds_is_not_looked_for_at_every_start(
    client: Client, database: str, engine: str
) -> None:
    it = hand(client, database, engine, [*EVENTS, delete(row(5, "e"), 150)])
    it.read((0, 2), (0, 6))
    erased(it.subject, it.own, {"id": 5}, apply=True)
    trim(it, 6)
    empty(it)
    it.read_all()
    expect_nothing_read_again(it)
    assert it.view() == []


@each_of("engine", MARKING, "replacing")
def test_a_table_filled_after_an_erasure_is_not_compared_with_what_that_left(
    client: Client, database: str, engine: str
) -> None:
    it = hand(client, database, engine, [*EVENTS, delete(row(5, "e"), 150)])
    it.read((0, 2), (0, 6))
    erased(it.subject, it.own, {"id": 5}, apply=True)
    it.source = Rows([(1, "a")])
    resynced(it.refill, apply=True, against="source")
    it.read_all()
    assert it.view() == [(1, "a")]
