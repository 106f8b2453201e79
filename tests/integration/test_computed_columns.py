"""Columns that the server fills: a default where events state nothing, MATERIALIZED and ALIAS ones."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ch_sink.clickhouse import Client, detect, execute
from ch_sink.discovery.findings import _columns
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.table.checks import check_table
from ch_sink.table.views import view_of
from ch_sink.trust.repair import repaired
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.hand import APPEND, OWN, WINDOW, Event, mysql
from tests.support.hand_commands import Hand, records
from tests.support.hand_steps import lose
from tests.support.state_tables import create_statement
from tests.support.stream import Feed
from tests.unit.discovery.test_obstacles import config

pytestmark = pytest.mark.integration


def fed(client: Client, database: str, kind: str, columns: str, events: Sequence[Event]) -> Hand:
    """A stream of these events into a table of these columns beside ``id`` and ``v``; without a key if it appends."""
    clause, own = OWN.get(kind, APPEND)
    key = () if kind == "append" else ("id",)
    made = f"(id Int64, v Nullable(String), {columns}, {own})"
    client.command(f"CREATE TABLE {database}.t {made} ENGINE = {clause} ORDER BY id {WINDOW}")
    names = ("dead_letters", "handover", "pending", "columns")
    execute(client, [create_statement(n, database, f"ch_sink_{n}") for n in names])
    chosen = policy_of(on_bad_record="fail")
    table = detect(client, database, "t", chosen)
    client.command(view_of(table, key))
    return Hand(client, database, Feed(client, database, table, "hand", "t", chosen, {0: records(0, events)}), key=key)


def history(kind: str, **more: object) -> list[Event]:
    """Three rows; the first is deleted, the second changed."""
    key = (lambda n: None) if kind == "append" else (lambda n: {"id": n})
    rows = [{"id": n, "v": "a", **more} for n in (1, 2, 3)]
    events = [mysql("c", key(n), None, rows[n - 1], 100 + 10 * n) for n in (1, 2, 3)]
    return [*events, mysql("d", key(1), rows[0], None, 200), mysql("u", key(2), rows[1], rows[1] | {"v": "b"}, 210)]


@pytest.mark.parametrize(
    ("columns", "more"), [("w String DEFAULT toString(now64(9))", {}), ("w UUID DEFAULT generateUUIDv4()", {"w": None})]
)
def test_rows_without_a_key_cannot_have_a_value_of_the_moment(
    client: Client, database: str, columns: str, more: dict[str, None]
) -> None:
    """A delete would get another value, and not find its row; the statement that the error prints helps."""
    events = history("append", **more)
    it = fed(client, database, "append", columns, events)
    with pytest.raises(StreamFailed, match=r"no key and are found by all of their values, and .* state 'w'") as stop:
        it.read_all()
    assert it.view() == []
    found = check_table(it.subject.table, (), policy_of().changes, server=None, source_columns=["id", "v", *more])
    assert [f.level for f in found if f.title == "key"] == (["ok"] if more else ["warn"])
    if more:
        return
    statement = str(stop.value.hint).split(": ")[1].split("; then")[0]
    client.command(statement)
    it.feed.admin.looked = True
    it.read_all()
    client.command(f"DROP VIEW {database}.t_current")
    client.command(view_of(detect(client, database, "t", policy_of()), ()))
    assert it.view() == [(2, "b"), (3, "a")]
    assert it.verify() == (0, 0, 0)


def test_a_stated_value_may_have_such_a_default(client: Client, database: str) -> None:
    it = fed(client, database, "append", "w String DEFAULT toString(now64(9))", history("append", w="stated"))
    it.read((0, 5))
    assert it.view() == [(2, "b"), (3, "a")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["replacing", "collapsing", "append"])
def test_a_null_that_takes_a_computed_default_is_equal_to_itself(client: Client, database: str, kind: str) -> None:
    """The source has NULL, and the column says what is stored instead."""
    it = fed(client, database, kind, "w String DEFAULT concat('w', toString(id))", history(kind, w=None))
    it.read((0, 5))
    found = client.rows(f"SELECT id, v, w FROM {database}.t_current ORDER BY id")
    assert [tuple(row.values()) for row in found] == [(2, "b", "w2"), (3, "a", "w3")]
    assert it.verify() == (0, 0, 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["replacing", "append"])
@pytest.mark.parametrize("computed", ["w String ALIAS 'mine'", "w String MATERIALIZED toString(now64(9))"])
def test_a_column_of_the_source_that_the_table_computes_is_named(
    client: Client, database: str, kind: str, computed: str
) -> None:
    it = fed(client, database, kind, computed, history(kind, w="the source's"))
    it.read((0, 5))
    text = SourceType("string")
    number = Field("id", SourceType("int64", optional=False))
    schema = RowSchema((number, Field("v", text), Field("w", text)), () if kind == "append" else (number,))
    said = [f.detail for f in _columns(config(), client, it.subject.table, schema) if f.level == "warn"]
    assert said == ["the table computes w (MATERIALIZED or ALIAS): the source's values are not stored"]
    with verified(replace(it.subject, schema=schema), Options(patience=0)) as done:
        report = done.report
    assert (report.missing, report.extra, report.different, report.left_out) == (0, 0, 0, ("w",))
    if kind == "replacing":
        lose(it, 3)
        assert repaired(it.subject, Options(patience=0), apply=True).left == 0
        assert it.view() == [(2, "b"), (3, "a")]
