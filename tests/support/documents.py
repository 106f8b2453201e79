"""Streams of documents as connectors of SQL Server, Oracle, SingleStore and others send them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from ch_sink.decode import Decoder
from ch_sink.model.change import ChangeBatch
from ch_sink.model.policy import Policy, policy_of
from ch_sink.types.arrow import arrow_type
from tests.model import History, KafkaRecord, draw_plan
from tests.model.reference import difference, sign_faults
from tests.model.shapes import Column, Layout, TableShape
from tests.model.wire import dumps, partition_of
from tests.support.event import chunk_of
from tests.support.harness import ENGINES, Run, target_table

FOLDER = Path(__file__).parent.parent / "fixtures" / "documents"
KEYED = tuple(name for name in ENGINES if name != "append without key")

_REPAIRS = (
    (re.compile(r"[ \t]+\(\d+\)(?=[ \t]*\n)"), ""),  # callouts: (1)
    (re.compile(r"<>"), ""),  # a callout that lost its number
    (re.compile(r"\{\s*\.\.\.\s*\}"), "null"),  # a schema left out
    (re.compile(r"^\s*\.\.\.\s*\n", re.MULTILINE), ""),  # fields left out
    (re.compile(r'("schema": null,)\s*\},'), r"\1"),  # a brace too many
    (re.compile(r",(\s*[}\]])"), r"\1"),  # trailing commas
)
"""What is done to a sample that is not JSON, in this order; nothing else is."""


def text(source: str, name: str) -> str:
    """The sample as the document prints it."""
    return (FOLDER / source / f"{name}.json").read_text()


def sample(source: str, name: str) -> Any:
    """The sample as a document, after the repairs above if it needs them."""
    found = text(source, name)
    for pattern, instead in _REPAIRS:
        found = pattern.sub(instead, found)
    return json.loads(found)


def decode(layout: Layout, *pairs: tuple[Any, Any]) -> ChangeBatch:
    """The product's reading of keys and values."""
    keys, values = ([None if d is None else dumps(d) for d in column] for column in zip(*pairs, strict=True))
    records = chunk_of(keys, values)
    return Decoder(target_table(layout, ENGINES["replacing"]), policy_of(), want_before=True).decode(records)


_Sent = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int | None]


@dataclass(slots=True)
class Stream:
    """Records of a topic, in the order of their sending."""

    layout: Layout
    connector: Any
    encoding: Literal["plain", "schema"] = "schema"
    sent: list[_Sent] = field(default_factory=list)

    def send(self, key: Any, value: Any, *, partition: int | None = None, **headers: Any) -> None:
        """One record of JSON documents; ``plain`` drops the schemas, as ``schemas.enable=false`` does.

        ``partition``: by default that of the key's hash. Headers: ``newkey`` and ``oldkey``, keys as documents.
        """
        marks = [(f"__debezium.{name}", dumps(document)) for name, document in headers.items()]
        self.sent.append((self._bytes(key), self._bytes(value), marks, partition))

    def _bytes(self, document: Any) -> bytes | None:
        if document is None:
            return None
        enveloped = isinstance(document, dict) and "payload" in document
        return dumps(document["payload"] if enveloped and self.encoding == "plain" else document)

    def history(self, truth: list[dict[str, Any]], partitions: int) -> History:
        """As Kafka holds it: by the key's hash; records without a key in the first partition."""
        records: dict[int, list[KafkaRecord]] = {p: [] for p in range(partitions)}
        for time, (key, value, headers, place) in enumerate(self.sent):
            at = 0 if key is None else partition_of(key, partitions)
            home = records[at if place is None else place]
            home.append(KafkaRecord(len(home), key, value, headers, 1_700_000_000_000 + time))
        starts, ends = dict.fromkeys(records, 0), {p: len(found) for p, found in records.items()}
        return History(
            "topic", "name", self.connector, "full", self.encoding, self.layout, records, starts, ends, truth, []
        )


def run_of(
    history: History, engine: str, seed: int, policy: Policy | None = None, stored: Sequence[dict[str, Any]] = ()
) -> Run:
    """Run the stream in one way of cutting, interleaving and dying.

    ``stored``: rows that something else wrote to the table before, at version 0.
    """
    chosen = policy or policy_of(on_bad_record="fail")
    table = target_table(history.layout, ENGINES[engine])
    schema = pa.schema([(c.name, arrow_type(c.type)) for c in table.source_columns])
    run = Run(
        history,
        ENGINES[engine],
        policy=chosen,
        decoder=lambda want: Decoder(table, chosen, want_before=want),
        schema=schema,
    )
    system = {"_version": bytes(16), "_is_deleted": 0, "_sign": 1, "_op": "r"}
    there = {name: value for name, value in system.items() if table.column(name) is not None}
    run.table.put({n: v.encode() if isinstance(v, str) else v for n, v in row.items()} | there for row in stored)
    run.run(draw_plan(seed, history))
    return run


def faults_of(history: History, engine: str, seed: int, stored: Sequence[dict[str, Any]] = ()) -> list[str]:
    """What is wrong at the end of such a run."""
    run = run_of(history, engine, seed, stored=stored)
    faults = list(run.between)
    if wrong := difference(history, rows_of(run)):
        faults.append(wrong)
    if run.letters.stored:
        faults.append(f"dead letters: {run.letters.stored}")
    if engine in ("collapsing", "versioned"):
        faults += sign_faults(history.table, [_plain(row) for row in run.table.rows], "_sign", history.truth)
    return faults


def rows_of(run: Run) -> list[dict[str, Any]]:
    """The table as its current-state view shows it."""
    return [_plain(row) for row in run.table.current()]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {n: v.decode() if isinstance(v, bytes) and n != "_version" else v for n, v in row.items()}


TABLE = TableShape(
    "ORDERS",
    (
        Column("ID", "int32", False, "Int32"),
        Column("STATUS", "string", True, "Nullable(String)"),
        Column("NOTES", "string", True, "Nullable(String)"),
        Column("REGION", "int32", False, "Int32"),
    ),
    ("ID",),
)


LAYOUTS = [Layout("by key", TABLE, ("ID",)), Layout("by region", TABLE, ("ID",), "REGION")]


def row(id_: int, status: str | None, notes: str | None, region: int = 0) -> dict[str, Any]:
    return {"ID": id_, "STATUS": status, "NOTES": notes, "REGION": region}


class Orders:
    """A stream of one table; SCNs by hand."""

    def __init__(self, layout: Layout) -> None:
        self.stream = Stream(layout, "oracle", "plain")

    def send(self, op: str, id_: int, before: Any, after: Any, scn: int, commit: int | None, **headers: Any) -> None:
        block = {"version": "3.0.6.Final", "connector": "oracle", "name": "or", "ts_ms": 1741182499000, "db": "ORCL"}
        block |= {"snapshot": "true" if op == "r" else "false", "schema": "APP", "table": "ORDERS", "txId": None}
        block |= {"scn": str(scn), "commit_scn": None if commit is None else str(commit), "lcr_position": None}
        if commit is not None:
            block |= {"rs_id": f"0x0034b1.{scn:08x}.0010", "ssn": 0, "redo_thread": 1}
        event = {"before": before, "after": after, "source": block, "op": op, "ts_ms": 1, "transaction": None}
        self.stream.send({"ID": id_}, event, **headers)

    def delete(self, id_: int, before: Any, scn: int, commit: int, **headers: Any) -> None:
        self.send("d", id_, before, None, scn, commit, **headers)
        self.stream.send({"ID": id_}, None, **headers)


def example(key: str, clickhouse: str) -> Layout:
    """``CREATE TABLE example (a INT)``: no primary key, so that the row's internal id is the key."""
    columns = (Column(key, "string" if clickhouse == "String" else "int64", False, clickhouse),)
    return Layout("example", TableShape("example", (*columns, Column("a", "int32", False, "Int32")), (key,)), (key,))


def in_partitions(layout: Layout) -> Layout:
    """Partitioned by a column outside the key: deletes and updates have to find the row's old place."""
    return Layout("example by a", layout.table, layout.order_by, "a % 2")


SAMPLE_ID = "100000000000000600000007"


OTHER_ID, THIRD_ID = "100000000000000600000008", "100000000000000600000009"


def singlestore(layout: Layout, ids: tuple[Any, Any, Any], name: str, *, with_id: bool) -> Stream:
    """Snapshot sent as creates, the three samples, other rows, a snapshot that runs again after a stale offset."""
    stream = Stream(layout, "singlestore")

    def key(of: Any) -> dict[str, Any]:
        document = sample("singlestore", "key")
        field = {**document["schema"]["fields"][0], "field": name}
        return {"schema": {**document["schema"], "fields": [field]}, "payload": {name: of}}

    def event(kind: str, of: Any, mark: Any, **after: int) -> dict[str, Any]:
        payload = dict(sample("singlestore", kind)["payload"])
        payload["source"] = payload["source"] | {"snapshot": mark}
        if after:
            payload["after"] = after | ({name: of} if with_id else {})
        return {"schema": None, "payload": payload}

    one, two, three = ids
    stream.send(key(two), event("create", two, "true", a=5))
    stream.send(key(three), event("create", three, "true", a=6))
    stream.send(key(one), event("create", one, "true", a=33))
    stream.send(key(one), event("update", one, "false", a=22))
    stream.send(key(two), event("update", two, "false", a=8))
    stream.send(key(three), event("delete", three, "false"))
    stream.send(key(three), None)
    # The connector's offset became stale: its snapshot runs again, rows that changed meanwhile included.
    stream.send(key(one), event("create", one, "true", a=22))
    stream.send(key(two), event("create", two, True, a=9))
    stream.send(key(one), event("delete", one, False))
    stream.send(key(one), None)
    return stream


Encoding = Literal["plain", "schema"]


CUSTOMERS = Layout(
    "customers",
    TableShape(
        "customers",
        (
            Column("id", "int32", False, "Int32"),
            Column("first_name", "string", False, "String"),
            Column("last_name", "string", False, "String"),
            Column("email", "string", False, "String"),
            Column("phone_number", "string", True, "Nullable(String)"),
        ),
        ("id",),
    ),
    ("id",),
)


BY_NAME = Layout("by name", CUSTOMERS.table, ("last_name", "id"), "substring(last_name, 1, 1)")


def customer(id_: int, first: str, last: str, email: str, phone: str | None = None) -> dict[str, Any]:
    return {"id": id_, "first_name": first, "last_name": last, "email": email, "phone_number": phone}


class SqlServerSamples:
    """The documents' events, with the schema that they all share, and variations of them by name."""

    def __init__(self) -> None:
        self.schema = sample("sqlserver", "create")["schema"]

    def key(self, id_: int) -> dict[str, Any]:
        return {**sample("sqlserver", "key"), "payload": {"id": id_}}

    def event(self, name: str, **changes: Any) -> dict[str, Any]:
        """A sample; ``changes`` replace its payload's fields, those of ``source`` one by one."""
        payload = dict(sample("sqlserver", name)["payload"])
        payload["source"] = payload["source"] | changes.pop("source", {})
        return {"schema": self.schema, "payload": payload | changes}

    def snapshot(self, row: dict[str, Any], mark: Any = True) -> dict[str, Any]:
        """The source block of the schema change's sample is that of the snapshot."""
        block = sample("sqlserver", "schema_change")["payload"]["source"]
        read = self.event("create", op="r", before=None, after=row)
        read["payload"]["source"] = block | {"snapshot": mark}
        return read

    def with_phone(self) -> dict[str, Any]:
        """After the schema evolution of the document: one field more in both images."""
        fragment = (FOLDER / "sqlserver" / "phone_number.fragment").read_text()
        added, row = (json.loads(found) for found in re.findall(r"\{[^{}]*\}", fragment))
        images = [
            {**f, "fields": [*f["fields"], added]} if f["field"] in ("before", "after") else f
            for f in self.schema["fields"]
        ]
        lsns = {"commit_lsn": "00000028:00000010:0004", "change_lsn": "00000028:00000010:0002", "event_serial_no": 1}
        event = self.event("create", after=row, source=lsns)
        return {"schema": {**self.schema, "fields": images}, "payload": event["payload"]}


def without_phone(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "phone_number"}


def sqlserver(layout: Layout, encoding: Encoding, *, headers: bool, serials: tuple[Any, Any] = (1, 2)) -> Stream:
    """Snapshot, create, update, delete and tombstone as in the document, and everything else that it describes."""
    samples, stream = SqlServerSamples(), Stream(layout, "sqlserver", encoding)
    first = [
        customer(1001, "Sally", "Thomas", "sally.thomas@acme.com"),
        customer(1002, "George", "Bailey", "gbailey@foobar.com"),
        customer(1003, "Edward", "Walker", "ed@walker.com"),
        customer(1004, "Anne", "Kretchmar", "annek@noanswer.org"),
    ]
    stream.send(sample("sqlserver", "schema_change_key"), sample("sqlserver", "schema_change"))
    marks = (True, "true", "first_in_data_collection", "last")
    for row, mark in zip(first, marks, strict=True):
        stream.send(samples.key(row["id"]), samples.snapshot(without_phone(row), mark))
    stream.send({"id": sample("sqlserver", "transaction_begin")["id"]}, sample("sqlserver", "transaction_begin"))
    stream.send(samples.key(1005), samples.event("create"))
    stream.send(samples.key(1005), samples.event("update"))
    # A key update: one commit and one change LSN, serial numbers 1 and 2.
    at = {"commit_lsn": "00000027:00000b10:0007", "change_lsn": "00000027:00000b10:0003"}
    old, new = without_phone(first[2]), without_phone(first[2] | {"id": 1013})
    gone = samples.event("delete", before=old, source=at | {"event_serial_no": serials[0]})
    come = samples.event("create", after=new, source=at | {"event_serial_no": serials[1]})
    stream.send(samples.key(1003), gone, **({"newkey": {"id": 1013}} if headers else {}))
    stream.send(samples.key(1003), None, **({"newkey": {"id": 1013}} if headers else {}))
    stream.send(samples.key(1013), come, **({"oldkey": {"id": 1003}} if headers else {}))
    # A row of an incremental snapshot, as the sample writes it: times as text, at the stream's position.
    read = sample("sqlserver", "incremental")
    again = samples.event("create", op="r", after=old | {"id": 1002, "first_name": "Georg"}, ts_ms=read["ts_ms"])
    again["payload"]["source"] |= {**read["source"], "commit_lsn": at["commit_lsn"], "change_lsn": None}
    again["payload"] |= {"transaction": read["transaction"]}
    stream.send(samples.key(1002), again)
    # A row that leaves its place, with the transaction block as the sample writes it.
    moved = {"commit_lsn": "00000027:00000c00:0004", "change_lsn": "00000027:00000c00:0002", "event_serial_no": 2}
    enriched = sample("sqlserver", "enriched")["transaction"]
    was, now = without_phone(first[0]), without_phone(first[0] | {"last_name": "Archer"})
    stream.send(samples.key(1001), samples.event("update", before=was, after=now, source=moved, transaction=enriched))
    stream.send(samples.key(1005), samples.event("delete"))
    stream.send(samples.key(1005), None)
    stream.send({"id": sample("sqlserver", "transaction_end")["id"]}, sample("sqlserver", "transaction_end"))
    stream.send(samples.key(1005), samples.with_phone())
    return stream


SQLSERVER_TRUTH = [
    customer(1001, "Sally", "Archer", "sally.thomas@acme.com"),
    customer(1002, "Georg", "Walker", "ed@walker.com"),
    customer(1004, "Anne", "Kretchmar", "annek@noanswer.org"),
    customer(1005, "John", "Doe", "john.doe@example.com", "+1-555-123456"),
    customer(1013, "Edward", "Walker", "ed@walker.com"),
]
