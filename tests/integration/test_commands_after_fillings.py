"""A table that a command has filled is restored from a backup, or emptied.

What the table lacks then is read again from the topic, where the topic has it; otherwise the stream stops.
"""

from itertools import product
from typing import Literal

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust.resync import resynced
from tests.support.choose import each_value, some
from tests.support.hand_commands import MARKING, Hand, each_of, hand
from tests.support.hand_steps import EVENTS, Rows, backup, empty, expect_refused, position, restore
from tests.support.hand_tables import insert, row, update

pytestmark = pytest.mark.integration

ALL = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
LACKS = "ClickHouse lacks rows that were loaded from the source"
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
def test_a_table_emptied_after_a_resync_against_the_topic_is_read_again(
    client: Client, database: str, engine: str
) -> None:
    it = hand(client, database, engine, EVENTS)
    it.read((0, 2), (0, 5))
    resynced(it.refill, apply=True, against="topic")
    empty(it)
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


@pytest.mark.parametrize(("engine", "proven"), some(product(MARKING, PROVEN), [("sign", 1)]))
def test_a_table_of_behind_a_resync_is_read_on_from_there(
    client: Client, database: str, engine: str, proven: int
) -> None:
    """The resync was for a delete that the topic lacks: key 3 is gone in the source."""
    it = hand(client, database, engine, EVENTS[:4])
    it.read((0, 2))
    it.read((0, 4))
    it.source = Rows([*ALL[:2], ALL[3]], proven and position(135))
    resynced(it.refill, apply=True)
    backup(it)
    it.topic(EVENTS)
    it.read_all()
    now = [*ALL[:2], *ALL[3:]]
    assert it.view() == now
    restore(it)
    it.read_all()
    assert it.view() == now
    it.source = Rows(now)
    assert it.verify() == it.verify_source() == (0, 0, 0)


@pytest.mark.parametrize(("engine", "proven"), some(product(MARKING, PROVEN), [("replacing", 0)]))
def test_a_table_of_behind_a_first_load_is_read_on_from_there(
    client: Client, database: str, engine: str, proven: int
) -> None:
    it = hand(client, database, engine, [insert(7, "x", 90)])
    it.source = Rows(ALL[:2], proven and position(115))
    resynced(it.refill, apply=True)
    backup(it)
    it.topic([insert(7, "x", 90), insert(3, "c", 120), update(row(1, "a"), row(1, "aa"), 130)])
    it.read_all()
    now = [(1, "aa"), *ALL[1:3]]
    assert it.view() == now
    restore(it)
    it.read_all()
    assert it.view() == now
    it.source = Rows(now)
    assert it.verify() == it.verify_source() == (0, 0, 0)


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
    it.read_all()
    assert it.view() == [(6, "x")]


@each_of("engine", MARKING, "replacing")
def test_a_table_that_was_filled_from_the_topic_is_emptied_again_and_again(
    client: Client, database: str, engine: str
) -> None:
    it = hand(client, database, engine, EVENTS[:2])
    it.read((0, 2))
    resynced(it.refill, apply=True, against="topic")
    for _ in range(3):
        empty(it)
        it.read_all()
        assert it.view() == ALL[:2]


@pytest.mark.parametrize(("engine", "against"), some(product(MARKING, ("topic", "source")), [("replacing", "topic")]))
def test_a_table_that_was_read_again_then_filled_is_emptied(
    client: Client, database: str, engine: str, against: Literal["topic", "source"]
) -> None:
    """That it was read again before says nothing about the new table."""
    it = hand(client, database, engine, EVENTS[:2])
    it.read((0, 2))
    empty(it)
    it.read_all()
    it.source = Rows(ALL[:3])
    resynced(it.refill, apply=True, against=against)
    it.read_all()
    empty(it)
    if against == "source":
        expect_refused(it, LACKS, "resync CONFIG --apply`")
    else:
        it.read_all()
        assert it.view() == ALL[:2]
