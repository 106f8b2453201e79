"""A connector without a module of its own: what all connectors share is enough for an equal table."""

from typing import Any

import pytest

from tests.model.shapes import Column, Layout, TableShape
from tests.support.choose import each_value
from tests.support.documents import KEYED, Stream, faults_of
from tests.support.hand import PLACEHOLDER

TABLE = TableShape(
    "t",
    (
        Column("id", "int32", False, "Int32"),
        Column("text", "string", True, "Nullable(String)"),
        Column("place", "int32", False, "Int32"),
    ),
    ("id",),
)


def row(id_: int, text: str | None, place: int) -> dict[str, Any]:
    return {"id": id_, "text": text, "place": place}


def filler(id_: int) -> dict[str, Any]:
    return row(id_, None, 0)


def stream(layout: Layout) -> Stream:
    out = Stream(layout, "vitess", "plain")

    def send(op: str, id_: int, before: Any, after: Any, **headers: Any) -> None:
        block = {"connector": "vitess", "name": "v", "ts_ms": 7, "snapshot": "false", "vgtid": "[…]", "shard": "-80"}
        out.send({"id": id_}, {"op": op, "before": before, "after": after, "source": block}, **headers)

    send("c", 1, None, row(1, "a", 0))
    send("c", 2, None, row(2, "b", 1))
    send("u", 1, filler(1), row(1, PLACEHOLDER, 2))
    send("c", 1, None, row(1, "a", 3))  # a snapshot that tells its rows as creates
    send("d", 2, filler(2), None)
    out.send({"id": 2}, None)
    send("r", 3, None, row(3, "c", 1))
    send("d", 3, filler(3), None, newkey={"id": 4})
    out.send({"id": 3}, None, newkey={"id": 4})
    send("c", 4, None, row(4, "c", 1), oldkey={"id": 3})
    send("u", 4, None, row(4, "d", 0))
    return out


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("engine", "partition_by"), each_value(KEYED, [None, "place"]))
def test_the_table_equals_its_source(engine: str, partition_by: str | None) -> None:
    layout = Layout("l", TABLE, ("id",), partition_by)
    for seed in range(8):
        history = stream(layout).history([row(1, "a", 3), row(4, "d", 0)], partitions=1 + seed % 3)
        assert faults_of(history, engine, seed) == [], seed
