"""Columns of flattened rows, in JSON and in Avro."""

import json
from typing import Any

import numpy as np
import pytest

from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import ChangeBatch, Op, Records
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Ports
from ch_sink.pipeline.target import Target
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.avro import Topic, peer_read, peer_schema
from tests.support.decoding import listed, replacing, table_of
from tests.support.event import chunk_of, records
from tests.support.fixtures import partitions, registry, registry_schemas, topics

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
def test_the_engine_s_own_column_or_a_computed_one_may_have_the_name_of_the_mark(with_schema: bool) -> None:
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", "_version", None, "__deleted")
    columns = (*COLUMNS, Column("_version", "UInt64"), Column("__deleted", "UInt8"))
    decode(TargetTable("d", "t", engine, columns, ("id",)), with_schema=with_schema)
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


ADDED = ("__op", "__deleted")


def row_schema(envelope: Any) -> Any:
    """The row's record of an envelope, with added fields."""
    union = next(f for f in envelope["fields"] if f["name"] == "before")["type"]
    record = dict(next(branch for branch in union if isinstance(branch, dict)))
    added = [{"name": name, "type": ["null", "string"], "default": None} for name in ADDED]
    return {**record, "fields": [*record["fields"], *added]}


def flattened(records: Records, database: str, topic: Topic) -> Records:
    """Mode ``rewrite-with-tombstone``; keys stay as they are."""
    schemas = registry_schemas(database)
    values: list[bytes | None] = []
    for value in records.values:
        if value is None:
            values.append(None)
            continue
        found = schemas[int.from_bytes(value[1:5], "big")]
        schema = json.loads(found["schema"])
        event: Any = peer_read(peer_schema(found["schema"]), value[5:])[0]
        image = event["after"] or event["before"]
        row = {**image, "__op": event["op"], "__deleted": "false" if event["after"] else "true"}
        values.append(topic.write(row_schema(schema), row))
    return Records(
        records.topic, records.partition, records.offsets, records.timestamps, records.keys, values, records.headers
    )


class _Both:
    """The recorded registry for keys, and one for the rows."""

    def __init__(self, *registries: Any) -> None:
        self.registries = registries

    def find(self, schema_id: int) -> Any:
        return next((found for r in reversed(self.registries) if (found := r.find(schema_id))), None)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("table", ["kc", "nn", "strkey", "all_types"])
@pytest.mark.parametrize("database", ["mariadb", "postgres"])
def test_rows_in_avro_are_those_of_their_envelopes(database: str, table: str) -> None:
    stream = f"{database}-avro"
    topic = next(t for t in topics(stream) if t.rpartition(".")[2] == table)
    recorded = registry(stream)
    for sent in partitions(stream, topic).values():
        schema = sample_schema(sent, registry=recorded)
        assert schema is not None
        target = table_of(schema)
        want = Decoder(target, policy_of(), registry=recorded).decode(sent)
        own = Topic()
        flat = flattened(sent, database, own)
        have = Decoder(target, policy_of(), registry=_Both(recorded, own.registry)).decode(flat)
        assert not have.bad
        assert have.offset.tolist() == want.offset.tolist()
        assert have.op.tolist() == want.op.tolist()
        assert have.skipped_counts == want.skipped_counts
        assert have.key.equals(want.key)
        kept = np.flatnonzero(want.op != Op.DELETE)
        assert repr(have.after.take(kept).to_pylist()) == repr(want.after.take(kept).to_pylist())


def test_a_schema_that_allows_null_is_that_of_its_rows_and_null_is_a_tombstone() -> None:
    """Connect writes an optional struct, as ``after`` is, under a union with null."""
    topic = Topic()
    table = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))
    fields = [{"name": "id", "type": "long"}, {"name": "v", "type": ["null", "string"]}]
    record = {"type": "record", "name": "Value", "fields": fields}
    for union in (["null", record], [record, "null"]):
        values = [topic.write(union, {"id": 1, "v": "a"}), topic.write(union, None)]
        keys = [b'{"id":1}', b'{"id":2}']
        records = chunk_of(keys, values)
        batch = Decoder(table, policy_of(), registry=topic.registry).decode(records)
        assert not batch.bad
        assert batch.op.tolist() == [Op.UPDATE, Op.DELETE]
        assert listed(batch.key) == [{"id": 1}, {"id": 2}]
