"""The SQL Server connector's sample events, put together to a stream that equals a table."""

import json
import re
from typing import Any, Literal

from tests.model.shapes import Column, Layout, TableShape
from tests.support.documents import FOLDER, Stream, sample

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
