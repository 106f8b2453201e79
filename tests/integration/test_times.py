"""Times: versions and partitions that are times, histories by time, clocks that are set back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.clickhouse.schema import execute
from ch_sink.config import Config
from ch_sink.discovery.init_plan import plan_init
from ch_sink.discovery.look import Sampled
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.table.spec import EngineChoice
from ch_sink.table.views import moments_of
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.integration.test_resync_shapes import FIRST, LAST, LATER, begun, shaped
from tests.support.hand import OWN, PLACEHOLDER, WINDOW, Event, HandFed, insert, key, postgres, row, update
from tests.support.hand_commands import Hand, each_of, hand, made
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


@pytest.mark.long
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


each_kind = pytest.mark.parametrize("kind", ["DateTime", "DateTime('UTC')", "DateTime64(3)"])


@pytest.mark.sampled(4)
@each_kind
@pytest.mark.parametrize(
    "clause", ["PARTITION BY p ORDER BY id", "ORDER BY (p, id)", "PARTITION BY toDate(ver) ORDER BY id"]
)
def test_a_table_whose_rows_can_leave_their_places_is_refused(
    client: Client, database: str, own_tables: str, kind: str, clause: str
) -> None:
    """A row and the mark at its former place have the same time."""
    columns = f"id Int64, v Nullable(String), p Int32, ver {kind}, gone UInt8"
    ddl = f"({columns}) ENGINE = ReplacingMergeTree(ver, gone) {clause} {WINDOW}, allow_suspicious_indices = 1"
    fed = HandFed(client, database, own_tables, ddl, ("id",))
    with pytest.raises(StreamFailed, match=r"has times as versions, and (p|ver) outside the key") as refused:
        fed.feed([insert(1, "a", 100, p=1)])
    assert "UInt128" in str(refused.value.hint)
    assert fed.query("SELECT count() FROM {t}") == [(0,)]


@each_kind
def test_an_update_in_the_moment_of_the_row_before_reaches_a_collapsing_table(
    client: Client, database: str, own_tables: str, kind: str
) -> None:
    columns = f"id Int64, v Nullable(String), _version {kind}, _sign Int8"
    ddl = f"({columns}) ENGINE = CollapsingMergeTree(_sign) ORDER BY id {WINDOW}"
    fed = HandFed(client, database, own_tables, ddl, ("id",))
    fed.feed([insert(1, "a", 100)])
    fed.feed([update(row(1, "a"), row(1, "b"), 200)])
    assert fed.view() == [(1, "b")]
    fed.feed([update(row(1, "b"), row(1, "c"), 300, ts_ms=1_657_655_640_000)])
    assert fed.view() == [(1, "c")]
    assert fed.query("SELECT sum(_sign) FROM {t}") == [(1,)]


@each_kind
def test_a_chunk_that_is_applied_again_does_not_bring_the_first_of_two_updates_back(
    client: Client, database: str, own_tables: str, kind: str
) -> None:
    """They are of one moment. A third one is looked up, so that the chunk gives other rows than before."""
    columns = f"id Int64, v Nullable(String), ver {kind}, gone UInt8"
    ddl = f"({columns}) ENGINE = ReplacingMergeTree(ver, gone) ORDER BY id {WINDOW}"
    fed = HandFed(client, database, own_tables, ddl, ("id",))
    fed.feed([insert(1, "a", 100), insert(2, "long", 110)])
    start = fed.states[0]
    events = [
        postgres("u", key(1), None, row(1, "b"), 10**15, 10**15),
        postgres("u", key(1), None, row(1, "c"), 10**15, 10**15 + 1),
        postgres("u", key(2), None, row(2, PLACEHOLDER), 10**15, 10**15 + 2),
    ]
    fed.feed(events)
    fed.again(0, 2, 5, start)
    assert fed.view() == [(1, "c"), (2, "long")]


SUMMER, WINTER = 1_698_539_400_000, 1_698_543_000_000
"""Half past two in Berlin on 29 October 2023, and an hour later."""
KINDS = ("Nullable(DateTime64(3, 'Europe/Berlin'))", "Array(DateTime('Europe/Berlin'))")


def table(client: Client, database: str, columns: str, events: list[Event], **policy: Any) -> Hand:
    it = made(client, database, (OWN["replacing"][0], columns), policy_of(on_bad_record="fail", **policy), [events])
    it.read_all()
    return it


@pytest.mark.long
@each_of("kind", KINDS, *KINDS)
def test_a_value_that_is_an_hour_off_is_found(client: Client, database: str, kind: str) -> None:
    sent = [SUMMER] if kind.startswith("Array") else SUMMER
    it = table(client, database, f"w {kind}, {OWN['replacing'][1]}", [insert(1, "a", 10, w=sent)])
    assert it.verify() == (0, 0, 0)
    later = "arrayMap(t -> t + 3600, w)" if kind.startswith("Array") else "w + 3600"
    client.command(f"ALTER TABLE {database}.t UPDATE w = {later} WHERE 1 SETTINGS mutations_sync = 2")
    assert it.verify() == (0, 0, 1)


@each_of("kind", ["DateTime('Europe/Berlin')", "DateTime64(3, 'Europe/Berlin')"], "DateTime64(3, 'Europe/Berlin')")
def test_a_row_that_was_stored_then_is_repaired(client: Client, database: str, kind: str) -> None:
    event = insert(1, "a", 10)
    assert event.value is not None
    events = [Event(event.key, {**event.value, "source": {**event.value["source"], "ts_ms": WINTER}})]
    columns = f"_version {kind}, _is_deleted UInt8"
    it = table(client, database, columns, events, version_strategy="source_time")
    client.command(f"INSERT INTO {database}.t SELECT * REPLACE('x' AS v) FROM {database}.t")
    assert it.view() == [(1, "x")]
    assert repaired(it.subject, Options(patience=0), apply=True).left == 0
    assert it.view() == [(1, "a")]
