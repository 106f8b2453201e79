"""What is open of a stream, and the changes of it that wait."""

from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseTableAdmin, Client, detect, shown_views
from ch_sink.clickhouse.schema import execute
from ch_sink.config import Config
from ch_sink.memory import MemoryLedger
from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import policy_of
from ch_sink.pipeline.barrier import Barrier
from ch_sink.stream.open_stream import StreamTable, fingerprint
from ch_sink.stream.ports import StreamSettings
from ch_sink.stream.tasks import RangeTask, ReleaseTask, tried
from ch_sink.table.ddl import views_of
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from ch_sink.types.connect import Field, RowSchema, SourceType
from ch_sink.wiring.streams import stream_settings
from tests.support.decoding import replacing
from tests.support.hand import PLACEHOLDER, Event, insert, key_change, postgres, update
from tests.support.hand_commands import hand
from tests.support.kills import Kill
from tests.support.memory_fed import MemoryFed
from tests.support.stream import make_table

COLUMNS = (Column("id", "Int32"), Column("name", "String"))


def settings_of(**more: object) -> StreamSettings:
    place = {"url": "http://h:8123", "table": "t"}
    given = {"kafka": {"topic": "t", "bootstrap.servers": "h:1"}, "clickhouse": place, **more}
    return stream_settings(Config.model_validate(given))


def mark(table: str = "String", **more: object) -> str:
    """The fingerprint under which a job of this configuration plans its ranges."""
    settings = settings_of(**more)
    columns = (COLUMNS[0], Column("name", table))
    return fingerprint(settings.policy, replacing(columns, ("id",)), settings.source_table)


def test_a_setting_that_decides_nothing_about_rows_changes_nothing() -> None:
    assert mark() == mark(chunk_offsets=7)


@pytest.mark.parametrize(
    "changed",
    [{"source_table": "shop.orders"}, {"out_of_range": "clamp"}, {"table": "LowCardinality(String)"}],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_gives_other_rows_of_the_same_range_changes_it(changed: dict[str, str]) -> None:
    assert mark(**changed) != mark()


KEY = Field("id", SourceType("int64", optional=False))
BARRIER = Barrier("new_columns", 7, (UnknownColumn("extra", 7, "Nullable(Int64)"),), key=("id",))


class Died(Exception):
    """The job died here."""


def opened(client: Client, database: str, table: TargetTable) -> StreamTable:
    ledger = MemoryLedger("s")
    ledger.claim("run")
    return StreamTable(ClickHouseTableAdmin(client, database, "t", policy_of()), ledger, settings_of(), table)


def made(client: Client, database: str, engine: str) -> TargetTable:
    schema = RowSchema((KEY, Field("v", SourceType("string"))), (KEY,))
    return make_table(client, database, "t", schema, engine=engine, policy=policy_of())


def shown(client: Client, database: str) -> list[str]:
    return [str(r["name"]) for r in client.rows(f"DESCRIBE TABLE {database}.t_current")]


@pytest.mark.parametrize("engine", ["replacing", "append"])
def test_a_job_killed_between_the_column_and_its_view_leaves_the_view_to_the_next(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = opened(client, database, made(client, database, engine))

    def dies(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(ClickHouseTableAdmin, "_recreate_views", dies)
        with pytest.raises(Died):
            stream.add_columns([BARRIER])
    table = detect(client, database, "t", policy_of())
    assert "extra" in {c.name for c in table.columns}
    assert shown(client, database) == ["id", "v"]
    opened(client, database, table)
    assert shown(client, database) == ["id", "v", "extra"]


def test_a_view_is_left_alone_where_nothing_was_begun(client: Client, database: str) -> None:
    stream = opened(client, database, made(client, database, "replacing"))
    stream.add_columns([BARRIER])
    assert shown(client, database) == ["id", "v", "extra"]
    client.command(f"CREATE OR REPLACE VIEW {database}.t_current AS SELECT id FROM {database}.t FINAL")
    assert opened(client, database, stream.now).now == stream.now
    assert shown(client, database) == ["id"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "altered",
    [
        "MODIFY COLUMN v Nullable(Int64)",
        "ADD COLUMN extra Nullable(String) AFTER v",
        "DROP COLUMN w",
        "RENAME COLUMN w TO renamed",
    ],
)
@pytest.mark.parametrize("engine", ["replacing", "append"])
def test_views_follow_a_table_that_was_altered_by_hand(
    client: Client, database: str, engine: str, altered: str
) -> None:
    text = SourceType("string", optional=True)
    schema = RowSchema((KEY, Field("v", SourceType("int16")), Field("w", text)), (KEY,))
    make_table(client, database, "t", schema, engine=engine, policy=policy_of())
    client.command(f"ALTER TABLE {database}.t {altered}")
    table = opened(client, database, detect(client, database, "t", policy_of())).now
    stored = {c.name: c.type for c in table.source_columns}
    views = ["t_current", "t_history"] if engine == "append" else ["t_current"]
    for view in views:
        described = {r["name"]: r["type"] for r in client.rows(f"DESCRIBE TABLE {database}.{view}")}
        assert {n: k for n, k in described.items() if n not in ("valid_from", "valid_to", "_version", "_op")} == stored
    if engine == "append":
        assert client.rows(f"SELECT {', '.join(stored)} FROM {database}.t_at_version(version = 1)") == []
        assert client.rows(f"SELECT {', '.join(stored)} FROM {database}.t_at(at = '2026-01-01 00:00:00')") == []


def test_a_view_that_fits_is_not_created_again(client: Client, database: str) -> None:
    made(client, database, "append")
    looked = "SELECT name, toString(uuid) AS id FROM system.tables WHERE database = {d:String} ORDER BY name"
    before = client.rows(looked, {"d": database})
    opened(client, database, detect(client, database, "t", policy_of()))
    assert client.rows(looked, {"d": database}) == before
    assert len(before) > 4


@pytest.mark.sampled(1)
@pytest.mark.parametrize("former", [("v", "id"), ("v",), ()])
def test_views_of_another_key_are_created_again_with_the_topics(
    client: Client, database: str, former: tuple[str, ...]
) -> None:
    it = hand(
        client,
        database,
        "append",
        [insert(1, "a", 100), update({"id": 1, "v": "a"}, {"id": 1, "v": "b"}, 110), insert(2, "b", 120)],
    )
    execute(client, [view.sql for view in views_of(it.subject.table, former, None)])
    it.read((0, 3))
    assert it.view() == [(1, "b"), (2, "b")]
    shown = shown_views(client, database, ["t_current", "t_at_version", "t_at", "t_history"])
    assert {view.key for view in shown.values()} == {("id",)}
    client.command(f"DROP VIEW {database}.t_current")
    it.read_all()
    assert "t_current" not in shown_views(client, database, ["t_current"])


def test_a_type_that_another_stream_has_widened_further_stays(client: Client, database: str) -> None:
    schema = RowSchema((KEY, Field("n", SourceType("int16"))), (KEY,))
    stale = make_table(client, database, "t", schema, engine="replacing", policy=policy_of())
    client.command(f"ALTER TABLE {database}.t MODIFY COLUMN n Nullable(Int64)")
    grown = UnknownColumn("n", 7, "Nullable(Int32)", comment=SourceType("int32").to_comment(), change="widen")
    stream = opened(client, database, stale)
    stream.add_columns([Barrier("new_columns", 7, (grown,), key=("id",))])
    assert [c.type for c in stream.now.columns if c.name == "n"] == ["Nullable(Int64)"]


def test_a_default_that_may_not_be_the_one_of_stored_rows_is_warned_of(
    client: Client, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = opened(client, database, made(client, database, "replacing"))
    new = [UnknownColumn("n", 7, "Int64", "5", filled=True), UnknownColumn("w", 7, "Nullable(Int64)", inferred=True)]
    stream.add_columns([Barrier("new_columns", 7, tuple(new), ("id",))])
    [said] = [record.getMessage() for record in caplog.records if "nextval()" in record.getMessage()]
    assert f"stored rows of `{database}`.`t` have the present default of 'n'. " in said


def change(op: str, key: int, big: str, at: int) -> Event:
    return postgres(op, {"id": key}, None, {"id": key, "big": big}, at, at - 10)


def moved(old: int, new: int, at: int) -> list[Event]:
    return key_change(postgres("d", {"id": old}, None, None, at, at - 10), change("c", new, PLACEHOLDER, at))


ENGINES = ("replacing", "sign", "versioned", "append")


def row(key: int, big: str) -> dict[str, object]:
    return {"id": key, "big": big}


def given_up(engine: str) -> tuple[MemoryFed, list[Event]]:
    """Kafka Connect dies after the create half, and the deadline passes before it is back."""
    fed = MemoryFed(engine, deadline=0.0)
    fed.feed(1, change("c", 1, "one", 100))
    halves = key_change(postgres("d", {"id": 1}, None, None, 200, 190), change("c", 2, PLACEHOLDER, 200))
    fed.feed(0, halves[2])
    assert fed.letters == [(0, 0, "unresolved")]
    return fed, halves


def sent_again(fed: MemoryFed, halves: list[Event], *more: Event) -> None:
    fed.feed(1, halves[0], halves[1])
    fed.feed(0, halves[2], *more)


@pytest.mark.parametrize("engine", ENGINES)
def test_both_halves_of_a_key_change_come_again(engine: str) -> None:
    fed, halves = given_up(engine)
    sent_again(fed, halves)
    assert fed.view() == {2: "one"}


@pytest.mark.parametrize("engine", ENGINES)
def test_they_come_again_behind_later_changes(engine: str) -> None:
    """Of another key; these come again too, and are applied once."""
    fed, halves = given_up(engine)
    later = change("c", 3, "three", 300)
    fed.feed(0, later)
    sent_again(fed, halves, later)
    assert fed.view() == {2: "one", 3: "three"}
    counts = fed.stream.ledger.totals()[0].counts.kinds
    assert (counts["applied_late"], counts["redelivered"]) == (1, 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_later_change_of_its_row_stays(engine: str) -> None:
    fed, halves = given_up(engine)
    later = change("u", 2, "later", 300)
    fed.feed(0, later)
    sent_again(fed, halves, later, change("u", 3, "three", 400))
    assert fed.view() == {2: "later", 3: "three"}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_applied_late_counts_as_applied(engine: str) -> None:
    fed, halves = given_up(engine)
    fed.feed(0, change("c", 3, "three", 300))
    sent_again(fed, halves)
    gone: Any = postgres("d", {"id": 2}, None, None, 400, 390)
    fed.feed(0, gone)
    sent_again(fed, halves)
    assert fed.view() == {3: "three"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_attempt_at_a_chunk_does_not_count_its_own_dead_letters(engine: str) -> None:
    """Each attempt decides as the first one did: what repeats inside a chunk is skipped."""
    fed = MemoryFed(engine, partitions=1)
    lost = change("u", 2, PLACEHOLDER, 200)  # of a row that the table does not have
    fed.feed(0, lost, change("c", 1, "one", 300), lost, kills=[Kill("before results")])
    assert fed.view() == {1: "one"}
    assert fed.letters == [(0, 0, "unresolved")]


def watched() -> tuple[MemoryFed, list[bool]]:
    """A stream, and of each task of a range whether the pending table was known to be empty."""
    fed = MemoryFed("replacing")
    settled: list[bool] = []
    opened = fed.runner.open_task

    def note(task: Any) -> Any:
        # What may be stored together with others is tried first, and opened again if it may not.
        if isinstance(task, RangeTask) and task.first:
            settled.append(task.settled)
        return opened(task)

    fed.runner.open_task = note  # type: ignore[method-assign]
    return fed, settled


def test_a_stream_without_waiting_changes_never_asks() -> None:
    fed, settled = watched()
    for at in (100, 200, 300):
        fed.feed(0, change("c", at, "x", at))
    assert settled == [True] * 3


def test_a_change_that_waits_is_looked_at_until_it_is_applied() -> None:
    fed, settled = watched()
    fed.feed(1, change("c", 1, "one", 100))
    first, second, third = key_change(postgres("d", {"id": 1}, None, None, 200, 190), change("c", 2, PLACEHOLDER, 200))
    fed.feed(0, third)
    fed.feed(0, change("c", 3, "three", 300))
    assert settled == [True, True, False]
    fed.feed(1, first, second)
    fed.feed(0, change("c", 4, "four", 400))
    fed.feed(0, change("c", 5, "five", 500))
    assert settled[-2:] == [False, True]
    assert fed.view() == {2: "one", 3: "three", 4: "four", 5: "five"}


def test_an_attempt_that_follows_another_asks() -> None:
    fed, settled = watched()
    fed.feed(0, change("c", 1, "one", 100), kills=[Kill("before results")])
    assert settled[0]
    assert not any(settled[1:])
    fed.feed(0, change("c", 2, "two", 200))
    assert settled[-1]


def test_spark_starts_a_failed_task_as_one_that_asks() -> None:
    fed = MemoryFed("replacing")
    tasks: list[RangeTask] = []
    opened = fed.runner.open_task

    def note(task: Any) -> Any:
        tasks.extend([task] if isinstance(task, RangeTask) else [])
        return opened(task)

    fed.runner.open_task = note  # type: ignore[method-assign]
    fed.feed(0, change("c", 1, "one", 100))
    [first] = tasks
    again = tried(first, 2)
    assert tried(first, 0) is first
    assert isinstance(again, RangeTask)
    assert (again.attempt, again.settled) == (first.attempt + 2, False)
    release = ReleaseTask(first.stream, first.topic, first.topic_id, 0, first.table, first.state)
    assert tried(release, 1).attempt == 1


@pytest.mark.parametrize("engine", ["replacing", "sign", "versioned", "append"])
def test_a_column_is_added_between_the_halves_of_a_key_change(engine: str) -> None:
    fed = MemoryFed(engine, policy=policy_of(evolve="add_columns"))
    fed.feed(1, postgres("c", {"id": 1}, None, {"id": 1, "big": "value"}, 100, 90))
    create = postgres("c", {"id": 2}, None, {"id": 2, "big": PLACEHOLDER, "extra": 7}, 200, 190)
    halves = key_change(postgres("d", {"id": 1}, None, None, 200, 190), create)
    fed.feed(1, halves[0])
    fed.feed(0, halves[2])
    rows = fed.stream.table.current()
    assert [(r["id"], r["big"], r["extra"]) for r in rows] == [(2, b"value", 7)]
