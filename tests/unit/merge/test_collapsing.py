"""Rows of collapsing tables: the difference between what is stored and what is wanted."""

import pytest

from tests.support.hand import Event, mysql
from tests.support.small import Small, rows

both = pytest.mark.parametrize("engine", ["collapsing", "versioned"])


def row(id_: int, v: str, p: int = 0) -> dict[str, object]:
    return {"id": id_, "p": p, "v": v}


def insert(id_: int, v: str, pos: int, p: int = 0) -> Event:
    return mysql("c", {"id": id_}, None, row(id_, v, p), pos)


def update(id_: int, v: str, pos: int, p: int = 0) -> Event:
    return mysql("u", {"id": id_}, row(id_, "?", p), row(id_, v, p), pos)


def delete(id_: int, pos: int) -> Event:
    return mysql("d", {"id": id_}, row(id_, "?"), None, pos)


@both
def test_only_the_last_state_of_a_key_is_written(engine: str) -> None:
    merged = Small(engine).resolve(insert(1, "a", 100), update(1, "b", 200), update(1, "c", 300)).merged()
    assert rows(merged, "rows", "id", "v", "_sign") == [(1, "c", 1)]


@both
def test_a_row_that_comes_and_goes_within_a_chunk_is_never_written(engine: str) -> None:
    merged = Small(engine).resolve(insert(1, "a", 100), delete(1, 200)).merged()
    assert rows(merged, "rows", "id") == []


@both
def test_minus_rows_repeat_what_is_stored_and_stand_first(engine: str) -> None:
    small = Small(engine).store(insert(1, "a", 100), insert(2, "x", 110))
    stored = dict(zip([1, 2], (r["_version"] for r in small.table.rows), strict=True))
    merged = small.resolve(update(1, "b", 200), delete(2, 210), insert(3, "n", 220)).merged()
    found = rows(merged, "rows", "id", "v", "_sign")
    assert sorted(found[:2]) == [(1, "a", -1), (2, "x", -1)]
    assert sorted(found[2:]) == [(1, "b", 1), (3, "n", 1)]
    written = merged.steps[0][1].to_pylist()
    assert {r["id"]: r["_version"] for r in written if r["_sign"] < 0} == stored
    assert all(r["_version"] != stored.get(r["id"]) for r in written if r["_sign"] > 0)
    assert (merged.upserts, merged.deletes) == (2, 1)


@both
def test_what_is_stored_already_leaves_no_difference(engine: str) -> None:
    """A second attempt at the same chunk."""
    small = Small(engine).store(insert(1, "a", 100))
    events = [update(1, "b", 200), insert(2, "c", 210)]
    at = small.next
    small.store(*events)
    assert rows(small.resolve(*events, at=at).merged(), "rows", "id") == []


@both
def test_the_rest_of_a_difference_is_written(engine: str) -> None:
    """An attempt that stored one of two rows."""
    small = Small(engine).store(insert(1, "a", 100))
    at = small.next
    small.store(update(1, "b", 200))
    merged = small.resolve(update(1, "b", 200), insert(2, "c", 210), at=at).merged()
    assert rows(merged, "rows", "id", "v", "_sign") == [(2, "c", 1)]


@both
def test_surplus_rows_of_a_key_all_go(engine: str) -> None:
    small = Small(engine).store(insert(1, "a", 100)).store(insert(1, "b", 200))
    # Were both left stored, as another sink may have done it:
    small.table.put([{**r, "_sign": 1} for r in small.table.rows if r["_sign"] < 0])
    merged = small.resolve(update(1, "c", 300)).merged()
    assert sorted(rows(merged, "rows", "v", "_sign")) == [("a", -1), ("b", -1), ("c", 1)]


@both
def test_a_row_that_moves_is_at_its_new_place_before_it_leaves_the_old(engine: str) -> None:
    small = Small(engine, order=("id", "p")).store(insert(1, "a", 100, p=3), insert(2, "x", 110, p=3))
    merged = small.resolve(update(1, "b", 200, p=4), update(2, "y", 210, p=3)).merged()
    assert [name for name, _ in merged.steps] == ["rows", "leave"]
    assert sorted(rows(merged, "rows", "id", "p", "_sign")) == [(1, 4, 1), (2, 3, -1), (2, 3, 1)]
    assert rows(merged, "leave", "id", "p", "v", "_sign") == [(1, 3, "a", -1)]
    assert merged.moves == 1


@both
def test_a_key_that_is_not_stored_needs_no_minus_row(engine: str) -> None:
    merged = Small(engine).resolve(update(1, "b", 200), delete(2, 210)).merged()
    assert rows(merged, "rows", "id", "v", "_sign") == [(1, "b", 1)]


@both
def test_one_query_for_all_keys_of_a_chunk(engine: str) -> None:
    small = Small(engine)
    small.resolve(*(insert(i, "a", 100 + i) for i in range(50)))
    assert small.queries == 1
