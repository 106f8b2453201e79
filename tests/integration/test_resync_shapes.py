"""`resync` gives a live table the shape that its file states, also if it is killed at any of its steps."""

import os
import socket
from dataclasses import replace
from itertools import permutations
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
from ch_sink.trust.successor import Successor
from ch_sink.trust.swap import Exchange
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.choose import some
from tests.support.hand import OWN, WINDOW, delete, insert, row, update
from tests.support.hand_commands import Hand, hand, made, with_policy
from tests.support.hand_steps import EVENTS, FIRST, Rows, begun, comment_of, killed, left_tables, position, shaped

pytestmark = pytest.mark.integration

KINDS = {
    "replacing": EngineChoice.REPLACING,
    "sign": EngineChoice.SIGN_REPLACING,
    "collapsing": EngineChoice.COLLAPSING,
    "versioned": EngineChoice.VERSIONED_COLLAPSING,
    "append": EngineChoice.APPEND,
}
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
def test_a_column_of_order_by_may_have_any_name(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS[:4])
    (described,) = client.rows(f"SHOW CREATE TABLE {database}.t")
    client.command(f"DROP TABLE {database}.t SYNC")
    sql = str(next(iter(described.values()))).replace("(\n", "(`k€` String, ", 1)
    client.command(sql.replace("ORDER BY id", "ORDER BY (id, `k€`)"))
    it.read((0, 4))
    resynced(shaped(it, engine=EngineChoice.SIGN_REPLACING), apply=True, against="topic")
    assert detect(client, database, "t", policy_of()).sorting_key == ("id", "k€")


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
