"""Oracle's LOB columns, whose values the log has only where they change, and its key changes."""

from typing import Any

import pytest

from ch_sink.model.policy import Policy
from tests.model.shapes import Column, Layout, TableShape
from tests.support.documents import KEYED, Stream, faults_of, rows_of, run_of
from tests.support.hand import PLACEHOLDER

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


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("engine", KEYED)
def test_snapshot_lobs_moves_and_key_changes_equal_the_table(engine: str, layout: Layout) -> None:
    orders = Orders(layout)
    orders.send("r", 1, None, row(1, "new", "first notes"), 100, None)
    orders.send("r", 2, None, row(2, "new", None), 100, None)
    orders.send("u", 1, row(1, "new", PLACEHOLDER), row(1, "paid", PLACEHOLDER), 105, 130)
    # Made before that change, committed after it: ``scn`` is no order.
    orders.send("u", 1, row(1, "paid", PLACEHOLDER), row(1, "sent", PLACEHOLDER, 1), 103, 140)
    orders.delete(2, row(2, "new", PLACEHOLDER), 150, 151, newkey={"ID": 3})
    orders.send("c", 3, None, row(3, "new", PLACEHOLDER), 150, 151, oldkey={"ID": 2})
    orders.send("u", 3, row(3, "new", PLACEHOLDER), row(3, "new", "at last"), 160, 161)
    # Two keys exchanged in one statement.
    for old, new, status, region in ((1, 3, "sent", 1), (3, 1, "new", 0)):
        orders.delete(old, row(old, status, PLACEHOLDER, region), 170 + old, 180, newkey={"ID": new})
        orders.send("c", new, None, row(new, status, PLACEHOLDER, region), 170 + old, 180, oldkey={"ID": old})
    truth = [row(3, "sent", "first notes", 1), row(1, "new", "at last")]
    for seed in range(10):
        assert faults_of(orders.stream.history(truth, 1 + seed % 3), engine, seed) == [], seed


@pytest.mark.parametrize("engine", ["replacing", "versioned"])
def test_an_inserted_row_never_takes_the_lob_of_the_deleted_one_before(engine: str) -> None:
    """Without ``lob.enabled`` an insert has the placeholder: a dead letter, or null where that is chosen."""
    orders = Orders(LAYOUTS[0])
    orders.send("r", 1, None, row(1, "new", "secret of another row"), 100, None)
    orders.delete(1, row(1, "new", PLACEHOLDER), 110, 111)
    orders.send("c", 1, None, row(1, "again", PLACEHOLDER), 120, 121)
    history = orders.stream.history([], 1)
    for seed in range(10):
        run = run_of(history, engine, seed, Policy())
        assert rows_of(run) == []
        assert len({letter.offset for letter in run.letters.letters}) == 1
        run = run_of(history, engine, seed, Policy(on_unresolved="null"))
        assert rows_of(run) == [row(1, "again", None)]
