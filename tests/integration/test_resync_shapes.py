"""`resync` gives a live table the shape that its file states, also if it is killed at any of its steps."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.errors import ChSinkError, StreamFailed, TableError
from ch_sink.model.policy import policy_of
from ch_sink.ports import Alive, Request
from ch_sink.stream.claims import born
from ch_sink.table.rollup import Rollup, RollupChoice
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.trust.refill import Refill
from ch_sink.trust.resync import resynced
from ch_sink.trust.shape import Wanted
from ch_sink.trust.successor import SUFFIX, Successor, _engine
from ch_sink.trust.swap import Exchange
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.choose import some
from tests.support.endpoint import settings_for
from tests.support.hand import OWN, WINDOW, delete, insert, row, update
from tests.support.hand_commands import Hand, hand, made, with_policy
from tests.support.hand_steps import EVENTS, Rows, comment_of, killed, left_tables, position
from tests.support.rights import Limited

pytestmark = pytest.mark.integration

KINDS = {
    "replacing": EngineChoice.REPLACING,
    "sign": EngineChoice.SIGN_REPLACING,
    "collapsing": EngineChoice.COLLAPSING,
    "versioned": EngineChoice.VERSIONED_COLLAPSING,
    "append": EngineChoice.APPEND,
}
FIRST = [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
LATER = [*EVENTS, update(row(1, "a"), row(1, "aa"), 150), delete(row(2, "b"), 160)]
LAST = [(1, "aa"), (3, "c"), (4, "d"), (5, "e")]
STEPS: dict[str, type | None] = {
    "clear": Successor,
    "found": Successor,
    "note": Successor,
    "take_place": Successor,
    "show": Successor,
    "_enter": Exchange,
    "results": None,
    "unmark": Successor,
    "dropped": Successor,
}
"""Of a change of shape, in their order, and whose method it is; None for the ledger."""


def shaped(it: Hand, **choices: Any) -> Refill:
    """The stream, with a file that states these things."""
    spec = TableSpec(it.database, "t", **choices)
    return replace(it.refill, wanted=Wanted(spec, frozenset(choices)))


def begun(client: Client, database: str, engine: str, **policy: Any) -> Hand:
    """The stream has applied four of the topic's changes, which are all that the source has."""
    it = hand(client, database, engine, EVENTS[:4], **policy)
    it.read((0, 4))
    it.source = Rows(FIRST, position(131))
    return it


def goes_on(it: Hand) -> None:
    it.topic(LATER)
    it.read_all()
    assert it.view() == LAST
    it.source = Rows(LAST)
    assert it.verify() == it.verify_source() == (0, 0, 0)


@pytest.mark.parametrize(
    ("engine", "other", "against"),
    some(
        [(a, b, "source" if a < b else "topic") for a, b in permutations(KINDS, 2)],
        [("replacing", "versioned", "source"), ("append", "replacing", "topic"), ("collapsing", "append", "source")],
    ),
)
def test_the_stream_goes_on_with_another_engine(
    client: Client, database: str, engine: str, other: str, against: Literal["source", "topic"]
) -> None:
    it = begun(client, database, engine)
    plan = resynced(shaped(it, engine=KINDS[other]), apply=False, against=against)
    said = next(text for text in plan.shape if text.startswith("engine: "))
    done = resynced(shaped(it, engine=KINDS[other]), apply=True, against=against)
    now = detect(client, database, "t", policy_of()).engine
    assert said.endswith(f"-> {now}")
    assert now.family is KINDS[other].family
    assert done.moved is not None
    assert (done.rows, done.moved.gone, done.moved.came, done.moved.changed) == (4, 0, 0, 0)
    assert it.view() == FIRST
    assert resynced(shaped(it, engine=KINDS[other]), apply=False, against="source").shape == ()
    goes_on(it)


def test_a_users_own_view_outlives_another_shape(client: Client, database: str) -> None:
    it = begun(client, database, "replacing")
    client.command(f"CREATE OR REPLACE VIEW {database}.t_current AS SELECT id AS mine FROM {database}.t FINAL")
    resynced(shaped(it, engine=EngineChoice.COLLAPSING), apply=True)
    assert [row["name"] for row in client.rows(f"DESCRIBE TABLE {database}.t_current")] == ["mine"]


def test_a_pause_while_the_tables_are_exchanged_outlives_it(client: Client, database: str) -> None:
    it = begun(client, database, "replacing")
    with it.subject.held("resync", lambda _: None):
        it.states.ask({it.feed.name: Request("pause", "someone@here", 2.0)})
    assert it.states.read([it.feed.name])[it.feed.name].request == Request("pause", "someone@here", 2.0)


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ({"engine": EngineChoice.APPEND}, "stores differences"),
        ({"ttl": "toDate('2099-01-01')"}, "its TTL removes rows"),
    ],
)
def test_a_shape_in_which_rollups_cannot_be_kept_is_refused_before_it_is_filled(
    client: Client, database: str, choices: dict[str, Any], why: str
) -> None:
    refill = shaped(begun(client, database, "collapsing"), **choices)
    rollup = Rollup(RollupChoice("by_v", (("v", "v"),)), database, "t", "_sign", (), (), ())
    with pytest.raises(TableError, match=why):
        resynced(replace(refill, subject=replace(refill.subject, rollups=(rollup,))), apply=False)
    client.command(f"CREATE TABLE {database}.by_v (a Int8) ENGINE = Memory")
    with pytest.raises(TableError, match="is not a rollup of"):
        resynced(replace(refill, wanted=None, subject=replace(refill.subject, rollups=(rollup,))), apply=True)


def test_a_key_of_which_the_file_says_nothing_is_not_lost(client: Client, database: str) -> None:
    order = "PRIMARY KEY id ORDER BY (id, v)"
    it = made(client, database, OWN["replacing"], policy_of(), [EVENTS[:4]], order)
    it.read((0, 4))
    assert resynced(shaped(it), apply=True, against="topic").shape == ()
    with pytest.raises(StreamFailed, match="created with PRIMARY KEY") as caught:
        resynced(shaped(it, partition_by="id % 2"), apply=False, against="topic")
    assert "name it in clickhouse.table" in str(caught.value.hint)


def order_in(said: list[str]) -> list[str]:
    return [e for text in said if text.startswith("ORDER BY") for e in text.partition("-> (")[2][:-1].split(", ")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "choices", "said"),
    [
        ("replacing", {"order_by": ("id%3", "`id`")}, ["ORDER BY: (id) -> (id % 3, id)"]),
        ("collapsing", {"partition_by": "id % 2, id % 3"}, ["PARTITION BY: none -> (id % 2, id % 3)"]),
        (
            "versioned",
            {
                "order_by": ("id", "v"),
                "partition_by": "cityHash64(v) % 2",
                "ttl": "toDate('2099-01-01') + INTERVAL 1 YEAR + toIntervalDay(id)",
            },
            [
                "ORDER BY: (id) -> (id, v)",
                "PARTITION BY: none -> cityHash64(v) % 2",
                "TTL: none -> (toDate('2099-01-01') + toIntervalYear(1)) + toIntervalDay(id)",
            ],
        ),
    ],
)
def test_the_stream_goes_on_with_another_order_and_partitions(
    client: Client, database: str, engine: str, choices: dict[str, Any], said: list[str]
) -> None:
    it = begun(client, database, engine)
    assert list(resynced(shaped(it, **choices), apply=False).shape) == said
    resynced(shaped(it, **choices), apply=True)
    made = detect(client, database, "t", policy_of())
    assert [e for e in made.sorting_key if e != "_version"] == (order_in(said) or ["id"])
    assert resynced(shaped(it, **choices), apply=False).shape == ()
    assert made.dedup_window == 1000, "the table's own settings stay"
    goes_on(it)


def renamed(client: Client, database: str) -> tuple[Hand, Refill]:
    """The stream's file has another name for a column, and one more."""
    return renamed_of(begun(client, database, "replacing"))


def renamed_of(it: Hand) -> tuple[Hand, Refill]:
    it = with_policy(it, rename=(("v", "w"),), add=(("place", "'eu'"),))
    it.source = Rows(FIRST, position(131))
    fields = (Field("place", SourceType("string", "")), Field("w", SourceType("string", "", optional=True)))
    schema = RowSchema(fields, (Field("id", SourceType("int64", "")),))
    refill = shaped(it)
    return it, replace(refill, subject=replace(refill.subject, schema=schema))


def test_columns_that_the_file_names_otherwise_come_and_go(client: Client, database: str) -> None:
    it, refill = renamed(client, database)
    said: list[str] = []
    assert resynced(refill, apply=False, say=said.append).shape == ("columns added: place, w", "columns dropped: v")
    assert said == []
    resynced(refill, apply=True)
    it.topic(LATER)
    it.read_all()
    shown = client.rows(f"SELECT * FROM {database}.t_current ORDER BY id")
    assert shown == [{"id": i, "place": "eu", "w": v} for i, v in LAST]


def test_a_column_that_was_dropped_is_made_for_the_present_type(client: Client, database: str) -> None:
    it = begun(client, database, "collapsing")
    client.command(f"ALTER TABLE {database}.t DROP COLUMN v")
    it.source = Rows([(1, "7"), (2, "8")], position(131), types={"id": "bigint", "v": "bigint"})
    fields = (Field("v", SourceType("int64", "", optional=True)),)
    schema = RowSchema(fields, (Field("id", SourceType("int64", "")),))
    refill = shaped(it)
    done = resynced(replace(refill, subject=replace(refill.subject, schema=schema)), apply=True)
    assert done.shape == ("columns added: v",)
    assert client.rows(f"SELECT id, v FROM {database}.t_current ORDER BY id") == [{"id": 1, "v": 7}, {"id": 2, "v": 8}]


@pytest.mark.parametrize("engine", some([(e,) for e in KINDS if e != "append"], [("collapsing",)]))
def test_columns_get_the_present_type_of_the_source(client: Client, database: str, engine: str) -> None:
    """Also one of ORDER BY, which no ALTER can change."""
    it = begun(client, database, engine)
    client.command(f"""ALTER TABLE {database}.t COMMENT COLUMN id 'mine debezium: int64 {{"optional":false}}'""")
    it.source = Rows([("1", "a"), ("x", "b"), ("3", "d")], position(131), types={"id": "varchar", "v": "varchar"})
    schema = RowSchema((Field("v", SourceType("string")),), (Field("id", SourceType("string", "", optional=False)),))
    refill = shaped(it)
    refill = replace(refill, subject=replace(refill.subject, schema=schema))
    it.states.beat({it.feed.name: Alive("other", socket.gethostname(), os.getpid(), born(os.getpid()))})
    with pytest.raises(StreamFailed, match="a job runs"):
        resynced(refill, apply=False)
    it.states.beats.clear()
    done = resynced(refill, apply=True)
    assert (done.shape, str(done.moved)) == (("column id: Int64 -> String",), "2 rows gone, 1 new, 1 with other values")
    shown = client.rows(f"SELECT id, v FROM {database}.t_current ORDER BY id")
    assert shown == [{"id": "1", "v": "a"}, {"id": "3", "v": "d"}, {"id": "x", "v": "b"}]
    columns = detect(client, database, "t", policy_of()).columns
    assert [c.comment.partition(" {")[0] for c in columns if c.comment] == ["mine debezium: string"]


def test_an_array_is_remade_for_another_type_and_stays_one_that_cannot_be_null(client: Client, database: str) -> None:
    """The server converts neither. A column may also keep its type, and mean another one of the source."""
    it = begun(client, database, "replacing")
    items = SourceType("array", "", optional=False, items=SourceType("int64", ""))
    for name in ("a", "b"):
        column = f"{name} Array(Int64) DEFAULT [7] COMMENT '{items.to_comment()}'"
        client.command(f"ALTER TABLE {database}.t ADD COLUMN {column} AFTER id")
    time = SourceType("int64", "io.debezium.time.MicroTime", optional=False)
    client.command(f"ALTER TABLE {database}.t ADD COLUMN n Int64 COMMENT '{replace(time, name='').to_comment()}'")
    columns = {"v": SourceType("string"), "a": replace(items, optional=True), "b": SourceType("string", ""), "n": time}
    key = Field("id", SourceType("int64", "", optional=False))
    schema = RowSchema(tuple(Field(name, kind) for name, kind in columns.items()), (key,))
    refill = replace(shaped(it), subject=replace(it.subject, schema=schema))
    shape = refill.shape()
    assert shape is not None
    meaning = "column n: Int64 of int64 io.debezium.time.MicroTime"
    assert shape.changes == ("column b: Array(Int64) -> Nullable(String)", meaning)
    made = refill.successor.create(shape)
    assert [(c.name, c.type) for c in made.columns if c.name in "ab"] == [
        ("b", "Nullable(String)"),
        ("a", "Array(Int64)"),
    ]
    refill.successor.drop()


def test_a_topic_does_not_fill_a_new_column_whose_value_in_earlier_rows_it_does_not_state(
    client: Client, database: str
) -> None:
    it = begun(client, database, "replacing")
    fields = (Field("v", SourceType("string")), Field("n", SourceType("int32", optional=False)))
    refill = shaped(it)
    schema = RowSchema(fields, (Field("id", SourceType("int64", optional=False)),))
    refill = replace(refill, subject=replace(refill.subject, schema=schema))
    with pytest.raises(StreamFailed, match="in the new column 'n' that were there before it") as caught:
        resynced(refill, apply=False, against="topic")
    assert "ADD COLUMN `n` Int32 DEFAULT …; or use --against source" in str(caught.value.hint)
    client.command(f"ALTER TABLE {database}.t ADD COLUMN n Int32 DEFAULT 5 AFTER v")
    refill = replace(shaped(it), subject=replace(it.subject, schema=schema))
    resynced(refill, apply=True, against="topic")
    assert client.rows(f"SELECT DISTINCT n FROM {database}.t FINAL") == [{"n": 5}]


def test_a_table_may_lose_its_partitions(client: Client, database: str) -> None:
    it = made(client, database, OWN["replacing"], policy_of(), [EVENTS[:4]], "PARTITION BY v ORDER BY id")
    it.read((0, 4))
    it.source = Rows(FIRST, position(131))
    refill = shaped(it, partition_by="")
    assert resynced(refill, apply=True).shape == ("PARTITION BY: v -> none",)
    assert not detect(client, database, "t", policy_of()).partition_key
    assert resynced(refill, apply=False).shape == ()


def test_a_job_of_the_former_file_would_fill_other_columns(client: Client, database: str) -> None:
    it, refill = renamed(client, database)
    it.states.beat({it.feed.name: Alive("other", socket.gethostname(), os.getpid(), born(os.getpid()))})
    with pytest.raises(StreamFailed, match="columns added: place, w; columns dropped: v: a job runs") as caught:
        resynced(refill, apply=False)
    assert "Stop the job" in str(caught.value.hint)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("engine", "choices", "said"),
    [
        ("replacing", {"order_by": ("v",)}, "lacks the key column 'id'"),
        ("append", {"engine": EngineChoice.REPLACING, "order_by": ("v",)}, "lacks the key column 'id'"),
        ("replacing", {"partition_by": "nope(id)"}, "nope"),
    ],
)
def test_a_shape_in_which_rows_would_be_lost_is_refused_and_leaves_nothing(
    client: Client, database: str, engine: str, choices: dict[str, Any], said: str
) -> None:
    it = begun(client, database, engine)
    with pytest.raises(ChSinkError, match=said):
        resynced(shaped(it, **choices), apply=True)
    there = client.rows(f"SELECT name FROM system.tables WHERE database = '{database}'")
    assert not [r for r in there if "ch_sink_next" in str(r["name"])]
    goes_on(it)


@pytest.mark.long
def test_a_key_that_may_be_null_is_made_where_the_file_accepts_it(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS[:4])
    (described,) = client.rows(f"SHOW CREATE TABLE {database}.t")
    sql = str(next(iter(described.values())))
    client.command(f"DROP TABLE {database}.t SYNC")
    client.command(sql.replace(", allow_nullable_key = 1", ""))
    it.read((0, 4))
    it.source = Rows(FIRST, position(131))
    for key in ({"order_by": ("v", "id")}, {"partition_by": "v"}):
        with pytest.raises(StreamFailed, match="names the column 'v', which may be null") as caught:
            resynced(shaped(it, **key), apply=True)
        assert "init.allow_nullable_key" in str(caught.value.hint)
    resynced(shaped(it, order_by=("v", "id"), allow_nullable_key=True), apply=True)
    assert detect(client, database, "t", policy_of()).sorting_key == ("v", "id")
    goes_on(it)


def test_a_renamed_column_of_order_by_is_stated_under_its_new_name(client: Client, database: str) -> None:
    it = begun(client, database, "replacing")
    resynced(shaped(it, order_by=("v", "id"), allow_nullable_key=True), apply=True)
    it, refill = renamed_of(it)
    with pytest.raises(StreamFailed, match="names the column 'v', which the new table does not have") as caught:
        resynced(refill, apply=True)
    assert "init.order_by" in str(caught.value.hint)


@pytest.mark.long
def test_a_new_table_has_the_settings_that_the_file_states(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS[:4])
    engine = f"{OWN['replacing'][0]} ORDER BY id {WINDOW}"  # without allow_nullable_key
    client.command(f"CREATE OR REPLACE TABLE {database}.t AS {database}.t ENGINE = {engine}")
    it.read((0, 4))
    it.source = Rows(FIRST, position(131))
    stated: dict[str, Any] = {"allow_nullable_key": True, "settings": (("index_granularity", "1024"),)}
    resynced(shaped(it, order_by=("v", "id"), **stated), apply=True)
    [now] = client.rows(f"SELECT engine_full AS e FROM system.tables WHERE database = '{database}' AND name = 't'")
    assert {"index_granularity = 1024", WINDOW.removeprefix("SETTINGS "), "allow_nullable_key = 1"} <= {
        *str(now["e"]).partition("SETTINGS ")[2].split(", ")
    }
    goes_on(it)


@pytest.mark.long
def test_versions_under_another_name_keep_their_engine(client: Client, database: str) -> None:
    kind = ("ReplacingMergeTree(ver, gone)", "ver UInt128, gone UInt8")
    it = made(client, database, kind, policy_of(), [EVENTS[:4]])
    it.read((0, 4))
    it.source = Rows(FIRST, position(131))
    with pytest.raises(StreamFailed, match="has its versions in column 'ver'") as caught:
        resynced(shaped(it, engine=EngineChoice.APPEND), apply=True)
    assert "name it in clickhouse.table" in str(caught.value.hint)
    resynced(shaped(it, engine=EngineChoice.REPLACING, partition_by="id % 2"), apply=True)
    assert str(detect(client, database, "t", policy_of()).engine) == kind[0]
    goes_on(it)


def test_a_file_that_states_nothing_of_the_table_leaves_its_shape(client: Client, database: str) -> None:
    it = begun(client, database, "versioned")
    refill = replace(it.refill, wanted=Wanted(TableSpec(database, "t"), frozenset()))
    assert resynced(refill, apply=True).shape == ()
    assert str(detect(client, database, "t", policy_of()).engine) == OWN["versioned"][0]


def test_rows_that_were_lost_or_planted_are_counted_before_the_exchange(client: Client, database: str) -> None:
    it = begun(client, database, "replacing")
    it.source = Rows([(1, "a"), (3, "cc"), (4, "d"), (9, "x")], position(131))
    done = resynced(shaped(it, engine=EngineChoice.COLLAPSING), apply=True)
    assert done.moved is not None
    assert (done.moved.gone, done.moved.came, done.moved.changed) == (1, 1, 1)
    assert done.as_json()["compared"] == {"gone": 1, "came": 1, "changed": 1, "kept": done.rows - 1}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("engine", "step"),
    some(
        [(engine, step) for engine in ("replacing", "append") for step in STEPS],
        [("replacing", step) for step in ("take_place", "results")],
    ),
)
def test_a_change_of_shape_that_is_killed_leaves_either_table_whole(
    client: Client, database: str, engine: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = begun(client, database, engine)
    refill = shaped(it, engine=EngineChoice.COLLAPSING, partition_by="id % 2")
    with killed(monkeypatch, STEPS[step] or it.feed.book, step):
        resynced(refill, apply=True)
    swapped = step in list(STEPS)[4:]
    final = "FINAL" if swapped or engine != "append" else ""  # which a MergeTree does not have
    rows = client.rows(f"SELECT id, v FROM {database}.t {final} ORDER BY id")
    assert [tuple(r.values()) for r in rows] == FIRST
    assert ("Collapsing" in detect(client, database, "t", policy_of()).engine.name) == swapped
    if step != "show":
        assert it.view() == FIRST
    resynced(shaped(it, engine=EngineChoice.COLLAPSING, partition_by="id % 2"), apply=True)
    assert (comment_of(it), left_tables(it)) == ("", [])
    assert detect(client, database, "t", policy_of()).partition_key == "id % 2"
    there = client.rows(f"SELECT name FROM system.tables WHERE database = '{database}'")
    assert not [r for r in there if "ch_sink_next" in str(r["name"])]
    goes_on(it)


def test_another_table_counts_the_changes_that_it_lacks(client: Client, database: str) -> None:
    events = [*EVENTS, insert("not a number", "f", 150)]
    it = made(client, database, OWN["replacing"], policy_of(on_bad_record="dead_letter"), [events])
    it.read_all()
    client.command(f"CREATE TABLE {database}.other AS {database}.t")
    done = resynced(it.refill, apply=True, against="topic", into="other")
    assert (done.rows, done.lacking) == (len(EVENTS), 1)


COLUMNS = "(id Int64, n Int32, _version UInt128, _is_deleted UInt8)"
ENGINE = "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"


@pytest.fixture(params=["Atomic", "Ordinary"])
def kind_and_place(request: pytest.FixtureRequest, client: Client) -> Iterator[tuple[str, str]]:
    """A database whose tables have an id, and one that can only rename them."""
    name = f"placed_{request.param.lower()}"
    client.command(
        f"CREATE DATABASE {name} ENGINE = {request.param}", settings={"allow_deprecated_database_ordinary": 1}
    )
    yield request.param, name
    client.command(f"DROP DATABASE {name}")


def test_it_takes_the_place_of_the_table_under_its_view(client: Client, kind_and_place: tuple[str, str]) -> None:
    kind, place = kind_and_place
    client.command(f"CREATE TABLE {place}.t {COLUMNS} {ENGINE}")
    client.command(f"CREATE VIEW {place}.t_current AS SELECT id, n FROM {place}.t FINAL WHERE NOT _is_deleted")
    client.command(f"INSERT INTO {place}.t VALUES (1, 10, 1, 0)")
    successor = Successor(client, detect(client, place, "t", policy_of()), policy_of())
    made, said = successor.create(), list[str]()
    client.command(f"INSERT INTO {made.qualified} VALUES (2, 20, 1, 0)")
    successor.take_place(said.append)
    assert any("renaming" in line for line in said) == (kind == "Ordinary")
    assert client.rows(f"SELECT id, n FROM {place}.t_current") == [{"id": 2, "n": 20}]
    assert client.rows(f"SELECT id FROM {successor.qualified}") == [{"id": 1}]
    successor.dropped(said.append)
    tables = client.rows(f"SELECT name FROM system.tables WHERE database = '{place}' ORDER BY name")
    assert [row["name"] for row in tables] == ["t", "t_current"]
    client.command(f"INSERT INTO {place}.t VALUES (3, 30, 1, 0)")
    assert detect(client, place, "t", policy_of()).engine == successor.target.engine


@pytest.mark.parametrize(
    ("full", "kept"),
    [
        ("ReplicatedReplacingMergeTree('/tables/{shard}/t', '{replica}', v, d) ORDER BY id", False),
        ("ReplicatedReplacingMergeTree('/tables/{uuid}/{shard}', '{replica}', v, d) ORDER BY id", True),
        ("ReplicatedReplacingMergeTree(v, d) ORDER BY id", True),
        ("ReplacingMergeTree(v, d) ORDER BY id", True),
    ],
)
def test_a_replicated_one_gets_a_path_of_its_own(full: str, kept: bool) -> None:
    engine = full.partition("(")[0]
    found = {_engine(engine, full) for _ in range(3)}
    assert found == {full} if kept else len(found) == 3
    for text in found:
        assert text.startswith(full.partition("'")[0])
        assert text.endswith(full.rpartition("'")[2])
        assert kept or "'/tables/{shard}/t_" in text


def test_what_a_killed_run_left_is_named_and_dropped(client: Client, database: str) -> None:
    client.command(f"CREATE TABLE {database}.t {COLUMNS} {ENGINE}")
    client.command(f"""CREATE TABLE {database}.t{SUFFIX} {COLUMNS} {ENGINE} COMMENT 'ch_sink fills this table: {{}}'""")
    said = list[str]()
    Successor(client, detect(client, database, "t", policy_of()), policy_of()).clear(said.append)
    assert said == [f"dropping `{database}`.`t{SUFFIX}`, which an earlier run left"]
    assert client.rows(f"SHOW TABLES FROM {database}") == [{"name": "t"}]


@pytest.mark.long
def test_a_table_is_not_replaced_if_it_feeds_a_view_that_the_user_may_not_see(tmp_path: Path) -> None:
    limited = Limited(tmp_path)
    limited.clickhouse.start()
    client = Client(settings_for(limited.clickhouse.url))
    for sql in (
        "CREATE DATABASE shop",
        "CREATE DATABASE reports",
        f"CREATE TABLE shop.t {COLUMNS} {ENGINE}",
        "CREATE TABLE reports.sums (n Int64) ENGINE = MergeTree ORDER BY ()",
        "CREATE MATERIALIZED VIEW reports.adding TO reports.sums AS SELECT sum(n) AS n FROM shop.t",
    ):
        client.command(sql)
    client.close()
    limited.restart(["GRANT CREATE TABLE, DROP TABLE, SELECT, INSERT, ALTER TABLE ON shop.*", "GRANT READ ON FILE"])
    client = Client(settings_for(limited.clickhouse.url))
    try:
        with pytest.raises(StreamFailed, match=r"feeds the materialized view reports\.adding"):
            Successor(client, detect(client, "shop", "t", policy_of()), policy_of()).expect_possible()
    finally:
        client.close()
        limited.clickhouse.stop()
