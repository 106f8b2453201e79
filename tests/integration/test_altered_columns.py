"""Columns that are altered under rows which are found by all of their values: nothing of the source is missed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client, detect, execute, run_statement
from ch_sink.discovery.init_plan import InitPlan, plan_init
from ch_sink.discovery.look import Sampled
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.table.views import view_of
from ch_sink.trust.resync import resynced
from ch_sink.trust.successor import Successor
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.hand import APPEND, OWN, WINDOW, Event, mysql
from tests.support.hand_commands import Hand, records
from tests.support.state_tables import create_statement
from tests.support.stream import Feed
from tests.unit.discovery.test_obstacles import config

pytestmark = pytest.mark.integration

ROWS: Sequence[dict[str, Any]] = ({"id": 1, "v": 0.1}, {"id": 2, "v": None}, {"id": 3, "v": 0.5})
EVENTS = [mysql("c", None, None, row, 100 + 10 * place) for place, row in enumerate(ROWS)]
DELETES = [mysql("d", None, row, None, 200 + 10 * place) for place, row in enumerate(ROWS)]
ID, V = Field("id", SourceType("int64", optional=False)), Field("v", SourceType("float64"))
SCHEMA = RowSchema((ID, V), ())


def alone(
    client: Client, database: str, kind: str, events: Sequence[Event] = EVENTS, *, keyed: bool = False, **policy: Any
) -> Hand:
    """A stream without keys into a table that was made by hand, with a column v of this kind."""
    clause, own = OWN["collapsing"] if keyed else APPEND
    key = ("id",) if keyed else ()
    client.command(f"CREATE TABLE {database}.t (id Int64, v {kind}, {own}) ENGINE = {clause} ORDER BY id {WINDOW}")
    names = ("dead_letters", "handover", "pending", "columns")
    execute(client, [create_statement(n, database, f"ch_sink_{n}") for n in names])
    chosen = policy_of(on_bad_record="fail", **policy)
    table = detect(client, database, "t", chosen)
    client.command(view_of(table, key))
    return Hand(client, database, Feed(client, database, table, "hand", "t", chosen, {0: records(0, events)}), key=key)


def planned(it: Hand) -> InitPlan:
    place = {"url": it.client.settings.url, "database": it.database, "table": "t"}
    return plan_init(config(clickhouse=place, engine="append"), Sampled(SCHEMA, 5), it.client)


def refill(it: Hand, alter: str, deleted: int = 0) -> None:
    """The column is altered by hand; the stream stops, and goes on once it was done as it says."""
    it.client.command(alter)
    with pytest.raises(
        StreamFailed, match=r"'v' as Nullable.Float32., and the column is Nullable.Float64. now"
    ) as stop:
        it.read_all()
    assert stop.value.hint == "Fill the table again with `ch_sink resync CONFIG --against topic --apply`."
    resynced(it.refill, apply=True, against="topic")
    it.read_all()
    assert it.view() == [(1, 0.1), (2, None), (3, 0.5)][deleted:]
    it.topic([*EVENTS, *DELETES])
    it.read_all()
    assert it.view() == []


def test_deletes_find_the_rows_of_a_column_that_was_altered(client: Client, database: str) -> None:
    it = alone(client, database, "Nullable(Float32)")
    it.read_all()
    refill(it, f"ALTER TABLE {database}.t MODIFY COLUMN v Nullable(Float64)")


def test_a_resync_that_is_killed_leaves_the_stream_stopped(
    client: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = alone(client, database, "Nullable(Float32)")
    it.read_all()
    client.command(f"ALTER TABLE {database}.t MODIFY COLUMN v Nullable(Float64)")
    with monkeypatch.context() as patch:
        patch.setattr(Successor, "take_place", _killed)
        with pytest.raises(KeyboardInterrupt):
            resynced(it.refill, apply=True, against="topic")
    for _ in range(2):
        with pytest.raises(StreamFailed, match="with 'v' as "):
            it.read_all()


def test_a_table_that_is_altered_right_after_a_resync_stops_its_stream(client: Client, database: str) -> None:
    it = alone(client, database, "Nullable(Float32)")
    it.read_all()
    resynced(it.refill, apply=True, against="topic")
    client.command(f"ALTER TABLE {database}.t MODIFY COLUMN v Nullable(Float64)")
    with pytest.raises(StreamFailed, match="with 'v' as "):
        it.read_all()


@pytest.mark.long
def test_init_leaves_columns_of_such_rows_as_they_are_and_says_how_to_change_them(
    client: Client, database: str
) -> None:
    it = alone(client, database, "Nullable(Float32)")
    alter = f"ALTER TABLE `{database}`.`t` MODIFY COLUMN `v` Nullable(Float64)"
    assert alter in [statement.sql for statement in planned(it).statements]
    it.read_all()
    plan = planned(it)
    assert not [s for s in plan.statements if "MODIFY COLUMN" in s.sql or "COMMENT COLUMN" in s.sql]
    (note,) = [note for note in plan.notes if "found by all of their values" in note]
    assert (alter in note, "`ch_sink resync CONFIG --against topic --apply`" in note) == (True, True)
    for statement in plan.statements:
        run_statement(client, statement)
    it.topic([*EVENTS, *DELETES[:1]])
    it.read_all()
    assert [row[0] for row in it.view()] == [2, 3]
    refill(it, alter, 1)


def test_init_may_change_a_table_without_rows_after_its_stream_has_begun(client: Client, database: str) -> None:
    it = alone(client, database, "Nullable(Float32)", ())
    it.read_all()
    for statement in planned(it).statements:
        run_statement(client, statement)
    it.topic(EVENTS)
    it.read_all()
    assert it.view() == [(1, 0.1), (2, None), (3, 0.5)]


@pytest.mark.long
@pytest.mark.parametrize("keyed", [False, True])
def test_a_time_that_is_widened_to_text_is_that_of_later_changes_once_the_table_is_filled(
    client: Client, database: str, keyed: bool
) -> None:
    row, stated = {"id": 1, "v": 1_700_000_000_120_000}, "debezium: int64 io.debezium.time.MicroTimestamp"
    key = {"id": 1} if keyed else None
    created = mysql("c", key, None, row, 100)
    it = alone(
        client,
        database,
        f"Nullable(DateTime64(6, 'UTC')) COMMENT '{stated}'",
        [created],
        keyed=keyed,
    )
    it.read_all()
    wide = stated + ' {"parameters":{"ch_sink.wide":"true"}}'
    client.command(f"ALTER TABLE {database}.t MODIFY COLUMN v Nullable(String) COMMENT '{wide}'")
    if not keyed:
        with pytest.raises(StreamFailed, match="with 'v' as "):
            it.read_all()
    resynced(it.refill, apply=True, against="topic")
    it.read_all()
    assert it.view() == [(1, "2023-11-14 22:13:20.12")]
    it.topic([created, mysql("d", key, row, None, 200)])
    it.read_all()
    assert it.view() == []


def typed(optional: bool, event: Event) -> Event:
    """The event, which states the types of its columns."""
    fields = [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "v", "type": "double", "optional": optional},
    ]
    row = {"type": "struct", "optional": True, "fields": fields}
    images = [{**row, "field": "before"}, {**row, "field": "after"}, {"type": "string", "field": "op"}]
    return replace(event, value={"schema": {"type": "struct", "fields": images}, "payload": event.value})


REQUIRED = """Float64 COMMENT 'debezium: double {"optional":false}'"""
GROWN = [typed(False, EVENTS[0]), typed(True, EVENTS[1]), typed(True, EVENTS[2])]


def test_a_stream_that_may_not_alter_its_columns_does_not_ask_for_an_alter(client: Client, database: str) -> None:
    it = alone(client, database, REQUIRED, GROWN)
    with pytest.raises(StreamFailed, match="can be null now") as stopped:
        it.read_all()
    assert stopped.value.hint == "set evolve: add_columns"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("killed", [False, True])
def test_a_stream_that_alters_its_columns_itself_goes_on(
    client: Client, database: str, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    it = alone(client, database, REQUIRED, GROWN[:1], evolve="add_columns")
    it.read_all()
    it.topic(GROWN)
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr("ch_sink.stream.open_stream.expect_same_terms", _killed)
            with pytest.raises(KeyboardInterrupt):
                it.read_all()
    it.read_all()
    it.topic([*GROWN, *(typed(True, event) for event in DELETES[:2])])
    it.read_all()
    assert it.view() == [(3, 0.5)]


def _killed(*_: object) -> None:
    raise KeyboardInterrupt
