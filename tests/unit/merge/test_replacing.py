"""Rows of a replacing table: upserts, delete rows, rows that leave their place."""

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.table.model import Engine, Family
from tests.support.hand import mysql, postgres
from tests.support.harness import ENGINES
from tests.support.small import Small, rows

KEY = {"id": 1}


def row(p: int, v: str | None, id_: int = 1) -> dict[str, object]:
    return {"id": id_, "p": p, "v": v}


def test_an_update_is_one_row_and_a_delete_another_with_the_last_values() -> None:
    step = Small().resolve(
        mysql("c", KEY, None, row(0, "a"), 100),
        mysql("u", KEY, row(0, "a"), row(0, "b"), 200),
        mysql("d", KEY, row(0, "b"), None, 300),
    )
    merged = step.merged()
    assert rows(merged, "rows", "id", "_is_deleted") == [(1, 0), (1, 0), (1, 1)]
    assert (merged.upserts, merged.deletes, merged.moves) == (2, 1, 0)
    versions = [int.from_bytes(v, "little") for v in merged.steps[0][1].column("_version").to_pylist()]
    assert versions == sorted(set(versions))


def test_the_key_comes_from_the_kafka_key() -> None:
    """A filler in the image is not trusted."""
    merged = Small().resolve(postgres("u", {"id": 7}, None, row(0, "a", id_=0), 100, 90)).merged()
    assert rows(merged, "rows", "id", "v") == [(7, "a")]


def test_a_sign_column_says_what_is_deleted() -> None:
    merged = Small("sign").resolve(
        mysql("c", KEY, None, row(0, "a"), 100), mysql("d", KEY, row(0, "a"), None, 200)
    ).merged()  # fmt: skip
    assert rows(merged, "rows", "id", "_sign") == [(1, 1), (1, -1)]


def test_a_row_that_moves_leaves_its_old_place_first() -> None:
    small = Small(order=("id", "p")).store(mysql("c", KEY, None, row(3, "a"), 100))
    merged = small.resolve(mysql("u", KEY, row(3, "a"), row(4, "b"), 200)).merged()
    assert [name for name, _ in merged.steps] == ["leave", "rows"]
    assert rows(merged, "leave", "id", "p", "v", "_is_deleted") == [(1, 3, "a", 1)]
    assert rows(merged, "rows", "id", "p", "v", "_is_deleted") == [(1, 4, "b", 0)]
    [old] = merged.steps[0][1].column("_version").to_pylist()
    [new] = merged.steps[1][1].column("_version").to_pylist()
    assert int.from_bytes(new, "little") - int.from_bytes(old, "little") == 1


def test_a_row_that_stays_leaves_nothing() -> None:
    merged = Small(order=("id", "p")).resolve(mysql("u", KEY, row(3, "a"), row(3, "b"), 200)).merged()
    assert rows(merged, "leave", "id") == []
    assert merged.moves == 0


def test_a_row_that_moves_there_and_back_leaves_both_places() -> None:
    small = Small(order=("id", "p")).store(mysql("c", KEY, None, row(3, "a"), 100))
    merged = small.resolve(
        mysql("u", KEY, row(3, "a"), row(4, "b"), 200), mysql("u", KEY, row(4, "b"), row(3, "c"), 300)
    ).merged()
    assert [name for name, _ in merged.steps] == ["leave", "leave again", "rows"]
    assert rows(merged, "leave", "p", "v") == [(3, "a")]
    assert rows(merged, "leave again", "p", "v") == [(4, "b")]
    assert rows(merged, "rows", "p", "v") == [(4, "b"), (3, "c")]
    assert merged.moves == 2


@pytest.mark.parametrize("before", [row(3, "a"), row(9, "elsewhere"), None])
def test_the_old_place_is_that_of_the_stored_row_whatever_the_event_says(before: dict[str, object] | None) -> None:
    small = Small(order=("id", "p")).store(mysql("c", KEY, None, row(3, "a"), 100))
    merged = small.resolve(mysql("u", KEY, before, row(4, "b"), 200)).merged()
    assert rows(merged, "leave", "id", "p", "v", "_is_deleted") == [(1, 3, "a", 1)]


def test_a_create_of_a_stored_row_moves_it() -> None:
    """Its delete may have become a dead letter."""
    small = Small(order=("id", "p")).store(mysql("c", KEY, None, row(3, "a"), 100))
    merged = small.resolve(mysql("c", KEY, None, row(4, "b"), 200)).merged()
    assert rows(merged, "leave", "p", "_is_deleted") == [(3, 1)]


def test_without_images_the_old_place_is_looked_up_once() -> None:
    small = Small(order=("id", "p")).store(postgres("c", KEY, None, row(3, "a"), 100, 90))
    small.queries = 0
    step = small.resolve(postgres("u", KEY, None, row(4, "b"), 200, 190), postgres("d", KEY, None, None, 300, 290))
    assert small.queries == 1
    assert rows(step.merged(), "leave", "p", "_is_deleted") == [(3, 1)]
    assert rows(step.merged(), "rows", "p", "_is_deleted") == [(4, 0), (4, 1)]


def test_a_delete_without_a_known_place_deletes_nothing() -> None:
    """A place is never filled with defaults."""
    step = Small(order=("id", "p")).resolve(postgres("d", KEY, row(0, None), None, 200, 190))
    assert rows(step.merged(), "rows", "id") == []
    assert step.out.counts["nothing_to_delete"] == 1


@pytest.fixture
def markless(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(ENGINES, "markless", Engine(Family.REPLACING, "ReplacingMergeTree", "_version"))
    return "markless"


def test_a_delete_that_cannot_be_stored_stops_or_is_left_out(markless: str) -> None:
    events = [mysql("c", KEY, None, row(0, "a"), 100), mysql("d", KEY, row(0, "a"), None, 200)]
    with pytest.raises(StreamFailed, match="offset 1 cannot be stored"):
        Small(markless).resolve(*events).merged()
    step = Small(markless, policy=policy_of(deletes="ignore")).resolve(*events)
    assert rows(step.merged(), "rows", "v") == [("a",)]
    assert step.out.counts["deletes_ignored"] == 1


def test_a_move_that_cannot_be_stored_stops(markless: str) -> None:
    small = Small(markless, order=("id", "p")).store(mysql("c", KEY, None, row(3, "a"), 100))
    step = small.resolve(mysql("u", KEY, row(3, "a"), row(4, "b"), 200))
    with pytest.raises(StreamFailed, match="changed its place"):
        step.merged()
