"""A table that a command has filled is restored from a backup, or emptied: the stream stops, and `resync` fills it."""

from itertools import product

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust.resync import resynced
from tests.support.choose import each_value, some
from tests.support.hand import insert, row, update
from tests.support.hand_commands import MARKING, Hand, each_of, hand
from tests.support.hand_steps import EVENTS, LACKS, Rows, backup, empty, expect_refused, position, restore

pytestmark = pytest.mark.integration

ALL = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
PROVEN = (0, 1)
"""Whether the source tells which changes its rows show."""


def of_before_a_resync(client: Client, database: str, engine: str, proven: int) -> Hand:
    """The table of before a resync is restored; a change was read since the resync."""
    it = hand(client, database, engine, EVENTS[:4])
    it.read((0, 1), (0, 2))
    backup(it)
    it.read((0, 3), (0, 4))
    it.source = Rows(ALL[:4], proven and position(131))
    resynced(it.refill, apply=True)
    it.topic(EVENTS)
    it.read_all()
    assert it.view() == ALL
    restore(it)
    return it


@pytest.mark.parametrize(("engine", "proven"), each_value(MARKING, PROVEN))
def test_a_table_of_before_a_resync_stops_the_stream_until_another_resync(
    client: Client, database: str, engine: str, proven: int
) -> None:
    it = of_before_a_resync(client, database, engine, proven and position(131))
    stored = it.stored()
    expect_refused(it, LACKS, "resync CONFIG --apply`")
    assert it.stored() == stored
    it.source = Rows(ALL)
    resynced(it.refill, apply=True)
    it.topic([*EVENTS, update(row(1, "a"), row(1, "aa"), 150)])
    it.read_all()
    assert it.view() == [(1, "aa"), *ALL[1:]]
    it.source = Rows(it.view())
    assert it.verify() == it.verify_source() == (0, 0, 0)


@pytest.mark.parametrize(("engine", "proven"), some(product(MARKING, PROVEN), [("sign", 0)]))
def test_a_resync_over_unread_changes_and_a_table_of_before_it(
    client: Client, database: str, engine: str, proven: int
) -> None:
    """The stream read none of the changes behind the resync before the backup came."""
    it = hand(client, database, engine, EVENTS)
    it.read((0, 1), (0, 2))
    backup(it)
    it.read((0, 3), (0, 4))
    it.source = Rows(ALL[:4], proven and position(131))
    resynced(it.refill, apply=True)
    it.read_all()
    assert it.view() == ALL
    restore(it)
    expect_refused(it, LACKS, "resync CONFIG --apply`")


@each_of("engine", MARKING, "replacing")
def test_a_table_emptied_after_a_resync_against_the_topic(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, EVENTS)
    it.read((0, 2), (0, 5))
    for _ in range(2):
        resynced(it.refill, apply=True, against="topic")
        empty(it)
        expect_refused(it, LACKS, "resync CONFIG --apply`")
    resynced(it.refill, apply=True, against="topic")
    it.read_all()
    assert it.view() == ALL
    assert it.verify() == (0, 0, 0)


@pytest.mark.parametrize(("engine", "proven"), some(product(MARKING, PROVEN), [("replacing", 1)]))
def test_a_table_emptied_after_a_first_load_stops_the_stream(
    client: Client, database: str, engine: str, proven: int
) -> None:
    """What was loaded was never in the topic."""
    it = hand(client, database, engine, [insert(7, "x", 90)])
    it.source = Rows([*ALL[:2], (7, "x")], proven and position(115))
    resynced(it.refill, apply=True)
    it.topic([insert(7, "x", 90), insert(3, "c", 120), insert(4, "d", 130)])
    it.read_all()
    now = [*ALL[:4], (7, "x")]
    assert it.view() == now
    empty(it)
    expect_refused(it, LACKS, "resync CONFIG --apply`")
    assert it.view() == []
    it.source = Rows(now)
    resynced(it.refill, apply=True)
    it.read_all()
    assert it.view() == now
    assert it.verify_source() == (0, 0, 0)


@pytest.mark.parametrize("more", [{}, {"version_strategy": "kafka_offset"}], ids=["positions", "offsets"])
def test_a_table_emptied_after_a_first_load_that_no_change_followed(
    client: Client, database: str, more: dict[str, str]
) -> None:
    """Its rows have the lowest version."""
    it = hand(client, database, "replacing", [], **more)
    it.source = Rows(ALL)
    resynced(it.refill, apply=True)
    it.read_all()
    empty(it)
    expect_refused(it, LACKS, "resync CONFIG --apply`")


@each_of("partitions", [1, 2], 1)
def test_a_table_with_the_first_change_only_is_emptied(client: Client, database: str, partitions: int) -> None:
    it = hand(
        client, database, "replacing", [insert(6, "x", 10)], *[[]] * (partitions - 1), version_strategy="kafka_offset"
    )
    it.read((0, 1))
    resynced(it.refill, apply=True, against="topic")
    empty(it)
    expect_refused(it, LACKS, "resync CONFIG --apply`")
    resynced(it.refill, apply=True, against="topic")
    it.read_all()
    assert it.view() == [(6, "x")]
