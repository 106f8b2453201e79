"""Where a table keeps a row depends on the time of its insert; later changes reach it nevertheless."""

import pytest

from ch_sink.errors import TableError
from tests.support.choose import each_value
from tests.support.hand import COLLAPSING, ENGINES, Make, insert, key, mysql, postgres, row, update

pytestmark = pytest.mark.integration

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
