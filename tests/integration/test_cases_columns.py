"""The numbered case of schema changes inside a batch, on every engine."""

from dataclasses import replace

import pytest

from ch_sink.clickhouse import detect
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import ColumnPolicy, policy_of
from ch_sink.pipeline.target import Target
from tests.support.hand import (
    COLLAPSING,
    HandFed,
    Make,
    delete,
    each_collapsing,
    each_engine,
    insert,
    key,
    mysql,
    row,
    signs,
    update,
)

pytestmark = pytest.mark.integration

IGNORE = policy_of(truncate="apply", on_bad_record="fail", evolve="ignore")


@pytest.mark.sampled(4)
@each_engine
@pytest.mark.parametrize("cut", [1, 9])
def test_case_11_null_absent_and_default_are_three_things(make: Make, engine: str, cut: int) -> None:
    """Old and new shapes in one batch: what an old event does not have takes the column's default, as in the source."""
    fed = make(engine, more="a Nullable(String) DEFAULT 'dflt', b String DEFAULT 'b', c Nullable(Int32)")
    fed.feed(
        [
            insert(1, "old shape", 100),
            insert(2, "nulls", 110, a=None, b=None, c=None),
            insert(3, "values", 120, a="x", b="y", c=1),
            insert(4, "some", 130, b=""),
        ],
        cut=cut,
    )
    assert fed.view() == [
        (1, "old shape", "dflt", "b", None),
        (2, "nulls", None, "b", None),
        (3, "values", "x", "y", 1),
        (4, "some", "dflt", "", None),
    ]
    fed.feed([update(row(2, "nulls"), row(2, "now old"), 200), update(row(1, "?"), row(1, "now null", a=None), 210)])
    fed.feed([delete(row(3, "values"), 300), delete(row(4, "some"), 310)], cut=cut)
    assert fed.view() == [(1, "now null", None, "b", None), (2, "now old", "dflt", "b", None)]
    if engine in COLLAPSING:
        assert {total for _, total in signs(fed)} <= {0, 1}


@each_engine
def test_case_11_computed_columns_are_left_to_the_server(make: Make, engine: str) -> None:
    """The source has columns of these names too: what it says of them is what the table computes, or it is not said."""
    fed = make(engine, more="m String MATERIALIZED concat('m', toString(id)), a String ALIAS concat('a', toString(id))")
    fed.feed([insert(1, "x", 100, m="from the source", a="too"), insert(2, "y", 110)])
    fed.feed([update(row(1, "x"), row(1, "z", m="?", a="?"), 200), delete(row(2, "y"), 210)])
    assert fed.view() == [(1, "z")]
    assert fed.query("SELECT DISTINCT m, a FROM {t} FINAL WHERE id = 1") == [("m1", "a1")]


@each_engine
def test_case_11_a_renamed_column_stops_the_stream_behind_its_neighbours(make: Make, engine: str) -> None:
    """A rename is a column that comes and one that goes. Once the table has both, each event fills the one it has."""
    fed = make(engine)
    renamed = mysql("c", key(2), None, {"id": 2, "name": "b"}, 200)
    fed.feed([insert(1, "a", 100)])
    with pytest.raises(StreamFailed, match="'name'"):
        fed.feed([renamed])
    assert fed.view() == [(1, "a")]
    table = make_wider(fed, "name Nullable(String)")
    table.feed([insert(1, "a", 100), renamed, mysql("u", key(1), row(1, "a"), {"id": 1, "name": "c"}, 300)])
    assert table.view() == [(1, None, "c"), (2, None, "b")]


def make_wider(fed: HandFed, column: str) -> HandFed:
    """The same table with one more column, and a stream that begins again."""
    fed.client.command(f"TRUNCATE TABLE {fed.name}")
    fed.client.command(f"ALTER TABLE {fed.name} ADD COLUMN {column} AFTER v")
    fed.look_again()
    return fed


@each_engine
def test_case_11_letter_case_tells_columns_apart(make: Make, engine: str) -> None:
    fed = make(engine)
    with pytest.raises(StreamFailed, match="'V'"):
        fed.feed([mysql("c", key(1), None, {"id": 1, "V": "upper"}, 100)])
    both = make_wider(fed, "`V` Nullable(String)")
    both.feed([mysql("c", key(1), None, {"id": 1, "V": "upper", "v": "lower"}, 100)])
    assert both.view() == [(1, "lower", "upper")]


def test_case_11_an_unknown_column_is_left_out_when_told(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    fed = make("replacing", policy=IGNORE)
    fed.feed([insert(1, "a", 100), insert(2, "b", 110, extra="x")])
    assert fed.view() == [(1, "a"), (2, "b")]
    assert "column 'extra' is left out; to store it later, fill the table again" in caplog.text


@each_collapsing
@pytest.mark.parametrize(
    ("chosen", "kind"),
    [
        ({"exclude": ("n", "kind", "tags")}, "Nullable(Int64) DEFAULT 3"),
        ({"rename": (("n", "m"),), "exclude": ("kind", "tags")}, "Int64"),
    ],
)
def test_a_column_that_is_not_filled_for_a_while_cancels_as_it_was_stored(
    make: Make, engine: str, chosen: dict[str, tuple[object, ...]], kind: str
) -> None:
    more = f"n {kind}, m Nullable(Int64), kind LowCardinality(String) DEFAULT lower('K'), tags Array(String)"
    fed = make(engine, more=more, order="id, kind")

    def fill(columns: ColumnPolicy) -> None:
        fed.policy = replace(fed.policy, columns=columns)
        fed.table = detect(fed.client, fed.name.partition(".")[0], "t", fed.policy)
        fed.target = Target.of(fed.table, fed.policy)
        fed.restart()

    def whole(id_: int, v: str, n: int) -> dict[str, object]:
        return row(id_, v, n=n, kind="x", tags=["a"])

    def sums() -> list[tuple[object, ...]]:
        """What each row that was ever stored comes to."""
        return fed.query(
            "SELECT id, v, n, kind, tags, toInt64(sum(_sign)) AS times FROM {t} "
            "GROUP BY ALL HAVING times != 0 ORDER BY id"
        )

    fed.feed([mysql("c", key(i), None, whole(i, "a", i + 4), 100 + i) for i in (1, 2, 3)])
    fill(ColumnPolicy(**chosen))  # type: ignore[arg-type]
    default = 3 if "DEFAULT" in kind else 0
    fed.feed([mysql("u", key(1), whole(1, "a", 5), whole(1, "b", 6), 200), delete(whole(2, "a", 6), 210)])
    assert sums() == [(1, "b", default, "k", [], 1), (3, "a", 7, "x", ["a"], 1)]
    fill(ColumnPolicy())
    fed.feed([mysql("u", key(1), whole(1, "b", 6), whole(1, "c", 8), 300)])
    assert sums() == [(1, "c", 8, "x", ["a"], 1), (3, "a", 7, "x", ["a"], 1)]
    fill(ColumnPolicy(**chosen))  # type: ignore[arg-type]
    fed.feed([mysql("t", None, None, None, 400)])
    assert sums() == []
