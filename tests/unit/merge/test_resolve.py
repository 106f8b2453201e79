"""What events leave out, found in the chunk, in the table, or handed over; and how little is asked for it."""

import numpy as np
import pyarrow as pa
import pytest

from ch_sink.merge.resolved import Pool, factorize
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


@pytest.mark.parametrize(
    ("column", "want"),
    [
        (pa.array([3, 1, 3, 2]), [0, 1, 0, 2]),
        (pa.array([2**63 - 1, -(2**63), 2**63 - 1]), [0, 1, 0]),
        (pa.array([2**64 - 1, 0, 2**64 - 1], pa.uint64()), [0, 1, 0]),
        (pa.array([None, 0, None], pa.int64()), [0, 1, 0]),
        (pa.array([b"a", b"", None, b"a"], pa.binary()), [0, 1, 2, 0]),
        (pa.array(["é", "e\u0301", "é"]), [0, 1, 0]),
        (pa.array([float("nan"), 1.0, float("nan")]), [0, 1, 0]),
        (pa.array([b"0" * 16, b"1" * 16, b"0" * 16], pa.binary(16)), [0, 1, 0]),
        (pa.array([[1, 2], [1], [1, 2]]), [0, 1, 0]),
        (pa.chunked_array([[1, 2], [1]]), [0, 1, 0]),
    ],
    ids=str,
)
def test_equal_values_share_a_number(column: pa.Array, want: list[int]) -> None:
    found = factorize(pa.table({"k": column})).codes
    first: dict[int, int] = {}
    assert [first.setdefault(int(code), len(first)) for code in found] == want


def test_keys_of_several_columns_are_whole() -> None:
    """(1, 23) is not (12, 3), and many wide columns do not overflow."""
    keys = pa.table({"a": ["1", "12", "1"], "b": ["23", "3", "23"]})
    assert factorize(keys).codes.tolist() == [0, 1, 0]
    numbers = np.arange(1000) * (2**50 + 7)
    wide = pa.table({f"c{i}": numbers[(np.arange(1000) * (i + 3)) % 1000] for i in range(9)})
    assert factorize(wide).count == 1000


def test_the_first_row_of_each_key() -> None:
    coded = factorize(pa.table({"k": ["x", "y", "x", "z", "y"]}))
    assert sorted(coded.first().tolist()) == [0, 1, 3]
    assert coded.codes[coded.first()].tolist() == [0, 1, 2]


def test_no_rows_have_no_keys() -> None:
    coded = factorize(pa.table({"k": pa.array([], pa.string())}))
    assert (len(coded.codes), coded.count) == (0, 0)


def test_a_pool_gives_rows_of_all_segments_and_null_for_none() -> None:
    pool = Pool(pa.table({"v": [10, 11]}))
    start = pool.add(pa.table({"v": pa.array([20, 21], pa.int32())}))
    assert start == 2
    assert pool.take("v", np.array([3, -1, 0, 0])).to_pylist() == [21, None, 10, 10]
    assert pool.take("v", np.array([0, 1])).to_pylist() == [10, 11]
    assert pool.take("v", np.array([], dtype=np.int64)).to_pylist() == []
    third = pool.add(pa.table({"v": [30]}))
    assert pool.take("v", np.array([third, 1])).to_pylist() == [30, 11]
