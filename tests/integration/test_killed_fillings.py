"""A `resync`, also the first load of a table, is killed at each of its steps, or fails: a second run ends it."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import ClickHouseError, StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.trust import repair
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.successor import Successor
from ch_sink.trust.swap import Exchange
from tests.support.choose import some
from tests.support.hand import ENGINES, OWN, PLACEHOLDER, Event, delete, insert, key, key_change, postgres, row, update
from tests.support.hand_commands import MARKING, Hand, each_of, hand, made
from tests.support.hand_steps import (
    EVENTS,
    Rows,
    comment_of,
    empty,
    expect_refused,
    killed,
    left_tables,
    position,
)

pytestmark = pytest.mark.integration

UNKNOWN = "killed before it was recorded"
ALL = [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
LEFT = "t__ch_sink_next"
"""The former table, until it is dropped."""
STEPS: dict[str, type | None] = {
    "note": Successor,
    "take_place": Successor,
    "_enter": Exchange,
    "results": None,
    "unmark": Successor,
    "dropped": Successor,
}
"""Of a first load, in their order, and whose method it is; None for the ledger."""
UNPLACED, UNENTERED = ("note", "take_place"), ("_enter", "results")
X, C = insert(7, "x", 90), insert(3, "c", 120)
CHANGED = [X, C, update(row(3, "c"), row(3, "cc"), 130)]
LOADED = [(1, "a"), (3, "cc"), (7, "x")]


def of_which_the_stream_knows_nothing(client: Client, database: str, engine: str) -> Hand:
    """A resync shows changes that the stream has not read."""
    it = hand(client, database, engine, EVENTS[:4])
    it.read((0, 2))
    it.source = Rows(ALL, position(131))
    return it


def expect_as_if_nothing_had_happened(it: Hand) -> None:
    assert it.view() == ALL[:2]
    it.read_all()
    assert it.view() == ALL
    assert it.verify() == it.verify_source() == (0, 0, 0)


@pytest.mark.long
@each_of("engine", ENGINES, "collapsing")
def test_a_resync_that_fails_at_the_exchange(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = of_which_the_stream_knows_nothing(client, database, engine)

    def fails(*_: object) -> None:
        raise ClickHouseError("the exchange failed")

    with monkeypatch.context() as patched:
        patched.setattr(Successor, "take_place", fails)
        with pytest.raises(ClickHouseError, match="the exchange failed"):
            resynced(it.refill, apply=True)
    assert left_tables(it) == []
    expect_as_if_nothing_had_happened(it)


@each_of("engine", ENGINES, "sign")
def test_a_resync_that_is_killed_before_the_exchange(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = of_which_the_stream_knows_nothing(client, database, engine)
    with killed(monkeypatch, Successor, "take_place"):
        resynced(it.refill, apply=True)
    expect_as_if_nothing_had_happened(it)
    resynced(it.refill, apply=True)
    assert it.view() == ALL
    assert left_tables(it) == []


@pytest.mark.long
@each_of("engine", ENGINES, "replacing", "versioned")
def test_a_resync_that_is_killed_between_the_exchange_and_the_ledger(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = of_which_the_stream_knows_nothing(client, database, engine)
    client.command(f"ALTER TABLE {database}.t MODIFY COMMENT 'of the shop'")
    with killed(monkeypatch, it.feed.book, "record"):
        resynced(it.refill, apply=True)
    stored = it.stored()
    expect_refused(it, UNKNOWN, "resync CONFIG --apply`")
    with pytest.raises(StreamFailed, match=UNKNOWN):
        it.verify()
    with pytest.raises(StreamFailed, match=UNKNOWN):
        resynced(it.refill, apply=False)
    assert it.stored() == stored
    it.source = Rows(ALL, position(131))
    resynced(it.refill, apply=True)
    assert (comment_of(it), left_tables(it)) == ("of the shop", [])
    it.topic(EVENTS)
    it.read_all()
    assert it.view() == [*ALL, (5, "e")]
    it.source = Rows(it.view())
    assert it.verify() == it.verify_source() == (0, 0, 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("engine", "between", "proven"),
    some(product(ENGINES, ("resync", "job"), (0, 1)), [("replacing", "resync", 1), ("collapsing", "job", 0)]),
)
def test_a_resync_that_is_killed_before_the_ledger_knows_where_to_go_on(
    client: Client, database: str, engine: str, between: str, proven: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger knows of the new table by then, so the stream may go on: it reads a little again."""
    events = [*EVENTS[:3], update(row(1, "a"), row(1, "aa"), 130), delete(row(2, "b"), 140), insert(2, "bb", 150)]
    it = hand(client, database, engine, events)
    it.read((0, 2))
    it.source = Rows([(1, "aa"), (3, "c")], proven and position(145))
    with killed(monkeypatch, it.feed.book, "results"):
        resynced(it.refill, apply=True)
    now = [(1, "aa"), (2, "bb"), (3, "c")]
    assert left_tables(it) == [LEFT]
    assert "resolved" in comment_of(it)
    it.source = Rows(now)
    if between == "resync":
        resynced(it.refill, apply=True)
        assert (comment_of(it), left_tables(it)) == ("", [])
    it.read_all()
    assert it.view() == now
    assert it.verify() == it.verify_source() == (0, 0, 0)


def killed_first_load(client: Client, database: str, engine: str, step: str, monkeypatch: pytest.MonkeyPatch) -> Hand:
    """Changes come while the source is read, and more of them afterwards."""
    it = hand(client, database, engine, [X])
    it.source = Rows([(1, "a"), (7, "x")], position(115), then=lambda: it.topic([X, C]))
    with killed(monkeypatch, STEPS[step] or it.feed.book, step):
        resynced(it.refill, apply=True)
    it.topic(CHANGED)
    it.source = Rows(LOADED, position(115))
    return it


def expect_loaded(it: Hand) -> None:
    it.read_all()
    assert it.view() == LOADED
    assert (comment_of(it), left_tables(it)) == ("", [])
    it.source = Rows(LOADED)
    assert it.verify() == it.verify_source() == (0, 0, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "step"),
    some(product(ENGINES, STEPS), [("collapsing", "take_place"), ("replacing", "_enter")]),
)
def test_a_second_run_ends_a_killed_first_load(
    client: Client, database: str, engine: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = killed_first_load(client, database, engine, step, monkeypatch)
    assert resynced(it.refill, apply=True).applied
    expect_loaded(it)


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "step"),
    some(product(ENGINES, STEPS), [("versioned", "results"), ("replacing", "unmark")]),
)
def test_the_job_starts_after_a_killed_first_load(
    client: Client, database: str, engine: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = killed_first_load(client, database, engine, step, monkeypatch)
    if step in UNENTERED:
        expect_refused(it, UNKNOWN, "resync CONFIG --apply`")
        with pytest.raises(StreamFailed, match=UNKNOWN):
            it.verify()
        resynced(it.refill, apply=True)
        expect_loaded(it)
        return
    it.read_all()
    if step in UNPLACED:  # the stream has begun with the empty table
        assert it.view() == LOADED[1:]
        assert it.verify() == (0, 0, 0)
    assert resynced(it.refill, apply=True).applied
    expect_loaded(it)


@pytest.mark.long
def test_a_table_emptied_after_a_killed_first_load_is_filled_anew(
    client: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = killed_first_load(client, database, "replacing", "_enter", monkeypatch)
    empty(it)
    resynced(it.refill, apply=True)
    expect_loaded(it)


def test_a_dry_run_after_a_killed_first_load_is_refused_and_writes_nothing(
    client: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = killed_first_load(client, database, "replacing", "_enter", monkeypatch)
    book = it.feed.book._book
    before = replace(book, ranges=[*book.ranges], facts=[*book.facts], batches=[*book.batches])
    there = it.stored(), comment_of(it), left_tables(it)
    with pytest.raises(StreamFailed, match="before it was recorded"):
        resynced(it.refill, apply=False)
    assert book == before
    assert (it.stored(), comment_of(it), left_tables(it)) == there


def change(op: str, id_: int, after: dict[str, Any] | None, position: int) -> Event:
    return postgres(op, key(id_), None, after, position - 5, position)


FIRST = [change("c", 3, row(3, "x"), 100), change("c", 6, row(6, "y"), 200)]
MOVED = [
    change("d", 3, None, 300),
    *key_change(change("d", 6, None, 400), change("c", 3, row(3, PLACEHOLDER), 400)),
]
"""Row 6 takes the key of row 3, and its value is not in the event."""


def applied(client: Client, database: str, engine: str, later: list[Event]) -> Hand:
    policy = policy_of(on_bad_record="dead_letter", version_strategy="kafka_offset")
    it = made(client, database, OWN[engine], policy, [FIRST + later])
    it.read((0, 2))
    return it


@pytest.mark.sampled(1)
@each_of("engine", [*OWN], "replacing", "collapsing")
def test_a_new_table_that_would_lack_a_moved_row_is_not_exchanged(client: Client, database: str, engine: str) -> None:
    it = applied(client, database, engine, MOVED)
    it.source = Rows([(3, "y")])
    with pytest.raises(StreamFailed, match="the new table lacks 1 row: the change at offset 5 of partition 0"):
        resynced(it.refill, apply=True, against="source")
    assert it.view() == [(3, "x"), (6, "y")]
    it.read_all()
    resynced(it.refill, apply=True, against="source")
    assert it.view() == [(3, "y")]


def test_a_row_that_is_deleted_after_its_update_needs_no_value(client: Client, database: str) -> None:
    gone = [change("u", 3, row(3, PLACEHOLDER), 300), change("d", 3, None, 400)]
    it = applied(client, database, "replacing", gone)
    it.source = Rows([(6, "y")])
    resynced(it.refill, apply=True, against="source")
    it.read_all()
    assert it.view() == [(6, "y")]


FOUR = [insert(1, "a", 10), insert(2, "b", 20), insert(3, "c", 30), insert(4, "d", 40)]


@each_of("engine", MARKING, "replacing")
def test_a_repair_that_wrote_nothing_stops_no_stream(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = hand(client, database, engine, FOUR)
    it.read((0, 3))
    it.source = Rows([(1, "a"), (2, "z"), (3, "c")])
    with killed(monkeypatch, repair, "statements"):
        repaired(it.subject, Options(patience=0, against="source"), apply=True)
    it.read_all()
    assert it.view() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
