"""Rows that change their place in the table: none keeps a row that has left it."""

from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import TableError
from ch_sink.model.policy import policy_of
from ch_sink.testing import Killed
from tests.support.choose import each_value
from tests.support.hand import (
    COLLAPSING,
    ENGINES,
    OWN,
    Event,
    Make,
    delete,
    each_engine,
    insert,
    key,
    mysql,
    postgres,
    row,
    update,
)
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


@each_engine
@pytest.mark.parametrize("after", [1, 2])
def test_no_place_keeps_a_row_that_has_left_it(make: Make, engine: str, after: int) -> None:
    """Row 2 leaves partition 2 first, so that row 1 leaves it in the first insert, and partition 1 in the next one."""
    fed = make(engine, more="p Int32", order="p, id", tail="PARTITION BY p")
    fed.feed([insert(1, "a", 100, p=1), insert(2, "b", 110, p=2)])
    start = fed.states[0]
    events = [
        postgres("u", key(2), None, row(2, "b", p=3), 10**15, 10**15),
        postgres("u", key(1), None, row(1, "c", p=2), 10**15, 10**15 + 1),
        postgres("u", key(1), None, row(1, "d", p=3), 10**15, 10**15 + 2),
    ]
    fed.kill_after = after
    with pytest.raises(Killed):
        fed.feed(events)
    fed.again(0, 2, 5, start)
    assert fed.view() == [(1, "d", 3), (2, "b", 3)]


A_MONTH_AGO = "ins Date DEFAULT today() - 40"
PLACES = {
    "sorting key": {"order": "ins, id"},
    "partition": {"tail": "PARTITION BY toYYYYMM(ins)"},
    "TTL": {"ttl": "TTL ins + INTERVAL 1 YEAR"},
}
WHOLE = [update(row(1, "a"), row(1, "b"), 200), mysql("d", key(2), row(2, "a"), None, 210)]
BY_KEY = [
    postgres("u", key(1), None, row(1, "b"), 10**15, 10**15),
    postgres("d", key(2), None, None, 10**15, 10**15 + 1),
]


@pytest.mark.parametrize(("engine", "place", "events"), each_value(ENGINES, PLACES, [WHOLE, BY_KEY]))
def test_a_later_update_and_delete_reach_the_row(make: Make, engine: str, place: str, events: list[object]) -> None:
    fed = make(engine, more=A_MONTH_AGO, **PLACES[place])
    fed.feed([insert(i, "a", 100 + i) for i in (1, 2, 3)])
    fed.client.command(f"ALTER TABLE {fed.name} MODIFY COLUMN ins Date DEFAULT today()")
    fed.feed(events)  # type: ignore[arg-type]
    assert [found[:2] for found in fed.view()] == [(1, "b"), (3, "a")]
    fed.merge()
    assert [found[:2] for found in fed.view()] == [(1, "b"), (3, "a")]


@pytest.mark.parametrize(
    ("engine", "expression"), each_value(ENGINES, ["today()", "toDate(now64(3))", "toDate(rand() % 9)"])
)
def test_a_table_that_sorts_by_a_column_which_no_insert_can_state_is_refused(
    make: Make, engine: str, expression: str
) -> None:
    with pytest.raises(TableError, match="'ins', which the server sets by each insert") as caught:
        make(engine, more=f"ins Date MATERIALIZED {expression}, month UInt32 DEFAULT toYYYYMM(ins)", order="month, id")
    assert "DEFAULT instead of MATERIALIZED" in str(caught.value.hint)


@pytest.mark.parametrize("engine", [*ENGINES, "append"])
def test_a_table_that_is_partitioned_by_one_is_refused_if_it_collapses(make: Make, engine: str) -> None:
    more, tail = "ins Date MATERIALIZED today()", "PARTITION BY toYYYYMM(ins)"
    if engine != COLLAPSING[0]:
        make(engine, more=more, tail=tail)
        return
    with pytest.raises(TableError, match="PARTITION BY"):
        make(engine, more=more, tail=tail)
