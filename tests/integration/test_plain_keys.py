"""Kafka keys that are plain values, and records that have none."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ch_sink.clickhouse import Client, detect, execute
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.table.views import view_of
from tests.support.event import event
from tests.support.fixtures import as_records, topic_of, topics
from tests.support.hand import APPEND, ENGINES, OWN, mysql, row
from tests.support.hand_commands import each_of, hand, made
from tests.support.hand_steps import Rows, repaired_from_source
from tests.support.recorded import equal
from tests.support.state_tables import create_statement
from tests.support.stream import Feed, make_table, schema_of

pytestmark = pytest.mark.integration

APART: dict[str, tuple[Any, Any, int]] = {
    "DateTime": (1000, 1001, 1),
    "DateTime64(3)": ("2024-01-01T01:00:00.000Z", "2024-01-01T01:00:00.0001Z", 1),
    "DateTime64(1)": (100, 101, 1),
    "Date": ("2024-01-01", "2024-01-01T02:00:00Z", 1),
    "Time64(3)": ("01:00:00.000", "01:00:00.0001", 1),
    "Float32": (16777216, 16777217, 1),
    "FixedString(4)": ("ab", "ab\0", 1),
    "IPv6": ("::1", "0:0:0:0:0:0:0:1", 1),
    "UUID": ("00000000-0000-0000-0000-00000000000a", "0000000000000000000000000000000a", 1),
    "Float64": (0.1, 0.25, 0),
    "Date32": (19_000, 19_001, 0),
    "DateTime64(6)": ("2024-01-01T01:00:00.000001Z", "2024-01-01T01:00:00Z", 0),
    "IPv4": ("1.2.3.4", "1.2.3.5", 0),
    "String": ("7", "007", 0),
}
"""Type of the column → two keys, and how many of them are dead letters."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", APART)
def test_two_keys_are_two_rows_or_a_dead_letter(client: Client, database: str, kind: str) -> None:
    *keys, letters = APART[kind]
    rest = "v String, _version UInt128, _is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted)"
    client.command(
        f"CREATE TABLE {database}.t (id {kind}, {rest} ORDER BY id",
        settings={"enable_time_time64_type": 1},
    )
    policy = policy_of(on_bad_record="dead_letter")
    target = detect(client, database, "t", policy)
    client.command(view_of(target, ("id",)))
    own = ("dead_letters", "handover", "pending")
    execute(client, [create_statement(name, database, f"ch_sink_{name}") for name in own])
    at = np.arange(2, dtype=np.int64)
    values = [event(after={"id": key, "v": str(n)}, pos=n + 1) for n, key in enumerate(keys)]
    given = Records("t", 0, at, at, [json.dumps({"id": key}).encode() for key in keys], values)
    feed = Feed(client, database, target, f"{database}/t", "t", policy, {0: given})
    feed.run()
    shown = [row["v"] for row in client.rows(f"SELECT v FROM {database}.t_current ORDER BY v")]
    assert (shown, feed.letters) == (["0"] if letters else ["0", "1"], letters)


POLICY = policy_of(on_bad_record="fail")


@pytest.mark.integration
@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_a_stretch_sent_again(client: Client, database: str, source: str) -> None:
    stream = f"{source}-json_schema"
    topic = topic_of(stream, "nopk")
    sent = sorted(topics(stream)[topic], key=lambda r: (r.timestamp, r.partition, r.offset))
    again = sent[2:4]
    assert b'"op":"c"' in (again[0].value or b"")
    records = as_records([replace(r, partition=0, offset=i) for i, r in enumerate([*sent, *again])])
    target = make_table(client, database, "nopk", schema_of(stream, "nopk"), engine="append", policy=POLICY)
    Feed(client, database, target, stream, topic, POLICY, records={0: records}).run()
    assert equal(client, database, source, stream, "nopk") == []


@pytest.mark.integration
@each_of("engine", ("append", *ENGINES), "append")
def test_rows_of_a_snapshot_whose_key_is_configured(client: Client, database: str, engine: str) -> None:
    """They share one position, and Kafka keys do not tell them apart. What is sent again is recognised all the same."""
    snapshot = [mysql("r", None, None, row(i, f"s{i}"), 90, snapshot="true") for i in range(1, 6)]
    changes = [mysql("u", None, row(1, "s1"), row(1, "a"), 100), mysql("u", None, row(1, "a"), row(1, "b"), 110)]
    it = hand(client, database, engine, [*snapshot, *snapshot[3:], *changes, *changes], key_columns=("id",))
    it.read((0, 3), (0, 11))
    assert it.view() == [(1, "b"), *((i, f"s{i}") for i in range(2, 6))]
    assert it.verify() == (0, 0, 0)
    if engine == "append":
        assert len(it.stored()) == 7


@pytest.mark.long
@pytest.mark.integration
@each_of("engine", ("append", *ENGINES), "replacing")
def test_an_update_that_changes_a_configured_key_is_a_letter_and_no_second_row(
    client: Client, database: str, engine: str
) -> None:
    """It would be two changes, and one record without a Kafka key states both: the former row would stay as well."""
    events = [mysql("c", None, None, row(i, f"v{i}"), 100 + i) for i in (1, 2)]
    moved = mysql("u", None, row(1, "v1"), row(7, "v1"), 110)
    later = [mysql("u", None, row(7, "v1"), row(7, "w"), 120), mysql("u", None, row(2, "v2"), row(2, "x"), 130)]
    it = made(client, database, OWN.get(engine, APPEND), policy_of(key_columns=("id",)), [[*events, moved]])
    it.read((0, 3))
    assert (it.feed.letters, it.view()) == (1, [(1, "v1"), (2, "v2")])
    it.source = Rows([(7, "v1"), (2, "v2")])
    assert it.verify_source() == (1, 1, 0)
    if engine != "append":
        repaired_from_source(it, (7, "v1"), (2, "v2"))
        it.topic([*events, moved, *later])
        it.read((0, 5))
        assert it.view() == [(2, "x"), (7, "w")]
