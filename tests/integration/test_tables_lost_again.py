"""A table that lost rows, and loses rows again: what is missing is read again each time, and only then."""

from collections.abc import Sequence
from itertools import product

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust.resync import resynced
from tests.support.choose import some
from tests.support.hand import postgres
from tests.support.hand_commands import MARKING, each_of, hand
from tests.support.hand_steps import EVENTS, backup, empty, expect_nothing_read_again, lose, restore
from tests.support.hand_tables import delete, insert, key, row, update

pytestmark = pytest.mark.integration

FOUR = EVENTS[:4]
ALL = [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


@each_of("engine", MARKING, "replacing")
def test_a_table_is_lost_while_it_is_read_again(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, FOUR)
    it.read((0, 2), (0, 4))
    empty(it)
    it.feed.at = {0: 0}
    it.read((0, 2))
    assert it.view() == ALL[:2]
    empty(it)
    it.read_all()
    it.read_all()
    assert it.view() == ALL
    expect_nothing_read_again(it)


@pytest.mark.parametrize("emptied_before", [False, True])
@each_of("second", [(2, 3, 4), (1, 2, 3, 4), (3, 4)], (2, 3, 4))
def test_rows_are_lost_twice_after_a_resync_against_the_topic(
    client: Client, database: str, second: Sequence[int], emptied_before: bool
) -> None:
    it = hand(client, database, "replacing", FOUR)
    it.read((0, 1), (0, 2), (0, 4))
    if emptied_before:
        empty(it)
        it.read_all()
    resynced(it.refill, apply=True, against="topic")
    for lost in ((4,), second):
        lose(it, *lost)
        it.read_all()
        assert it.view() == ALL
    expect_nothing_read_again(it)


@pytest.mark.parametrize(
    ("engine", "then", "at"), some(product(MARKING, ("nothing", "resync"), (1, 2, 3)), [("replacing", "resync", 2)])
)
def test_a_table_is_emptied_restored_and_loses_rows_in_turn(
    client: Client, database: str, engine: str, then: str, at: int
) -> None:
    it = hand(client, database, engine, FOUR)
    it.read((0, 1))
    backup(it)
    it.read((0, 2), (0, 4))
    for _ in range(3):
        for take in (empty, restore):
            take(it)
            it.read_all()
            assert it.view() == ALL
        if then == "resync":
            resynced(it.refill, apply=True, against="topic")
        for lost in ((4,), tuple(range(at, 5))):
            lose(it, *lost)
            it.read_all()
            assert it.view() == ALL
        expect_nothing_read_again(it)


@each_of("engine", MARKING, "replacing")
def test_the_same_with_two_partitions(client: Client, database: str, engine: str) -> None:
    first = [insert(1, "a", 100), insert(2, "b", 110), update(row(1, "a"), row(1, "aa"), 900)]
    other = [insert(6, "x", 500), delete(row(6, "x"), 510), insert(7, "y", 520)]
    it = hand(client, database, engine, first, other)
    it.read((1, 3), (0, 2))
    backup(it)
    it.read((0, 3))
    whole = [(1, "aa"), (2, "b"), (7, "y")]
    for _ in range(2):
        restore(it)
        it.read_all()
        assert it.view() == whole
        expect_nothing_read_again(it)
        resynced(it.refill, apply=True, against="topic")
        for take in (empty, restore, lambda it: lose(it, 1), lambda it: lose(it, 1, 7)):
            take(it)
            it.read_all()
            assert it.view() == whole
        expect_nothing_read_again(it)


@pytest.mark.parametrize("partitions", [1, 2])
@each_of("engine", MARKING, "replacing")
def test_a_table_is_emptied_after_a_transaction_that_truncated_and_filled_it(
    client: Client, database: str, engine: str, partitions: int
) -> None:
    before = [postgres("c", key(1), None, row(1, "a"), 5, 10)]
    truncate = [postgres("t", None, None, None, 20, 21)]
    after = [postgres("c", key(i), None, row(i, "b"), 20, 20 + i) for i in (2, 3)]
    parts = [[*before, *truncate, *after]] if partitions == 1 else [[*before, *truncate], after]
    it = hand(client, database, engine, *parts, truncate="apply")
    it.read_all()
    expect_nothing_read_again(it)
    for _ in range(2):
        empty(it)
        it.read_all()
        assert it.view() == [(2, "b"), (3, "b")]
        expect_nothing_read_again(it)


@each_of("engine", MARKING, "replacing")
def test_a_truncate_that_emptied_the_table_is_no_loss(client: Client, database: str, engine: str) -> None:
    """The row was stored by the truncate's own transaction."""
    events = [postgres("c", key(1), None, row(1, "a"), 20, 10), postgres("t", None, None, None, 20, 21)]
    it = hand(client, database, engine, events, truncate="apply")
    it.read_all()
    assert it.view() == []
    empty(it)  # of marks too
    expect_nothing_read_again(it)
