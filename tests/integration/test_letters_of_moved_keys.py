"""Dead letters whose rows have later changes under other bytes of the key, in another partition, or compacted away."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from tests.support.hand import Event, mysql
from tests.support.hand_commands import Hand, each_of, made
from tests.support.hand_letters import BIG, lettered, retried, widen
from tests.support.hand_tables import COLLAPSING, OWN, delete, insert, row, update

pytestmark = pytest.mark.integration

LETTER, GONE = insert(1, "a", 100, n=BIG), delete(row(1, "a", n=1), 110)
OTHERS = insert(2, "x", 50, n=1), insert(3, "z", 120, n=1)


def with_schema(event: Event) -> Event:
    fields = [{"type": "int64", "optional": False, "field": "id"}]
    return Event({"schema": {"type": "struct", "fields": fields, "optional": False}, "payload": event.key}, event.value)


def of_shard(event: Event, name: str) -> Event:
    return Event({**(event.key or {}), "shard": name}, event.value)


def sharded(client: Client, database: str, engine: str, events: Sequence[Event]) -> Hand:
    clause, own = OWN[engine]
    chosen = policy_of(ignored_key_fields=("shard",))
    return made(client, database, (clause, f"n Nullable(UInt8), {own}"), chosen, [events])


def read(it: Hand, *now: Any) -> None:
    it.read_all()
    assert (it.view(), it.feed.letters) == ([*now], 1)
    widen(it)


@each_of("engine", COLLAPSING, "collapsing")
def test_a_row_that_was_deleted_under_a_key_of_another_schema_stays_deleted(
    client: Client, database: str, engine: str
) -> None:
    it = lettered(client, database, engine, [OTHERS[0], LETTER, with_schema(GONE), OTHERS[1]])
    read(it, (2, "x"), (3, "z"))
    assert retried(it).superseded == [1]
    assert it.view() == [(2, "x"), (3, "z")]


@each_of("engine", COLLAPSING, "versioned")
def test_a_row_that_was_deleted_under_other_ignored_fields_stays_deleted(
    client: Client, database: str, engine: str
) -> None:
    events = [of_shard(OTHERS[0], "a"), of_shard(LETTER, "a"), of_shard(GONE, "b"), of_shard(OTHERS[1], "b")]
    it = sharded(client, database, engine, events)
    read(it, (2, "x"), (3, "z"))
    assert retried(it).superseded == [1]
    assert it.view() == [(2, "x"), (3, "z")]


@each_of("engine", COLLAPSING, "collapsing")
def test_a_letter_of_before_partitions_were_added_stays_open(client: Client, database: str, engine: str) -> None:
    """Its row may have moved; that of a letter from behind has not."""
    former = [OTHERS[0], LETTER]
    it = lettered(client, database, engine, former)
    it.read((0, 2))
    late = insert(4, "late", 140, n=BIG)
    it.topic(former, [GONE, OTHERS[1]])
    it.read((1, 2))
    it.topic([*former, insert(5, "y", 130, n=1), late], [GONE, OTHERS[1]])
    it.read((0, 3), (0, 4))
    assert it.view() == [(2, "x"), (3, "z"), (5, "y")]
    widen(it)
    done = retried(it)
    assert (done.applied, list(done.failed)) == ([3], [1])
    assert "got more partitions" in done.failed[1]
    assert it.view() == [(2, "x"), (3, "z"), (4, "late"), (5, "y")]


@pytest.mark.parametrize("kept", [500, 2])
@pytest.mark.parametrize("strategy", ["auto", "kafka_offset"])
def test_a_letter_of_the_first_batch_of_an_added_partition_wins_over_what_came_before_it(
    client: Client, database: str, strategy: str, kept: int
) -> None:
    """The epoch rose as that batch began; no state before the letter says so."""
    clause, own = OWN["replacing"]
    chosen = policy_of(on_bad_record="dead_letter", version_strategy=strategy)
    former = [insert(1, "a", 100, n=1)]
    it = made(client, database, (clause, f"n Nullable(UInt8), {own}"), chosen, [former])
    it.feed.book.keep(kept)
    it.read_all()
    added = [update(row(1, "a", n=1), row(1, "b", n=1), 110), update(row(1, "b", n=1), row(1, "c", n=BIG), 120)]
    added += [insert(n, "x", 200 + n, n=1) for n in range(2, 14)]
    it.topic(former, added)
    it.read(*((1, end) for end in range(2, 14)))
    widen(it)
    assert retried(it, 1).applied == [1]
    assert it.view()[0] == (1, "c")


@each_of("engine", COLLAPSING, "collapsing")
def test_a_letter_that_was_compacted_away_is_not_applied(client: Client, database: str, engine: str) -> None:
    """Its record went since its row was deleted later, and after a day that delete went as well."""
    events = [OTHERS[0], LETTER, GONE, OTHERS[1], insert(4, "late", 140, n=BIG)]
    it = lettered(client, database, engine, events)
    it.read_all()
    widen(it)
    it.feed.records = {0: it.feed.records[0].take(np.array([0, 3, 4]))}
    done = retried(it)
    assert (done.applied, done.superseded, list(done.failed)) == ([4], [], [1])
    assert "compacted" in done.failed[1]
    assert it.view() == [(2, "x"), (3, "z"), (4, "late")]


@each_of("engine", COLLAPSING, "collapsing")
def test_a_letter_of_before_a_truncate_is_settled_once(client: Client, database: str, engine: str) -> None:
    """A later record of its key, or a batch that has begun, says nothing more of it."""
    clause, own = OWN[engine]
    chosen = policy_of(on_bad_record="dead_letter", truncate="apply")
    events = [OTHERS[0], LETTER, mysql("t", None, None, None, 115), insert(1, "b", 130, n=1)]
    it = made(client, database, (clause, f"n Nullable(UInt8), {own}"), chosen, [events])
    read(it, (1, "b"))
    done = retried(it)
    assert (done.applied, done.superseded, done.failed) == ([], [1], {})
    assert it.view() == [(1, "b")]


@each_of("engine", COLLAPSING, "collapsing")
def test_another_open_letter_of_the_row_does_not_supersede_one(client: Client, database: str, engine: str) -> None:
    """It is not chosen (--kind), or comes with a later portion: its change is not in the table."""
    it = lettered(client, database, engine, [OTHERS[0], LETTER, update(row(1, "a", n=1), row(1, "b", n="?"), 110)])
    it.read_all()
    assert (it.view(), it.feed.letters) == ([(2, "x")], 2)
    widen(it)
    assert retried(it, only=1).applied == [1]
    assert it.view() == [(1, "a"), (2, "x")]
    done = retried(it)
    assert (done.applied, done.superseded, [*done.failed]) == ([], [], [2])
