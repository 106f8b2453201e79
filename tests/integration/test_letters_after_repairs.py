"""Dead letters whose change the table shows by then: by a repair, or because the connector sent it again."""

from typing import Any

import pytest

from ch_sink.clickhouse import Client
from tests.support.hand import ENGINES, PLACEHOLDER, insert, key, postgres, row, update
from tests.support.hand_commands import MARKING, each_of
from tests.support.hand_steps import BIG, lettered, mended, retried, widen

pytestmark = pytest.mark.integration

FIRST, LAST = insert(1, "a", 100, n=7), insert(3, "c", 120, n=7)
CHANGE = update(row(1, "a", n=7), row(1, "b", n=BIG), 110, ts_ms=1_657_655_633_000)
GONE_ON = {"changed": [(1, "lost", 7), (3, "c", 7)], "deleted": [(3, "c", 7)]}
"""The source after a change that the connector lost."""


@each_of("engine", MARKING, "replacing")
@pytest.mark.parametrize("now", GONE_ON)
def test_a_letter_does_not_undo_a_repair_whose_versions_are_those_of_a_slower_partition(
    client: Client, database: str, engine: str, now: str
) -> None:
    it = lettered(client, database, engine, [insert(9, "z", 10, n=7)], [FIRST, CHANGE, LAST])
    it.read_all()
    widen(it)
    rows: list[Any] = [*GONE_ON[now], (9, "z", 7)]
    mended(it, rows)
    done = retried(it, 1)
    assert it.view() == [r[:2] for r in rows]
    assert (done.applied, list(done.failed)) == ([], [1])


def test_a_letter_behind_a_repair_is_applied(client: Client, database: str) -> None:
    it = lettered(client, database, "replacing", [FIRST, LAST, update(row(3, "c", n=7), row(3, "d", n=BIG), 130)])
    it.read((0, 2))
    mended(it, GONE_ON["changed"])
    it.read_all()
    widen(it)
    done = retried(it)
    assert (done.applied, done.failed) == ([2], {})
    assert it.view() == [(1, "lost"), (3, "d")]


@each_of("engine", ENGINES, "replacing")
def test_a_repair_brings_a_value_that_only_a_letter_states(client: Client, database: str, engine: str) -> None:
    """A later change leaves it out, and was applied without it."""
    events = [
        postgres("c", key(1), None, row(1, "a", n=7), 5, 10),
        postgres("u", key(1), None, row(1, "long", n=BIG), 15, 20),
        postgres("u", key(1), None, row(1, PLACEHOLDER, n=8), 25, 30),
    ]
    it = lettered(client, database, engine, events)
    it.read_all()
    widen(it)
    if engine in MARKING:
        assert retried(it).superseded == [1]
    assert it.verify() == (0, 0, 1)
    mended(it, [(1, "long", 8)], "topic")
