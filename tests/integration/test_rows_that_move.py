"""Rows that change their place in the table: none keeps a row that has left it."""

from dataclasses import replace

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import TableError
from ch_sink.model.policy import policy_of
from tests.support.choose import each_value
from tests.support.hand import (
    COLLAPSING,
    ENGINES,
    OWN,
    PLACEHOLDER,
    WINDOW,
    Event,
    HandFed,
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
from tests.support.kills import Killed

pytestmark = pytest.mark.integration

LAST = {"update": (update(row(1, "b"), row(1, "c"), 300), [(1, "c")]), "delete": (delete(row(1, "b"), 300), [])}


def unreadable(client: Client, database: str, engine: str, last: Event) -> Hand:
    """A row is created, moved by a record that cannot be read, and changed again."""
    chosen = policy_of(on_bad_record="dead_letter")
    events = [insert(1, "a", 100), update(row(1, "a"), row(1, "b"), 200), last]
    it = made(client, database, OWN[engine], chosen, [events], order="ORDER BY (id, v)")
    good = it.feed.records[0]
    it.feed.records[0] = replace(good, values=[good.values[0], b'{"broken', good.values[2]])
    it.feed.runner.ports.topics.partitions[0] = it.feed.records[0]
    return it


@pytest.mark.sampled(1)
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


@pytest.mark.sampled(1)
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


@pytest.mark.sampled(2)
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


LENGTH = "length(ifNull(v, ''))"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("engine", "kind", "layout"),
    each_value(
        ENGINES,
        ["MATERIALIZED", "DEFAULT"],
        [{"order": "id, w"}, {"tail": "PARTITION BY w % 2"}, {"order": "id, twice"}],
    ),
)
def test_a_row_leaves_a_place_that_is_computed_from_its_values(
    make: Make, engine: str, kind: str, layout: dict[str, str]
) -> None:
    """Events state what they change, as with REPLICA IDENTITY DEFAULT."""
    more = f"w UInt64 {kind} {LENGTH}, twice UInt64 MATERIALIZED w * 2"
    fed = make(engine, more=more, **layout)
    fed.feed([insert(i, "a", 100 + i) for i in (1, 2, 3)])
    fed.feed([postgres("u", key(1), None, row(1, "longer"), 10**15, 10**15)])
    fed.feed([postgres("d", key(2), row(2, None), None, 10**15, 10**15 + 1)])
    live = [(1, "longer"), (3, "a")]
    assert [found[:2] for found in fed.view()] == live
    fed.merge()
    assert [found[:2] for found in fed.view()] == live


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("order", "tail"),
    [
        ("id", "PARTITION BY intDiv(p, 10)"),
        ("id", "PARTITION BY toString(intDiv(p, 10))"),
        ("intDiv(p, 10), id", ""),
        ("id, tens", ""),
        ("id", "PARTITION BY tens"),
    ],
)
def test_an_update_of_a_row_that_stays_in_its_place_outlives_any_merge(make: Make, order: str, tail: str) -> None:
    """The server merges the small parts of an update with each other first, without the large one of the former row."""
    fed = make("collapsing", more="p Int32, tens Int32 DEFAULT intDiv(p, 10)", order=order, tail=tail)
    fed.feed([insert(1, "a", 100, p=1)])
    fed.client.command(
        f"INSERT INTO {fed.name} (id, v, p, _sign, _version) SELECT number + 10, 'x', 1, 1, 1 FROM numbers(300000)"
    )
    fed.merge()
    fed.feed([update(row(1, "a", p=1), row(1, "b", p=2), 200)])
    fed.client.command(f"OPTIMIZE TABLE {fed.name}")
    assert fed.query("SELECT v, p FROM {t}_current WHERE id = 1") == [("b", 2)]


def test_an_update_of_a_row_with_a_null_that_is_stored_as_the_default_outlives_any_merge(make: Make) -> None:
    """The null is that of a column of the sorting key, which cannot hold one."""
    fed = make("collapsing", more="p Int32", order="id, p", policy=policy_of(evolve="ignore", on_bad_record="fail"))
    fed.feed([insert(1, "a", 100, p=None)])
    fed.client.command(
        f"INSERT INTO {fed.name} (id, v, p, _sign, _version) SELECT number + 10, 'x', 1, 1, 1 FROM numbers(300000)"
    )
    fed.merge()
    fed.feed([update(row(1, "a", p=None), row(1, "b", p=None), 200)])
    fed.client.command(f"OPTIMIZE TABLE {fed.name}")
    assert fed.query("SELECT v, p FROM {t}_current WHERE id = 1") == [("b", 0)]


def test_a_key_column_with_a_default_does_not_change_with_others(
    client: Client, database: str, own_tables: str
) -> None:
    """Events state it: the row stays where it is, also in a table that can mark no row as deleted."""
    columns = "id Int64, r String DEFAULT lower(c), c String, n UInt64 MATERIALIZED length(r), _version UInt128"
    ddl = f"({columns}) ENGINE = ReplacingMergeTree(_version) PARTITION BY n ORDER BY (id, r) {WINDOW}"
    fed = HandFed(client, database, own_tables, ddl, ("id", "r"))
    key, before, after = {"id": 1, "r": "x"}, {"id": 1, "r": "x", "c": "X"}, {"id": 1, "r": "x", "c": "YY"}
    fed.feed([mysql("c", key, None, before, 100)])
    fed.feed([mysql("u", key, before, after, 200)])
    assert fed.view() == [(1, "x", "YY")]


def test_a_row_that_leaves_its_partition_keeps_its_values_beside_one_that_the_client_cannot_place(make: Make) -> None:
    """The other row leaves by its sorting key, from a day that the client leaves to the server."""
    days = {"1960": -3600, "January": 18262, "February": 18293, "March": 18322}
    fed = make("collapsing", more="s Int64, d Date32", order="s, id", tail="PARTITION BY toStartOfMonth(d)")
    fed.feed([insert(1, "a", 100, s=1, d=days["1960"]), insert(2, "long", 110, s=1, d=days["February"])])
    start = fed.states[0]
    events = [
        postgres("u", key(1), None, row(1, "b", s=2, d=days["January"]), 10**15, 10**15),
        postgres("u", key(2), None, row(2, PLACEHOLDER, s=1, d=days["March"]), 10**15, 10**15 + 1),
    ]
    fed.kill_after = 1
    with pytest.raises(Killed):
        fed.feed(events)
    fed.again(0, 2, 4, start)
    assert fed.query("SELECT id, v FROM {t}_current ORDER BY id") == [(1, "b"), (2, "long")]
