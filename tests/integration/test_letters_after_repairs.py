"""Dead letters whose change the table shows by then: by a repair, or because the connector sent it again."""

from typing import Any

import pytest

from ch_sink.clickhouse import Client
from tests.support.choose import some
from tests.support.hand import PLACEHOLDER, postgres
from tests.support.hand_commands import TIMED, each_of
from tests.support.hand_letters import BIG, KEYLESS, lettered, mended, retried, unkeyed, widen
from tests.support.hand_tables import COLLAPSING, ENGINES, delete, insert, key, row, update

pytestmark = pytest.mark.integration

FIRST, LAST = insert(1, "a", 100, n=7), insert(3, "c", 120, n=7)
CHANGE = update(row(1, "a", n=7), row(1, "b", n=BIG), 110, ts_ms=1_657_655_633_000)
GONE_ON = {"changed": [(1, "lost", 7), (3, "c", 7)], "deleted": [(3, "c", 7)]}
"""The source after a change that the connector lost."""
UNORDERED = (*COLLAPSING, "time", "time-auto", "insertion-sign")


@pytest.mark.parametrize(
    ("engine", "now"),
    some(
        [(engine, now) for engine in (*ENGINES, "append", *(set(TIMED) - {"insertion-plain"})) for now in GONE_ON],
        [("collapsing", "deleted"), ("time", "changed")],
    ),
)
def test_a_letter_does_not_undo_a_repair_from_the_source(client: Client, database: str, engine: str, now: str) -> None:
    it = lettered(client, database, engine, [FIRST, CHANGE, LAST])
    it.read_all()
    widen(it)
    mended(it, GONE_ON[now])
    done, right = retried(it), it.view()
    assert right == [r[:2] for r in GONE_ON[now]]
    if engine in UNORDERED:
        assert (done.applied, done.superseded, list(done.failed)) == ([], [], [1])
        assert "repaired after this change" in done.failed[1]


@pytest.mark.parametrize(
    ("engine", "now"),
    some(
        [(engine, now) for engine in (*ENGINES, "append", *(set(TIMED) - {"insertion-plain"})) for now in GONE_ON],
        [("replacing", "changed"), ("replacing", "deleted")],
    ),
)
def test_a_letter_does_not_undo_a_repair_whose_versions_are_those_of_a_slower_partition(
    client: Client, database: str, engine: str, now: str
) -> None:
    it = lettered(client, database, engine, [insert(9, "z", 10, n=7)], [FIRST, CHANGE, LAST])
    it.read_all()
    widen(it)
    rows: list[Any] = [*GONE_ON[now], (9, "z", 7)]
    mended(it, rows)
    done = retried(it, 1)
    assert it.view() == [r[:2] for r in rows]
    assert (done.applied, list(done.failed)) == ([], [1])


@each_of("engine", (*ENGINES, "append", *TIMED), "replacing", "collapsing")
def test_a_letter_of_a_row_that_no_repair_had_to_change_is_settled(client: Client, database: str, engine: str) -> None:
    """The repair wrote it, as the letter states it."""
    it = lettered(client, database, engine, [FIRST, insert(2, "b", 110, n=BIG), LAST])
    it.read_all()
    widen(it)
    rows: list[Any] = [(1, "a", 7), (2, "b", BIG), (3, "c", 7)]
    mended(it, rows)
    done = retried(it)
    assert (done.failed, len(done.applied) + len(done.superseded)) == ({}, 1)
    assert it.view() == [r[:2] for r in rows]


def test_a_letter_behind_a_repair_is_applied(client: Client, database: str) -> None:
    it = lettered(client, database, "collapsing", [FIRST, LAST, update(row(3, "c", n=7), row(3, "d", n=BIG), 130)])
    it.read((0, 2))
    mended(it, GONE_ON["changed"])
    it.read_all()
    widen(it)
    done = retried(it)
    assert (done.applied, done.failed) == ([2], {})
    assert it.view() == [(1, "lost"), (3, "d")]


@each_of("engine", ("time", "insertion-sign"), "insertion-sign")
def test_the_older_one_of_two_letters_does_not_undo_a_repair(client: Client, database: str, engine: str) -> None:
    """The newer one cannot be applied yet."""
    after: Any = {**row(1, "c"), "n": "what"}
    it = lettered(client, database, engine, [FIRST, CHANGE, update(row(1, "b", n=BIG), after, 115), LAST])
    it.read_all()
    widen(it)
    mended(it, [(1, "c", 7), (3, "c", 7)])
    assert set(retried(it).failed) == {1, 2}
    assert it.view() == [(1, "c"), (3, "c")]


@each_of("engine", ENGINES, "replacing")
def test_a_repair_brings_a_value_that_only_a_letter_states(client: Client, database: str, engine: str) -> None:
    """A later change leaves it out, and was applied without it."""
    events = [
        postgres("c", key(1), None, row(1, "a", n=7), 5, 10),
        postgres("u", key(1), None, row(1, "long", n=BIG), 15, 20),
        postgres("u", key(1), None, row(1, PLACEHOLDER, n=8), 25, 30),
    ]
    it = lettered(client, database, engine, events)
    it.read_all()
    widen(it)
    assert retried(it).superseded == [1]
    assert it.verify() == (0, 0, 1)
    mended(it, [(1, "long", 8)], "topic")


@each_of("against", ("source", "topic"), "source", "topic")
def test_a_row_without_a_key_is_not_counted_twice_by_repair_and_retry(
    client: Client, database: str, against: str
) -> None:
    it = lettered(client, database, KEYLESS, [FIRST, insert(2, "b", 110, n=BIG), LAST])
    it.read_all()
    widen(it)
    rows: list[Any] = [(1, "a", 7), (2, "b", BIG), (3, "c", 7)]
    mended(it, rows, against)
    done = retried(it)
    assert not done.applied or against == "topic"  # there the row has the version of the letter's change
    assert it.view() == [r[:2] for r in rows]


def test_an_update_without_a_key_is_not_counted_after_a_repair(client: Client, database: str) -> None:
    """The retry would leave the former row at −1, which hides the next one like it."""
    events = [insert(2, "b", 100, n=1), LAST, update(row(2, "b", n=1), row(2, "b", n=BIG), 130)]
    it = lettered(client, database, KEYLESS, events)
    it.read_all()
    widen(it)
    mended(it, [(2, "b", BIG), (3, "c", 7)])
    assert list(retried(it).failed) == [2]
    it.topic(unkeyed(*events, insert(2, "b", 140, n=1)))
    it.read_all()
    assert it.view() == [(2, "b"), (2, "b"), (3, "c")]


@pytest.mark.parametrize(
    "bad",
    [
        insert(2, None, 110, n=BIG),
        pytest.param(update(row(1, "a", n=7), row(2, "b", n=BIG), 110), marks=pytest.mark.long),
    ],
    ids=lambda e: e.value["op"],
)
def test_a_letter_without_a_key_that_was_delivered_again_is_not_counted_twice(
    client: Client, database: str, bad: Any
) -> None:
    events = [FIRST, bad, LAST]
    it = lettered(client, database, KEYLESS, events)
    it.read_all()
    widen(it)
    it.topic(unkeyed(*events, bad, LAST, insert(4, "d", 130, n=1)))
    it.read_all()
    before = it.stored()
    assert retried(it).applied == [1]
    assert it.stored() == before


def test_equal_letters_without_a_key_are_counted_each(client: Client, database: str) -> None:
    """A delete of one of them, too; a retry that was killed before it noted what it did is run again."""
    big = insert(2, "b", 110, n=BIG)
    it = lettered(client, database, KEYLESS, [FIRST, big, big, delete(row(2, "b", n=BIG), 115), LAST])
    it.read_all()
    widen(it)
    letters = it.feed.letters_of.list(10)
    assert retried(it).applied == [1, 2, 3]
    assert it.view() == [(1, "a"), (2, "b"), (3, "c")]
    it.feed.letters_of.put([x.letter for x in letters], "again")
    assert retried(it).applied == [1, 2, 3]
    assert it.view() == [(1, "a"), (2, "b"), (3, "c")]
