"""Flattened rows in tables that have columns of their own for what is added to the row."""

import json
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.model.change import ChangeBatch
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Ports
from ch_sink.pipeline.target import Target
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.event import records

COLUMNS = (Column("id", "Int64"), Column("v", "Nullable(String)"))
ROWS: list[dict[str, Any]] = [
    {"id": 1, "v": "a", "__deleted": "false"},
    {"id": 2, "v": "b", "__deleted": "true"},
    {"id": 3, "v": "c", "__deleted": False},
    {"id": 4, "v": "d", "__deleted": True},
]


def value(row: dict[str, Any], *, with_schema: bool) -> bytes:
    if not with_schema:
        return json.dumps(row).encode()
    kind = "string" if isinstance(row["__deleted"], str) else "boolean"
    kinds = {"id": "int64", "v": "string", "__deleted": kind}
    fields = [{"field": name, "type": kinds[name], "optional": True} for name in row]
    return json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": row}).encode()


def decode(table: TargetTable, *, with_schema: bool) -> ChangeBatch:
    found = records(*[(row["id"], value(row, with_schema=with_schema)) for row in ROWS])
    batch = Decoder(table, policy_of()).decode(found)
    assert not batch.bad
    assert not batch.unknown
    assert "".join(map(chr, batch.op)) == "udud"
    return batch


@pytest.mark.parametrize("with_schema", [False, True])
@pytest.mark.parametrize(
    ("column", "shown"),
    [
        ("UInt8", 0),
        ("Nullable(Int8)", 0),
        ("Int64", 0),
        ("Bool", False),
        ("String", b"false"),
        ("LowCardinality(Nullable(String))", b"false"),
    ],
)
def test_a_column_for_the_mark_of_deletes(column: str, shown: Any, with_schema: bool) -> None:
    batch = decode(replacing((*COLUMNS, Column("__deleted", column)), ("id",)), with_schema=with_schema)
    assert [row["__deleted"] for row in batch.after.to_pylist()] == [shown, None, shown, None]


@pytest.mark.parametrize("with_schema", [False, True])
def test_the_engine_s_own_column_may_have_the_name_of_the_mark(with_schema: bool) -> None:
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", "_version", None, "__deleted")
    columns = (*COLUMNS, Column("_version", "UInt64"), Column("__deleted", "UInt8"))
    decode(TargetTable("d", "t", engine, columns, ("id",)), with_schema=with_schema)


@pytest.mark.parametrize("with_schema", [False, True])
def test_so_may_a_column_that_is_computed(with_schema: bool) -> None:
    computed = Column("__deleted", "UInt8", "ALIAS", "_is_deleted")
    decode(replacing((*COLUMNS, computed), ("id",)), with_schema=with_schema)


@pytest.mark.parametrize("added", [{}, {"__deleted": "false"}, {"__op": "u"}, {"__lsn": 5}])
def test_the_reason_names_the_placeholder_where_the_value_is_one(added: dict[str, Any]) -> None:
    row = {"id": 1, "v": "__debezium_unavailable_value", **added}
    table = replacing(COLUMNS, ("id",))
    policy = policy_of()
    found = records((1, json.dumps(row).encode()))
    made = plan(found, Target.of(table, policy), Decoder(table, policy), State(alone=True), Ports())
    assert [bad.reason for bad in made.bad] == [
        "column 'v' holds the unavailable-value placeholder, and no earlier value of this row is known"
    ]


@pytest.mark.parametrize("shown", [1, "x", None, {"a": 1}, [1], False])
@pytest.mark.parametrize("name", ["after", "before", "op", "source", "payload", "schema"])
def test_a_row_may_have_columns_named_like_parts_of_an_event(name: str, shown: Any) -> None:
    table = replacing((*COLUMNS, Column(name, "Nullable(String)")), ("id",))
    row = {"id": 1, "v": "a", name: shown, "new": 5, "__deleted": "false"}
    batch = Decoder(table, policy_of(evolve="add_columns")).decode(records((1, json.dumps(row).encode())))
    assert [c.name for c in batch.unknown] == ["new"]
    assert [b.reason for b in batch.bad] == []
