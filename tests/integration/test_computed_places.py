"""Where a table keeps a row is computed: by columns that the server computes from others, or by an expression."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.testing import Killed
from tests.support.choose import each_value
from tests.support.hand import ENGINES, PLACEHOLDER, WINDOW, HandFed, Make, insert, key, mysql, postgres, row, update

pytestmark = pytest.mark.integration

LENGTH = "length(ifNull(v, ''))"


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
