"""Repairs from the source while the stream makes no progress: the next change of a row wins over the last of them."""

from collections.abc import Sequence
from itertools import product

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from tests.support.choose import some
from tests.support.hand import APPEND, ENGINES, OWN, PLACEHOLDER, Event, insert, key, key_change, postgres, row, update
from tests.support.hand_commands import TIMED, Hand, each_of, hand, made, timed
from tests.support.hand_steps import Rows, repaired_from_source

pytestmark = pytest.mark.integration

VALUES = ("b1", "b2", "b3", "b4")
KINDS = ("offsets", "narrow")
"""Of versions."""
CHANGES = [insert(1, "a", 10), insert(2, "b", 20), update(row(1, "a"), row(1, "z"), 20), insert(3, "q", 30)]
"""The third change has the position of the second: a transaction of which the stream has read the half."""
FIRST = [postgres("c", key(1), None, row(1, "a"), 5, 10), postgres("c", key(2), None, row(2, "b"), 5, 20)]
BELOW = [postgres("c", key(1), None, row(1, "a"), 5, 6)] * 40
"""More records than the positions of the next changes are high."""
LEAVING = key_change(
    postgres("d", key(1), row(1, None), None, 5, 30), postgres("c", key(5), None, row(5, PLACEHOLDER), 5, 30)
)
"""The next change of the transaction: row 1 gets the key 5, and its value is left out."""


def repaired_often(it: Hand, values: Sequence[str]) -> None:
    """Two changes are read; then the source has other values of row 1, one after the other."""
    it.read((0, 2))
    for value in values:
        repaired_from_source(it, (1, value), (2, "b"))
        assert it.verify_source() == (0, 0, 0)
    it.feed.at = {0: 2}


@pytest.mark.parametrize(("engine", "times"), some(product(ENGINES, [1, 2, 4]), [("replacing", 2), ("versioned", 4)]))
def test_the_next_change_wins(client: Client, database: str, engine: str, times: int) -> None:
    it = hand(client, database, engine, CHANGES)
    repaired_often(it, VALUES[:times])
    it.read((0, 4))
    assert it.view() == [(1, "z"), (2, "b"), (3, "q")]
    client.command(f"OPTIMIZE TABLE {database}.t FINAL")
    assert it.view() == [(1, "z"), (2, "b"), (3, "q")]


@each_of("engine", TIMED, "time-auto")
def test_the_next_change_wins_where_versions_are_no_positions(client: Client, database: str, engine: str) -> None:
    it = timed(client, database, engine, CHANGES)
    repaired_often(it, VALUES[:3])
    it.read((0, 4))
    assert it.view() == [(1, "z"), (2, "b"), (3, "q")]


@pytest.mark.parametrize(("engine", "times"), some(product(ENGINES, [1, 2]), [("sign", 1), ("collapsing", 2)]))
def test_the_next_change_wins_where_versions_are_narrow(client: Client, database: str, engine: str, times: int) -> None:
    events = [insert(1, "a", 10), insert(2, "b", 20), update(row(1, "a"), row(1, "z"), 30)]
    it = narrow(client, database, engine, events)
    repaired_often(it, VALUES[:times])
    it.read((0, 3))
    assert it.view() == [(1, "z"), (2, "b")]


@pytest.mark.parametrize("leaves", [False, True], ids=["partial", "leaves"])
def test_the_next_change_of_a_transaction_takes_values_of_a_repaired_history(
    client: Client, database: str, leaves: bool
) -> None:
    """The row of the last change is left alone, since the next one would not see what is written above it."""
    change = LEAVING if leaves else [postgres("u", key(1), None, row(1, PLACEHOLDER), 5, 30)]
    it = hand(client, database, "append", [*FIRST, *change])
    it.read((0, 2))
    it.source = Rows([(1, "b1"), (2, "b2")])
    done = repaired(it.subject, Options(patience=0, against="source"), apply=True)
    assert (done.rows, done.too_new) == (1, 1)
    assert it.view() == [(1, "b1"), (2, "b")]
    it.feed.at = {0: 2}
    it.read((0, 2 + len(change)))
    assert it.view() == ([(2, "b"), (5, "b1")] if leaves else [(1, "b1"), (2, "b")])


@pytest.mark.parametrize(
    ("engine", "cut", "times"),
    some(product(ENGINES, [3, 5], [0, 1, 2]), [("replacing", 3, 2), ("collapsing", 5, 1)]),
)
def test_a_row_that_changes_its_key_leaves_where_versions_are_narrow(
    client: Client, database: str, engine: str, cut: int, times: int
) -> None:
    it = narrow(client, database, engine, [*FIRST, *LEAVING])
    repaired_often(it, VALUES[:times])
    it.read((0, cut))
    it.read_all()
    assert it.view() == [(2, "b"), (5, ("a", *VALUES)[times])]


@each_of("times", [1, 3], 3)
def test_the_newest_row_leaves_its_place_in_the_sorting_key(client: Client, database: str, times: int) -> None:
    it = placed(client, database, "ORDER BY (id, v) PRIMARY KEY id", times)
    repaired_often(it, VALUES[:times])
    it.read((0, 4))
    assert it.view() == [(1, "z"), (2, "y")]


def test_a_row_that_moves_between_table_partitions_is_repaired_once(client: Client, database: str) -> None:
    """Across partitions, no insert counts as the later one: what leaves no room for a version is left alone."""
    it = placed(client, database, "PARTITION BY v ORDER BY id", 1)
    repaired_often(it, VALUES[:1])
    it.source = Rows([(1, "b2"), (2, "b")])
    done = repaired(it.subject, Options(patience=0, against="source"), apply=True)
    assert (done.rows, done.too_new) == (0, 1)
    assert it.view() == [(1, "b1"), (2, "b")]
    it.read((0, 4))
    assert it.view() == [(1, "z"), (2, "y")]


@each_of("engine", [*ENGINES, "append"], "sign", "versioned")
def test_the_first_change_after_a_first_load_wins(client: Client, database: str, engine: str) -> None:
    """The rows have the lowest version. Where a repair needs another one, none is left below the first change."""
    it = hand(client, database, engine, [], version_strategy="kafka_offset")
    it.source = Rows([(1, "a"), (2, "b")])
    resynced(it.refill, apply=True)
    for value in VALUES[:2]:
        it.source = Rows([(1, value), (2, "b")])
        done = repaired(it.subject, Options(patience=0, against="source"), apply=True)
        none_left = engine in ("versioned", "append")
        assert (done.rows, done.too_new) == ((0, 1) if none_left else (1, 0))
        assert it.view() == [(1, "a" if none_left else value), (2, "b")]
    it.topic([update(row(1, "b2"), row(1, "z"), 100), update(row(2, "b"), row(2, "y"), 110)])
    it.read_all()
    assert it.view() == [(1, "z"), (2, "y")]


@each_of("kind", KINDS, "narrow")
@each_of("engine", [*ENGINES, "append"], "collapsing")
def test_the_first_change_of_a_partition_wins(client: Client, database: str, engine: str, kind: str) -> None:
    """The repair brings a row whose changes go to a partition that has sent nothing."""
    first, other = [insert(1, "a", 100), insert(2, "b", 110)], [update(row(7, "q"), row(7, "z"), 130)]
    if kind == "narrow":
        it = narrow(client, database, engine, first, other)
    else:
        it = hand(client, database, engine, first, other, version_strategy="kafka_offset")
    it.topic(first, [])
    it.read_all()
    repaired_from_source(it, (1, "a"), (2, "b"), (7, "q"))
    it.topic(first, other)
    it.read_all()
    assert it.view() == [(1, "a"), (2, "b"), (7, "z")]


@pytest.mark.parametrize(
    ("engine", "kind", "command"),
    some(
        product([*ENGINES, "append"], KINDS, ["repair", "resync"]),
        [("replacing", "offsets", "repair"), ("versioned", "narrow", "resync")],
    ),
)
def test_the_first_change_of_a_partition_that_the_stream_has_not_begun_wins(
    client: Client, database: str, engine: str, kind: str, command: str
) -> None:
    """The ledger does not know the partition, and the source shows one of its changes."""
    first = [insert(1, "a", 100), insert(2, "b", 110), insert(3, "c", 120)]
    other = [insert(7, "q", 90), update(row(7, "q"), row(7, "z"), 130)]
    if kind == "narrow":
        it = narrow(client, database, engine, first, other)
    else:
        it = hand(client, database, engine, first, other, version_strategy="kafka_offset")
    it.read((0, 3))
    rows = [(1, "a"), (2, "b"), (3, "c"), (7, "q")]
    if command == "repair":
        repaired_from_source(it, *rows)
    else:
        it.source = Rows(rows)
        resynced(it.refill, apply=True)
    it.read_all()
    assert it.view() == [*rows[:3], (7, "z")]


@each_of("engine", [*ENGINES, "append"], "append")
def test_the_first_change_after_a_first_load_wins_if_its_position_is_below_the_offset(
    client: Client, database: str, engine: str
) -> None:
    it = hand(client, database, engine, BELOW)
    it.source = Rows([(1, "a"), (2, "b")])
    resynced(it.refill, apply=True)
    repaired_from_source(it, (1, "a2"), (2, "b"), (3, "c"))
    changes = [
        postgres("u", key(1), row(1, "a2"), row(1, "z"), 20, 20),
        postgres("u", key(3), row(3, "c"), row(3, "y"), 21, 21),
    ]
    it.topic([*BELOW, *changes])
    it.read_all()
    assert it.view() == [(1, "z"), (2, "b"), (3, "y")]


def test_a_first_change_that_comes_during_the_comparison_is_not_repaired_away(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", BELOW)
    it.source = Rows([(1, "a"), (2, "b")])
    resynced(it.refill, apply=True)

    def change() -> None:
        if len(it.feed.records[0]) == len(BELOW):
            it.topic([*BELOW, postgres("u", key(1), row(1, "a"), row(1, "z"), 20, 20)])
            it.read_all()

    it.source = Rows([(1, "a"), (2, "b")], then=change)
    done = repaired(it.subject, Options(patience=0, against="source"), apply=True)
    assert done.rows == 0
    assert it.view() == [(1, "z"), (2, "b")]


def narrow(client: Client, database: str, engine: str, *parts: Sequence[Event]) -> Hand:
    """A table whose versions have no room for positions: that of the next change is the one after the last."""
    clause, own = OWN.get(engine, APPEND)
    return made(client, database, (clause, own.replace("UInt128", "UInt64")), policy_of(on_bad_record="fail"), parts)


def placed(client: Client, database: str, order: str, times: int) -> Hand:
    """Row 1 is the newest one; its next change has the position of the last."""
    events = [
        insert(2, "b", 20),
        insert(1, "a", 30),
        update(row(1, VALUES[times - 1]), row(1, "z"), 30),
        update(row(2, "b"), row(2, "y"), 40),
    ]
    kind = OWN["replacing"]
    return made(client, database, kind, policy_of(on_bad_record="fail"), [events], order)
