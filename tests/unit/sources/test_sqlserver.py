"""Positions of SQL Server's change tables."""

import json
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import PositionError
from ch_sink.model.change import Records, Skipped
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Ports
from ch_sink.pipeline.target import Target
from ch_sink.sources.logs import SQLSERVER, SQLServerBlock
from ch_sink.types.column import Column
from tests.model.shapes import Layout
from tests.support.avro import Topic, envelope
from tests.support.choose import each_value
from tests.support.decoding import replacing
from tests.support.documents import (
    BY_NAME,
    CUSTOMERS,
    KEYED,
    SQLSERVER_TRUTH,
    Encoding,
    decode,
    faults_of,
    sample,
    sqlserver,
)
from tests.support.event import chunk_of


def numbers(block: SQLServerBlock) -> tuple[int, int, bool]:
    found = SQLSERVER.positions([block])
    commit, inner = ((int(w[0, 0]) << 64) | int(w[0, 1]) for w in (found.commit, found.inner))
    return commit, inner, bool(found.has_commit[0])


def test_the_commit_position_is_the_commit_lsn_whole() -> None:
    block = SQLServerBlock("00000027:00000758:0005", "00000027:00000758:0003", 1)
    assert numbers(block) == (0x27_0000_0758_0005, (0x27_0000_0758_0003 << 48) | 1, True)
    assert numbers(SQLServerBlock("FFFFFFFF:ffffffff:ffff", None, None)) == ((1 << 80) - 1, 0, True)


def test_snapshots_have_no_change_lsn() -> None:
    assert numbers(SQLServerBlock("00000027:00000758:0005", None, None))[1:] == (0, True)
    assert numbers(SQLServerBlock(None, None, None)) == (0, 0, False)


@pytest.mark.parametrize("text", ["00", "NULL", "", "00000000:00000000:0000"])
def test_a_position_of_nothing_is_none(text: str) -> None:
    assert numbers(SQLServerBlock(text, text, None)) == (0, 0, False)


def test_serial_numbers_may_be_text() -> None:
    lsn = "00000027:00000758:0003"
    assert numbers(SQLServerBlock(lsn, lsn, "2")) == numbers(SQLServerBlock(lsn, lsn, 2))


@pytest.mark.parametrize(
    ("block", "field"),
    [
        (SQLServerBlock("27:758", None, None), "commit_lsn"),
        (SQLServerBlock("00000027:00000758:0003", "x", None), "change_lsn"),
        (SQLServerBlock("00000027:00000758:0003", None, "two"), "event_serial_no"),
        (SQLServerBlock("00000027:00000758:0003", None, 1 << 48), "event_serial_no"),
        (SQLServerBlock("00000027:00000758:0003", None, -1), "event_serial_no"),
    ],
)
def test_what_is_no_position_is_named(block: SQLServerBlock, field: str) -> None:
    with pytest.raises(PositionError, match=field):
        SQLSERVER.positions([block])


TENANTS = replacing((Column("tenant", "String"), Column("id", "Int64")), ("tenant", "id"))


def tenants(encoding: str) -> tuple[Records, Decoder]:
    """One connector, two databases whose logs are of different age, routed to one topic."""
    fields = [{"name": "tenant", "type": "string"}, {"name": "id", "type": "long"}]
    texts = ("db", "change_lsn", "commit_lsn")
    schema = envelope(fields, source=[{"name": name, "type": ["null", "string"], "default": None} for name in texts])
    key_schema = {"type": "record", "name": "Key", "fields": fields}
    topic = Topic()

    def written(shape: Any, value: Any) -> bytes:
        return topic.write(shape, value) if encoding == "avro" else json.dumps(value).encode()

    pairs: list[tuple[bytes, bytes]] = []
    for number in range(6):
        for tenant, age in (("old", 1000), ("new", 5)):
            lsn = f"{age + number:08x}:00000001:0001"
            block = {"connector": "sqlserver", "name": "n", "ts_ms": 1, "snapshot": None, "db": tenant}
            block |= {"change_lsn": lsn, "commit_lsn": lsn}
            row = {"tenant": tenant, "id": number}
            event = {"op": "c", "before": None, "after": row, "source": block}
            pairs.append((written(key_schema, row), written(schema, event)))
    records = chunk_of([k for k, _ in pairs], [v for _, v in pairs])
    return records, Decoder(TENANTS, policy_of(), registry=topic.registry)


@pytest.mark.parametrize("encoding", ["json", "avro"])
def test_databases_of_one_connector_have_positions_of_their_own(encoding: str) -> None:
    records, decoder = tenants(encoding)
    made = plan(records, Target.of(TENANTS, policy_of()), decoder, State(), Ports())
    assert made.steps == []
    assert {name: found.epoch for name, found in made.state.sources.items()} == {"n/old": 0, "n/new": 0}
    assert sum(insert.rows.num_rows for insert in made.inserts) == len(records)


SEEDS = range(3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("engine", "layout", "encoding", "headers"),
    each_value(KEYED, [CUSTOMERS, BY_NAME], ["schema", "plain"], [True, False]),
)
def test_sqlserver_stream_equals_its_table(engine: str, layout: Layout, encoding: Encoding, headers: bool) -> None:
    stream = sqlserver(layout, encoding, headers=headers)
    for seed in SEEDS:
        history = stream.history(SQLSERVER_TRUTH, partitions=1 + seed % 3)
        assert faults_of(history, engine, seed) == [], seed


@pytest.mark.parametrize(
    ("engine", "serials"), each_value(["replacing", "versioned"], [("1", "2"), (1, 1), (None, None), (2, 1)])
)
def test_sqlserver_serial_numbers_order_nothing(engine: str, serials: tuple[Any, Any]) -> None:
    """Numbers, texts, ties, none, and (``data.query.mode=direct``) against the order of sending."""
    stream = sqlserver(BY_NAME, "plain", headers=False, serials=serials)
    for seed in SEEDS:
        history = stream.history(SQLSERVER_TRUTH, partitions=1 + seed % 3)
        assert faults_of(history, engine, seed) == [], seed


def test_sqlserver_samples_are_read_as_they_stand() -> None:
    key = sample("sqlserver", "key")
    pairs = [(key, sample("sqlserver", name)) for name in ("create", "update", "delete")]
    extra = [
        (sample("sqlserver", "schema_change_key"), sample("sqlserver", "schema_change")),
        ({"id": "x"}, sample("sqlserver", "transaction_begin")),
        ({"id": "x"}, sample("sqlserver", "transaction_end")),
        (key, None),
    ]
    batch = decode(CUSTOMERS, *pairs, *extra)
    assert batch.bad == []
    assert bytes(batch.op).decode() == "cud"
    assert batch.skipped_counts == {Skipped.SCHEMA_CHANGE: 1, Skipped.TRANSACTION: 2, Skipped.TOMBSTONE: 1}
    assert batch.source_ts.tolist() == [1559729468470, 1559729995937, 1559730445243]
    assert batch.commit.tolist() == [[0, 0x27_0000_0758_0005], [0, 0x27_0000_0AC0_0007], [0, 0x27_0000_0DB0_0007]]
    assert batch.after.to_pylist()[1]["email"] == b"noreply@example.org"
    assert batch.before.to_pylist()[2]["email"] == b"noreply@example.org"
