"""The model writes the bytes that Kafka Connect and Debezium wrote."""

import gzip
import json
from base64 import b64decode
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.model import Column, TableShape, draw_history
from tests.model.delivery import Encoder
from tests.model.events import Event
from tests.model.mysql import MySql
from tests.model.postgres import Postgres
from tests.model.wire import dumps, header_struct, partition_of

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


@cache
def recorded(name: str) -> list[dict[str, Any]]:
    path = FIXTURES / name
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    records = [json.loads(line) for line in text.splitlines()]
    for record in records:
        for side in ("key", "value"):
            record[side] = None if record[side] is None else b64decode(record[side])
        record["headers"] = [(name, b64decode(text)) for name, text in record["headers"]]
    return records


BUSY = ("busy/mariadb-busy-json_plain.jsonl.gz", "busy/postgres-busy-json_plain.jsonl.gz")


@pytest.mark.long
@pytest.mark.parametrize("name", BUSY)
def test_json_is_written_as_the_converter_writes_it(name: str) -> None:
    for record in recorded(name)[::4]:
        for side in ("key", "value"):
            if record[side] is not None:
                assert dumps(json.loads(record[side])) == record[side]


@pytest.mark.parametrize("name", [*BUSY, "postgres-json_schema.jsonl", "mariadb-json_plain.jsonl"])
def test_records_lie_in_the_partition_that_kafka_chose(name: str) -> None:
    rows = [r for r in recorded(name) if r["key"] is not None and r["topic"].count(".") == 2]
    assert len(rows) > 20
    assert all(partition_of(r["key"], 3) == r["partition"] for r in rows)


def test_key_change_headers_are_the_recorded_pseudo_json() -> None:
    """A delete half's header is the key of the create half, control characters and emoji raw."""
    seen = 0
    for name in (*BUSY, "postgres-json_plain.jsonl"):
        keys = {json.dumps(json.loads(key)) for key in {r["key"] for r in recorded(name) if r["key"]}}
        for record in recorded(name):
            for header, text in record["headers"]:
                if not header.endswith(("newkey", "oldkey")) or "oddkey" in record["topic"]:
                    continue
                key = json.loads(text, strict=False)
                assert json.dumps(key) in keys
                assert header_struct(key) == text
                seen += 1
    assert seen > 100


ACCT = TableShape(
    "acct",
    (
        Column("id", "int64", False, "Int64"),
        Column("k", "int32", False, "Int32"),
        Column("owner", "string", True, "Nullable(String)"),
        Column("note", "string", True, "Nullable(String)", toastable=True),
        Column("n", "int32", True, "Nullable(Int32)"),
        Column("price", "bytes", True, "Nullable(Decimal(20, 4))"),
        Column("updated", "int64", True, "Nullable(DateTime64(6))"),
    ),
    ("id", "k"),
)
TR = TableShape(
    "tr",
    (
        Column("id", "int64", False, "Int64"),
        Column("k", "int32", False, "Int32"),
        Column("v", "string", True, "Nullable(String)"),
    ),
    ("id", "k"),
)


def told_again(record: dict[str, Any], encoder: Encoder, source: dict[str, Any], document: dict[str, Any]) -> bytes:
    """The recorded event, put together again by the model from its loose values."""
    event = Event("change", document["op"], None, document["before"], document["after"], source)
    event.transaction = document["transaction"]
    return encoder.value(event, document["ts_ns"]) or b""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("table", [ACCT, TR], ids=["plain", "schema"])
def test_postgres_events_equal_recorded_ones(table: TableShape) -> None:
    schema = table is TR
    name, server = ("postgres-json_schema.jsonl", "pgjs") if schema else (BUSY[1], "pgjp")
    topic = f"{server}.public.{table.name}"
    connector = Postgres(table, server, Counter())
    encoder = Encoder(connector, topic, schema, "false" if schema else None)
    ops: Counter[str] = Counter()
    for record in recorded(name):
        if record["topic"] != topic or record["value"] is None:
            continue
        document = json.loads(record["value"])
        document = document.get("payload", document)
        real = document["source"]
        last, lsn = json.loads(real["sequence"])
        connector.last_commit = None if last is None else int(last)
        mark = real["snapshot"] or "false"
        made = connector._source(real["ts_ms"], mark, real["txId"], int(lsn))
        # The model's clock has whole milliseconds, incremental rows have no lsn of their own.
        made |= {"ts_us": real["ts_us"], "ts_ns": real["ts_ns"]} | ({"lsn": None} if mark == "incremental" else {})
        assert told_again(record, encoder, made, document) == record["value"]
        if record["key"]:
            key = json.loads(record["key"])
            key = key.get("payload", key)
            assert encoder.key(Event("change", "u", tuple(key.values()))) == record["key"]
        ops[document["op"]] += 1
    assert set(ops) >= ({"r", "c", "t"} if schema else {"r", "c", "u", "d"})


@pytest.mark.long
@pytest.mark.parametrize("table", [ACCT, TR], ids=["plain", "schema"])
def test_mariadb_events_equal_recorded_ones(table: TableShape) -> None:
    schema = table is TR
    name, server = ("mariadb-json_schema.jsonl", "myjs") if schema else (BUSY[0], "myjp")
    topic = f"{server}.src.{table.name}"
    connector = MySql(table, server, Counter(), flavour="mariadb")
    encoder = Encoder(connector, topic, schema, "false" if schema else None)
    ops: Counter[str] = Counter()
    for record in recorded(name):
        if record["topic"] != topic or record["value"] is None:
            continue
        document = json.loads(record["value"])
        document = document.get("payload", document)
        real = document["source"]
        connector.file, connector.pos = int(real["file"].split(".")[1]), real["pos"]
        connector.server_id = real["server_id"]
        connector.gtids = real["gtid"] is not None
        connector._gtid = int(real["gtid"].split("-")[2]) if real["gtid"] else 0
        made = connector._source(real["ts_ms"], real["snapshot"] or "false", real["row"])
        made |= {"ts_us": real["ts_us"], "ts_ns": real["ts_ns"]}
        assert told_again(record, encoder, made, document) == record["value"]
        ops[document["op"]] += 1
    assert set(ops) >= ({"r", "c", "t"} if schema else {"r", "c", "u", "d"})


def test_headers_are_the_recorded_ones() -> None:
    histories = [draw_history(seed) for seed in range(60)]
    drawn = {tuple(name for name, _ in r.headers) for h in histories for p in h.records.values() for r in p}
    real = {tuple(name for name, _ in r["headers"]) for r in recorded(BUSY[1])}
    assert drawn == real | {()}  # heartbeats and transaction records have none
