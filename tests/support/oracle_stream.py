"""Streams of the Oracle connector, written by hand."""

from typing import Any

from tests.model.shapes import Column, Layout, TableShape
from tests.support.documents import Stream

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
