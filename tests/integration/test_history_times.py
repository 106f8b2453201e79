"""The times of a history's rows that no event states: those of rows that commands write."""

from datetime import UTC, datetime, timedelta

import pytest

from ch_sink.clickhouse import Client
from ch_sink.clickhouse.schema import execute
from ch_sink.config import Config
from ch_sink.discovery.init_plan import plan_init
from ch_sink.discovery.look import Sampled
from ch_sink.table.spec import EngineChoice
from ch_sink.table.views import moments_of
from ch_sink.trust.resync import resynced
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.integration.test_resync_shapes import FIRST, LAST, LATER, begun, shaped
from tests.support.hand_commands import Hand, hand
from tests.support.hand_steps import EVENTS, repaired_from_source

pytestmark = pytest.mark.integration

EVENT = "2022-07-12 19:53:52.000"
"""The time that every event states."""


def with_views(it: Hand) -> None:
    execute(it.client, list(moments_of(it.subject.table, ("id",)).values()))


def at(it: Hand, moment: str) -> list[tuple[int, str]]:
    rows = it.client.rows(f"SELECT id, v FROM {it.database}.t_at(at = '{moment}') ORDER BY id")
    return [(row["id"], row["v"]) for row in rows]


def seconds_from_now(seconds: int) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")


def test_what_repair_writes_is_so_from_now_on(client: Client, database: str) -> None:
    it = hand(client, database, "append", EVENTS)
    it.read((0, 5))
    with_views(it)
    before = seconds_from_now(-60)
    wanted = [(1, "a"), (2, "other"), (4, "d"), (5, "e"), (6, "new")]
    repaired_from_source(it, *wanted)
    assert at(it, "2022-07-12 19:53:51.999") == []
    assert at(it, EVENT) == at(it, before) == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
    assert at(it, seconds_from_now(60)) == it.view() == wanted


def test_rows_of_the_source_have_the_time_of_reading(client: Client, database: str) -> None:
    """Of the changes that follow, those from before that time count from their own."""
    it = begun(client, database, "collapsing")
    resynced(shaped(it, engine=EngineChoice.APPEND), apply=True)
    assert at(it, seconds_from_now(-60)) == []
    assert at(it, seconds_from_now(60)) == it.view() == FIRST
    it.topic(LATER)
    it.read_all()
    assert at(it, seconds_from_now(60)) == it.view() == LAST
    assert at(it, EVENT) == [(1, "aa"), (5, "e")]


def test_a_table_without_times_gets_them_by_a_resync(client: Client, database: str) -> None:
    it = hand(client, database, "append", EVENTS)
    client.command(f"ALTER TABLE {database}.t DROP COLUMN _source_time")
    it.read((0, 5))
    assert list(moments_of(it.subject.table, ("id",))) == ["_at_version"]
    made = resynced(shaped(it), apply=True, against="topic")
    assert made.shape == ("columns added: _source_time",)
    assert at(it, EVENT) == it.view()


def test_init_says_why_a_history_has_no_views_at_a_time(client: Client, database: str) -> None:
    key = (Field("id", SourceType("int64", optional=False)),)
    schema = RowSchema((*key, Field("valid_to", SourceType("string"))), key)
    config = Config.model_validate(
        {
            "kafka": {"topic": "t", "bootstrap.servers": "nowhere:1"},
            "clickhouse": {"url": client.settings.url, "database": database, "table": "t"},
            "engine": "append",
        }
    )
    new = plan_init(config, Sampled(schema, 1), client)
    assert [note for note in new.notes if "view" in note or "history" in note] == [
        "t_history is left out: the source has a column valid_to of its own"
    ]
    assert [s.name for s in new.statements if s.kind == "view"] == ["t_current", "t_at_version", "t_at"]

    own = "_op String, _sign Int8, _version UInt128"
    client.command(f"CREATE TABLE {database}.t (id Int64, valid_to String, {own}) ENGINE = MergeTree ORDER BY id")
    old = plan_init(config, Sampled(schema, 1), client)
    assert "the times of its rows are not known: it gets no views t_at and t_history" in " ".join(old.notes)
    assert not any("_source_time" in statement.sql for statement in old.statements)
    assert [s.name for s in old.statements if s.kind == "view"] == ["t_current", "t_at_version"]
