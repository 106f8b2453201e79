"""Columns come while a row's values are handed over to its new key."""

import pytest

from ch_sink.model.policy import policy_of
from tests.support.hand import PLACEHOLDER, key_change, postgres
from tests.support.memory_fed import MemoryFed


@pytest.mark.parametrize("engine", ["replacing", "sign", "versioned", "append"])
def test_a_column_is_added_between_the_halves_of_a_key_change(engine: str) -> None:
    fed = MemoryFed(engine, policy=policy_of(evolve="add_columns"))
    fed.feed(1, postgres("c", {"id": 1}, None, {"id": 1, "big": "value"}, 100, 90))
    create = postgres("c", {"id": 2}, None, {"id": 2, "big": PLACEHOLDER, "extra": 7}, 200, 190)
    halves = key_change(postgres("d", {"id": 1}, None, None, 200, 190), create)
    fed.feed(1, halves[0])
    fed.feed(0, halves[2])
    rows = fed.stream.table.current()
    assert [(r["id"], r["big"], r["extra"]) for r in rows] == [(2, b"value", 7)]
