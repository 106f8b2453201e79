"""Rows whose move became a dead letter: later events state a place where the row never was."""

from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from tests.support.choose import each_value
from tests.support.hand import OWN, Event, delete, insert, row, update
from tests.support.hand_commands import Hand, made

pytestmark = pytest.mark.integration

LAST = {"update": (update(row(1, "b"), row(1, "c"), 300), [(1, "c")]), "delete": (delete(row(1, "b"), 300), [])}


def unreadable(client: Client, database: str, engine: str, last: Event, **policy: Any) -> Hand:
    """A row is created, moved by a record that cannot be read, and changed again."""
    chosen = policy_of(on_bad_record="dead_letter", **policy)
    events = [insert(1, "a", 100), update(row(1, "a"), row(1, "b"), 200), last]
    it = made(client, database, OWN[engine], chosen, [events], order="ORDER BY (id, v)")
    good = it.feed.records[0]
    it.feed.records[0] = replace(good, values=[good.values[0], b'{"broken', good.values[2]])
    it.feed.runner.ports.topics.partitions[0] = it.feed.records[0]
    return it


@pytest.mark.parametrize(("engine", "last"), each_value(["replacing", "sign"], sorted(LAST)))
def test_a_row_whose_move_is_a_dead_letter_leaves_its_place_with_the_next_change(
    client: Client, database: str, engine: str, last: str
) -> None:
    event, rows = LAST[last]
    it = unreadable(client, database, engine, event)
    it.read((0, 1), (0, 2))
    assert (it.view(), it.feed.letters) == ([(1, "a")], 1)
    it.read_all()
    assert it.view() == rows


def test_the_letter_may_be_in_the_chunk_of_the_next_change(client: Client, database: str) -> None:
    it = unreadable(client, database, "replacing", LAST["delete"][0])
    it.read((0, 1))
    it.read_all()
    assert it.view() == []


def test_before_images_are_trusted_where_the_configuration_says_so(client: Client, database: str) -> None:
    it = unreadable(client, database, "replacing", LAST["update"][0], stored_row="before")
    it.read_all()
    assert it.view() == [(1, "a"), (1, "c")]
