"""The connector sends changes again of which one became a dead letter, after the table can hold it."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust.biography import Biography
from ch_sink.trust.one_key import life_of
from tests.support.hand import Event
from tests.support.hand_commands import MARKING, Hand, each_of
from tests.support.hand_letters import BIG, lettered, retried, widen
from tests.support.hand_tables import ENGINES, delete, insert, key, row, update

pytestmark = pytest.mark.integration

NEXT = insert(2, "b", 200, n=7)


def sent_again(client: Client, database: str, engine: str, *events: Event, later: tuple[Event, ...] = ()) -> Hand:
    """All of them twice, with ``later`` changes between."""
    it = lettered(client, database, engine, events)
    it.read((0, len(events)))
    widen(it)
    it.topic([*events, *later, *events, *later])
    it.read_all()
    return it


def rules(it: Hand) -> list[tuple[int, str]]:
    return [(e.offset, e.rule) for e in life_of(it.subject, it.own, Biography(key(1))).events]


@each_of("engine", ENGINES, "replacing", "versioned")
def test_a_row_that_was_deleted_since_stays_so(client: Client, database: str, engine: str) -> None:
    """A collapsing table has no trace of it that would win over the letter's change."""
    it = sent_again(client, database, engine, insert(1, "a", 100, n=BIG), delete(row(1, "a", n=7), 110), NEXT)
    assert it.view() == [(2, "b")]
    assert it.verify() == (0, 0, 0)
    assert retried(it).applied == []
    assert it.view() == [(2, "b")]


@each_of("engine", ENGINES, "collapsing")
def test_a_row_that_is_deleted_in_the_same_chunk_stays_so(client: Client, database: str, engine: str) -> None:
    gone = delete(row(1, "a", n=7), 300)
    it = sent_again(client, database, engine, insert(1, "a", 100, n=BIG), NEXT, later=(gone,))
    assert it.view() == [(2, "b")]


@each_of("engine", ENGINES, "versioned")
def test_a_row_that_was_there_before_the_letter(client: Client, database: str, engine: str) -> None:
    """Its earlier change comes again as well, behind the letter, and is not later than that."""
    events = insert(1, "a", 100, n=7), update(row(1, "a", n=7), row(1, "b", n=BIG), 110), NEXT
    it = lettered(client, database, engine, [*events, *events])
    it.read((0, 6))
    widen(it)
    it.topic([*events, *events, *events])
    it.read_all()
    assert it.view() == [(1, "b"), (2, "b")]


@each_of("engine", ENGINES, "replacing", "collapsing")
def test_explain_knows_the_change_that_was_applied_late(client: Client, database: str, engine: str) -> None:
    it = sent_again(client, database, engine, insert(1, "a", 100, n=BIG), NEXT)
    assert it.view() == [(1, "a"), (2, "b")]
    assert rules(it) == [(0, "dead letter"), (2, "newer")]
    if engine in MARKING:
        assert retried(it).superseded == [0]
        assert rules(it) == [(0, "superseded"), (2, "newer")]
