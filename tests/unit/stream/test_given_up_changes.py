"""A change that became a dead letter comes again: it is applied then, at its own place in the order, and once."""

from typing import Any

import pytest

from ch_sink.testing import Kill
from tests.support.hand import PLACEHOLDER, Event, key_change, postgres
from tests.support.memory_fed import MemoryFed

ENGINES = ("replacing", "sign", "versioned", "append")


def row(key: int, big: str) -> dict[str, object]:
    return {"id": key, "big": big}


def change(op: str, key: int, big: str, at: int) -> Event:
    return postgres(op, {"id": key}, None, row(key, big), at, at - 10)


def given_up(engine: str) -> tuple[MemoryFed, list[Event]]:
    """Kafka Connect dies after the create half, and the deadline passes before it is back."""
    fed = MemoryFed(engine, deadline=0.0)
    fed.feed(1, change("c", 1, "one", 100))
    halves = key_change(postgres("d", {"id": 1}, None, None, 200, 190), change("c", 2, PLACEHOLDER, 200))
    fed.feed(0, halves[2])
    assert fed.letters == [(0, 0, "unresolved")]
    return fed, halves


def sent_again(fed: MemoryFed, halves: list[Event], *more: Event) -> None:
    fed.feed(1, halves[0], halves[1])
    fed.feed(0, halves[2], *more)


@pytest.mark.parametrize("engine", ENGINES)
def test_both_halves_of_a_key_change_come_again(engine: str) -> None:
    fed, halves = given_up(engine)
    sent_again(fed, halves)
    assert fed.view() == {2: "one"}


@pytest.mark.parametrize("engine", ENGINES)
def test_they_come_again_behind_later_changes(engine: str) -> None:
    """Of another key; these come again too, and are applied once."""
    fed, halves = given_up(engine)
    later = change("c", 3, "three", 300)
    fed.feed(0, later)
    sent_again(fed, halves, later)
    assert fed.view() == {2: "one", 3: "three"}
    counts = fed.stream.ledger.totals()[0].counts
    assert (counts["applied_late"], counts["redelivered"]) == (1, 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_later_change_of_its_row_stays(engine: str) -> None:
    fed, halves = given_up(engine)
    later = change("u", 2, "later", 300)
    fed.feed(0, later)
    sent_again(fed, halves, later, change("u", 3, "three", 400))
    assert fed.view() == {2: "later", 3: "three"}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_applied_late_counts_as_applied(engine: str) -> None:
    fed, halves = given_up(engine)
    fed.feed(0, change("c", 3, "three", 300))
    sent_again(fed, halves)
    gone: Any = postgres("d", {"id": 2}, None, None, 400, 390)
    fed.feed(0, gone)
    sent_again(fed, halves)
    assert fed.view() == {3: "three"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_attempt_at_a_chunk_does_not_count_its_own_dead_letters(engine: str) -> None:
    """Each attempt decides as the first one did: what repeats inside a chunk is skipped."""
    fed = MemoryFed(engine, partitions=1)
    lost = change("u", 2, PLACEHOLDER, 200)  # of a row that the table does not have
    fed.feed(0, lost, change("c", 1, "one", 300), lost, kills=[Kill("before results")])
    assert fed.view() == {1: "one"}
    assert fed.letters == [(0, 0, "unresolved")]
