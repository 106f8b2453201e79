"""A key of a collapsing table has two live rows, nobody knows why: what is written next leaves one."""

import pytest

from ch_sink.clickhouse import Client
from tests.support.hand_commands import Hand, hand
from tests.support.hand_steps import repaired_from_source
from tests.support.hand_tables import COLLAPSING, insert, row, update

pytestmark = pytest.mark.integration


def doubled(client: Client, database: str, engine: str) -> Hand:
    last = update(row(1, "b"), row(1, "c"), 130)
    it = hand(client, database, engine, [insert(1, "a", 100), update(row(1, "a"), row(1, "b"), 110), last])
    it.read((0, 2))
    found = f"SELECT * REPLACE('x' AS v, _version - 1 AS _version) FROM {database}.t FINAL"
    client.command(f"INSERT INTO {database}.t {found}")
    assert it.view() != [(1, "b")]
    return it


@pytest.mark.parametrize("engine", COLLAPSING)
def test_the_next_change_leaves_one(client: Client, database: str, engine: str) -> None:
    it = doubled(client, database, engine)
    it.read((0, 3))
    assert it.view() == [(1, "c")]


@pytest.mark.parametrize("engine", COLLAPSING)
def test_a_repair_leaves_one(client: Client, database: str, engine: str) -> None:
    it = doubled(client, database, engine)
    repaired_from_source(it, (1, "bb"))
    it.feed.at = {0: 2}
    it.read((0, 3))
    assert it.view() == [(1, "c")]
