"""What events leave out, found in the chunk, in the table, or handed over; and how little is asked for it."""

import pytest

from ch_sink.model.policy import policy_of
from tests.support.hand import PLACEHOLDER, Event, key_change, postgres
from tests.support.small import Small, rows

KEY, TWO = {"id": 1}, {"id": 2}


def row(v: str | None, id_: int = 1, p: int = 0) -> dict[str, object]:
    return {"id": id_, "p": p, "v": v}


def update(v: str | None, at: int, id_: int = 1) -> Event:
    return postgres("u", {"id": id_}, None, row(v, id_), at, at - 10)


def create(v: str | None, at: int, id_: int = 1) -> Event:
    return postgres("c", {"id": id_}, None, row(v, id_), at, at - 10)


def change_key(v: str, at: int) -> list[Event]:
    """Row 1 becomes row 2."""
    return key_change(postgres("d", KEY, None, None, at, at - 10), postgres("c", TWO, None, row(v, 2), at, at - 10))


def test_whole_images_ask_nothing() -> None:
    small = Small()
    step = small.resolve(create("a", 100), update("b", 200), postgres("d", KEY, None, None, 300, 290))
    assert (small.queries, len(step.out.handover), step.values("v")[:2]) == (0, 0, ["a", "b"])


def test_an_unavailable_value_comes_from_the_nearest_earlier_change() -> None:
    small = Small()
    step = small.resolve(create("big", 100), update(PLACEHOLDER, 200), update("new", 300), update(PLACEHOLDER, 400))
    assert step.values("v") == ["big", "big", "new", "new"]
    assert (small.queries, step.out.counts["filled"]) == (0, 2)


def test_an_unavailable_value_comes_from_the_table_by_one_query() -> None:
    small = Small().store(create("one", 100), create("two", 110, 2))
    step = small.resolve(update(PLACEHOLDER, 200), update(PLACEHOLDER, 210, 2), update(PLACEHOLDER, 220))
    assert step.values("v") == ["one", "two", "one"]
    assert small.queries == 1


def test_a_null_that_is_stored_is_the_value() -> None:
    step = Small().store(create(None, 100)).resolve(update(PLACEHOLDER, 200))
    assert step.values("v") == [None]
    assert step.out.bad == []


@pytest.mark.parametrize(("on_unresolved", "bad"), [("dead_letter", 1), ("null", 0)])
def test_a_value_known_nowhere_is_a_bad_record_or_null(on_unresolved: str, bad: int) -> None:
    step = Small(policy=policy_of(on_unresolved=on_unresolved)).resolve(update(PLACEHOLDER, 200), update("x", 210, 2))  # type: ignore[arg-type]
    assert [(b.kind, b.column) for b in step.out.bad] == [("unresolved", "v")] * bad
    assert step.values("v")[1] == "x"
    assert rows(step.merged(), "rows", "id", "v") == [(1, None)] * (1 - bad) + [(2, "x")]


def test_a_value_known_nowhere_is_forgiven_where_the_chunk_outdates_it() -> None:
    """A second attempt meets it where the row was deleted in the first."""
    step = Small().resolve(update(PLACEHOLDER, 200), postgres("d", KEY, None, None, 300, 290))
    assert step.out.bad == []
    assert step.out.counts["superseded"] == 1


def test_what_the_table_has_already_is_not_applied_again() -> None:
    small = Small().store(create("a", 100))
    at = small.next
    small.store(update(PLACEHOLDER, 200), update("b", 300))
    step = small.resolve(update(PLACEHOLDER, 200), update("b", 300), at=at)
    assert not step.out.apply.any()
    assert rows(step.merged(), "rows", "v") == []


def test_a_moved_row_takes_its_value_along() -> None:
    small = Small().store(create("big", 100))
    step = small.resolve(*change_key(PLACEHOLDER, 200))
    assert step.values("v") == ["big", "big"]
    [(identity, ref)] = step.out.handover
    assert identity.source == "pg"
    assert step.out.pool.take("v", step.out.image[:1] * 0 + ref).to_pylist() == [b"big"]


def test_the_value_is_that_of_the_moment_of_the_change() -> None:
    """By the time the create half is seen another row lives under the old key, here and in the table."""
    small = Small().store(create("big", 100))
    delete_half, tombstone, create_half = change_key(PLACEHOLDER, 200)
    step = small.resolve(delete_half, tombstone, create("someone else", 300), create_half)
    assert step.values("v")[-1] == "big"
    small.store(delete_half, tombstone, create("someone else", 300))
    assert small.resolve(create_half).values("v") == ["big"]


def test_a_create_half_that_comes_first_waits_and_later_changes_of_its_key_with_it() -> None:
    small = Small().store(create("big", 100))
    _, _, create_half = change_key(PLACEHOLDER, 200)
    step = small.resolve(create_half, update("later", 300, 2), update("other", 310, 3))
    assert step.out.pending == [0, 1]
    assert step.out.apply.tolist() == [False, False, True]


def test_changes_behind_a_waiting_one_wait_too() -> None:
    step = Small().resolve(update("x", 200), update("y", 210, 2), waiting={b'{"id": 1}': 0})
    assert step.out.pending == [0]
    assert rows(step.merged(), "rows", "id") == [(2,)]


def test_a_change_that_came_before_the_waiting_one_is_applied() -> None:
    """A second attempt at a chunk: only what stands behind the waiting record waits."""
    step = Small().resolve(create("x", 200), update("y", 210), waiting={b'{"id": 1}': 1})
    assert step.out.pending == [1]
    assert rows(step.merged(), "rows", "v") == [("x",)]


def test_two_keys_swapped_keep_each_its_new_row() -> None:
    small = Small().store(create("one", 100), create("two", 100, 2))
    first = key_change(postgres("d", KEY, None, None, 500, 410), postgres("c", TWO, None, row("one", 2), 500, 410))
    second = key_change(postgres("d", TWO, None, None, 500, 420), postgres("c", KEY, None, row("two"), 500, 420))
    step = small.resolve(*first, *second)
    assert step.out.counts["swapped"] == 1
    deleted = {id_ for id_, gone in rows(step.merged(), "rows", "id", "_is_deleted") if gone}
    assert deleted == {1}  # before its create; the delete of key 2's former owner is left out
    small.store(*first, *second)
    assert small.current() == {1: "two", 2: "one"}


def test_a_swap_over_a_chunks_end_is_remembered() -> None:
    small = Small().store(create("one", 100), create("two", 100, 2))
    first = key_change(postgres("d", KEY, None, None, 500, 410), postgres("c", TWO, None, row("one", 2), 500, 410))
    step = small.resolve(*first)
    assert step.out.doubled == {b'{"id": 2}': 410}
