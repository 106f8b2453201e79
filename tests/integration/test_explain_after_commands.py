"""`explain` of a stream that has a history: repairs, dropped letters, swaps, added partitions, lost beginnings."""

from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import ColumnPolicy, policy_of
from ch_sink.trust.biography import Biography
from ch_sink.trust.one_key import erased, life_of
from tests.support.hand import Event, key_change, mysql, postgres
from tests.support.hand_commands import MARKING, Hand, each_of, hand, made, timed
from tests.support.hand_letters import BIG, lettered, mended, retried, widen
from tests.support.hand_steps import EVENTS, lose, repaired_from_source
from tests.support.hand_tables import COLLAPSING, ENGINES, OWN, delete, insert, key, row, update

pytestmark = pytest.mark.integration


def rules(it: Hand, id_: int = 1, **more: Any) -> list[tuple[int, str]]:
    return [(e.offset, e.rule) for e in life_of(it.subject, it.own, Biography({"id": id_, **more})).events]


def why(it: Hand, id_: int = 1) -> str:
    return life_of(it.subject, it.own, Biography(key(id_))).events[-1].why


@each_of("engine", ENGINES, "replacing", "collapsing")
def test_a_row_that_a_repair_wrote(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, EVENTS[:3])
    it.read((0, 3))
    repaired_from_source(it, (1, "lost"), (2, "b"))
    assert rules(it) == [(0, "repaired")]
    assert rules(it, 2) == [(1, "newer")]
    if engine in MARKING:
        assert rules(it, 3) == [(2, "repaired")]
    else:
        assert "the table has no row of the key" in why(it, 3)
    it.topic([*EVENTS[:3], update(row(1, "lost"), row(1, "after"), 900)])
    it.read((0, 4))
    assert rules(it) == [(0, "superseded"), (3, "newer")]


@each_of("engine", MARKING, "replacing")
def test_a_letter_that_was_dropped_decides_nothing(client: Client, database: str, engine: str) -> None:
    """The table was altered since, and can hold its value."""
    it = lettered(
        client, database, engine, [insert(1, "a", 100, n=7), update(row(1, "a", n=7), row(1, "b", n=BIG), 110)]
    )
    it.read_all()
    it.feed.letters_of.settle([(0, 1)], "dropped")
    widen(it)
    assert rules(it) == [(0, "newer"), (1, "dead letter")]
    assert why(it).endswith("it was dropped")
    it.read_all()
    letter = [x.letter for x in it.feed.letters_of.list(10, retried=True)]
    it.feed.letters_of.put(letter, "")
    assert retried(it).applied == [1]
    assert rules(it) == [(0, "superseded"), (1, "newer")]


@each_of("engine", ("time", "time-auto"), "time-auto")
def test_of_changes_of_one_time_the_last_is_newer(client: Client, database: str, engine: str) -> None:
    it = timed(client, database, engine, [insert(1, "a", 100), update(row(1, "a"), row(1, "b"), 110)])
    it.read((0, 2))
    assert it.view() == [(1, "b")]
    assert rules(it) == [(0, "superseded"), (1, "newer")]


@each_of("engine", ENGINES, "replacing", "collapsing")
def test_case_07_two_swapped_keys(client: Client, database: str, engine: str) -> None:
    """The delete of key 2's former row has a higher version than the row that key 2 has now."""
    halves = [
        (postgres("d", key(a), None, None, 500, at), postgres("c", key(b), None, row(b, v), 500, at))
        for a, b, v, at in ((1, 2, "one", 410), (2, 1, "two", 420))
    ]
    events = [postgres("c", key(i), None, row(i, v), 100, 90 + i) for i, v in ((1, "one"), (2, "two"))]
    events += [*key_change(*halves[0]), *key_change(*halves[1]), postgres("c", key(3), None, row(3, "c"), 900, 800)]
    it = hand(client, database, engine, events)
    it.read((0, 9))
    assert it.view() == [(1, "two"), (2, "one"), (3, "c")]
    assert rules(it) == [(0, "superseded"), (2, "handed over"), (7, "newer")]
    assert rules(it, 2) == [(1, "superseded"), (4, "newer"), (5, "handed over")]


@each_of("engine", ENGINES, "sign")
def test_a_key_that_moved_to_an_added_partition(client: Client, database: str, engine: str) -> None:
    """Kafka offsets order the changes: that of the former partition is higher, and older."""
    former = [*EVENTS[1:4], insert(1, "old", 200)]
    it = hand(client, database, engine, former, version_strategy="kafka_offset")
    it.read((0, 2), (0, 4))
    it.topic(former, [update(row(1, "old"), row(1, "new"), 210)])
    it.read((1, 1))
    assert [(e.partition, e.epoch, e.rule) for e in life_of(it.subject, it.own, Biography(key(1))).events] == [
        (0, 0, "superseded"), (1, 1, "newer"),
    ]  # fmt: skip


@pytest.mark.parametrize("strategy", ["auto", "kafka_offset"])
def test_a_key_that_moved_to_a_partition_whose_first_results_were_folded(
    client: Client, database: str, strategy: str
) -> None:
    former = [*EVENTS[1:4], insert(1, "old", 200)]
    it = hand(client, database, "replacing", former, version_strategy=strategy)
    it.feed.book.keep(2)
    it.read((0, 4))
    it.topic(former, [update(row(1, "old"), row(1, "new"), 210), *(insert(n, "x", 300 + n) for n in range(9, 22))])
    it.read(*((1, end) for end in range(1, 14)))
    assert [(e.partition, e.epoch, e.rule) for e in life_of(it.subject, it.own, Biography(key(1))).events] == [
        (0, 0, "superseded"), (1, 1, "newer"),
    ]  # fmt: skip


@each_of("engine", ENGINES, "replacing")
def test_a_topic_that_no_longer_shows_a_fail_over(client: Client, database: str, engine: str) -> None:
    moved = {"file": "mysql-bin.000001"}
    events = [insert(1, "a", 100), insert(2, "b", 50, **{}), update(row(1, "a"), row(1, "b"), 60)]
    events[1:] = [
        mysql("c", key(2), None, row(2, "b"), 50, **moved), mysql("u", key(1), row(1, "a"), row(1, "b"), 60, **moved)
    ]  # fmt: skip
    it = hand(client, database, engine, events)
    it.read((0, 2), (0, 3))
    it.feed.records = {0: it.feed.records[0].slice(2, 3)}
    assert rules(it) == [(2, "newer")]
    assert "the table" not in why(it)


@each_of("engine", (*MARKING, *COLLAPSING), "replacing")
def test_a_part_of_a_key_shows_each_key_by_itself(client: Client, database: str, engine: str) -> None:
    clause, own = OWN[engine]

    def event(op: str, part: int, v: str, pos: int) -> Event:
        return mysql(op, {"id": 1, "part": part}, None, row(1, v, part=part), pos)

    events = [event("c", 1, "a", 100), event("c", 2, "b", 110), event("u", 1, "aa", 120)]
    it = made(client, database, (clause, f"part Int64, {own}"), policy_of(), [events], "ORDER BY (id, part)")
    it.read((0, 3))
    assert rules(it) == [(0, "superseded"), (1, "newer"), (2, "newer")]
    assert rules(it, part=2) == [(1, "newer")]


@each_of("engine", ENGINES, "versioned")
def test_a_row_that_the_table_lost(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, [*EVENTS[:3], delete(row(3, "c"), 150)])
    it.read((0, 4))
    lose(it, 2, 3)
    assert "the table has no row of the key" in why(it, 2)
    assert why(it, 3) == "the highest version: the row is deleted"


@each_of("engine", ENGINES, "sign")
def test_a_key_of_which_no_record_can_be_read(client: Client, database: str, engine: str) -> None:
    """Its letters are shown, and go when it is erased."""
    poison = [Event(key(i), {**(insert(i, "a", 90).value or {}), "after": {"id": "none"}}) for i in (1, 2)]
    it = lettered(client, database, engine, [poison[0], insert(3, "a", 100, n=7), poison[1]])
    it.read((0, 3))
    assert it.feed.letters == 2
    assert rules(it) == [(0, "dead letter")]
    assert rules(it, 4) == []
    erased(it.subject, it.own, key(1), apply=True)
    assert [x.letter.offset for x in it.feed.letters_of.list(10)] == [2]


@each_of("engine", ENGINES, "replacing")
def test_a_key_with_an_added_column_of_which_no_record_can_be_read(client: Client, database: str, engine: str) -> None:
    clause, own = OWN[engine]
    added = ColumnPolicy(add=(("_from", "'a'"),), source=("_from",))
    policy = replace(policy_of(on_bad_record="dead_letter"), columns=added)
    poison = [Event(key(i), {**(insert(i, "a", 90).value or {}), "after": {"id": "none"}}) for i in (1, 2)]
    it = made(client, database, (clause, f"_from String, {own}"), policy, [poison], "ORDER BY (_from, id)")
    it.read((0, 2))
    assert rules(it, _from="a") == [(0, "dead letter")]
    assert rules(it, _from="b") == []
    subject = replace(it.subject, key=("_from", "id"))
    erased(subject, it.own, {"_from": "a", "id": 1}, apply=True)
    assert [x.letter.offset for x in it.feed.letters_of.list(10)] == [1]


@each_of("engine", ENGINES, "replacing", "collapsing")
def test_a_key_with_an_array(client: Client, database: str, engine: str) -> None:
    """PostgreSQL takes one; a letter whose row has a later change is superseded."""
    clause, own = OWN[engine]
    policy = policy_of(on_bad_record="dead_letter")

    def change(op: str, n: int, pos: int, *tags: int) -> Event:
        return mysql(op, {"id": 1, "tags": tags}, None, row(1, "a", tags=tags, n=n), pos)

    events = [change("c", 7, 100, 1, 2), change("c", 7, 110, 3), change("u", BIG, 120, 1, 2), change("u", BIG, 130, 3)]
    events.append(change("u", 8, 140, 1, 2))
    own = f"tags Array(Int64), n Nullable(UInt8), {own}"
    it = made(client, database, (clause, own), policy, [events], "ORDER BY (id, tags)")
    it.read((0, 5))
    widen(it)
    shown = [(0, "superseded"), (1, "newer"), (2, "dead letter"), (3, "dead letter"), (4, "newer")]
    assert rules(it) == shown
    if engine in MARKING:
        done = retried(it)
        assert (done.applied, done.superseded, done.failed) == ([3], [2], {})


@each_of("engine", ENGINES, "replacing")
def test_a_repaired_row_that_has_a_dead_letter(client: Client, database: str, engine: str) -> None:
    change = update(row(1, "a", n=7), row(1, "b", n=BIG), 110)
    it = lettered(client, database, engine, [insert(1, "a", 100, n=7), change, insert(2, "c", 120, n=7)])
    it.read((0, 3))
    mended(it, [(1, "x", 7), (2, "c", 7)])
    assert rules(it) == [(0, "repaired"), (1, "dead letter")]
