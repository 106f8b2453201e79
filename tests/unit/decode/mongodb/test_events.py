"""Document events to change events: keys, images, updates, what is skipped and what is bad; in JSON and in Avro."""

import json
from typing import Any

import msgspec
import pytest

from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import TableError
from ch_sink.model.change import ChangeBatch, Op, Records
from ch_sink.model.policy import policy_of
from ch_sink.ports import SchemaRegistry
from ch_sink.sources import source_for
from ch_sink.types.column import Column
from tests.support.avro import Topic
from tests.support.decoding import listed, replacing
from tests.support.event import chunk_of
from tests.support.hand import Event
from tests.support.mongodb import Description, draw_collection, event, sample, update_event

TABLE = replacing((Column("_id", "String"), Column("document", "String"), Column("n", "Nullable(Int32)")), ("_id",))

TEXT = ["null", "string"]
CUT = {
    "type": "record", "name": "truncatedarray", "namespace": "io.debezium.connector.mongodb.changestream",
    "fields": [{"name": "field", "type": "string"}, {"name": "size", "type": "int"}],
}  # fmt: skip
DESCRIPTION = {
    "type": "record", "name": "updatedescription", "namespace": "io.debezium.connector.mongodb.changestream",
    "fields": [
        {"name": "removedFields", "type": ["null", {"type": "array", "items": "string"}], "default": None},
        {"name": "updatedFields", "type": TEXT, "default": None},
        {"name": "truncatedArrays", "type": ["null", {"type": "array", "items": CUT}], "default": None},
    ],
}  # fmt: skip
SOURCE = {
    "type": "record", "name": "Source", "namespace": "io.debezium.connector.mongo",
    "fields": [
        *({"name": n, "type": "string"} for n in ("version", "connector", "name", "db", "collection")),
        {"name": "ts_ms", "type": "long"}, {"name": "snapshot", "type": TEXT, "default": "false"},
        {"name": "ord", "type": "int"}, {"name": "lsid", "type": TEXT, "default": None},
        {"name": "txnNumber", "type": ["null", "long"], "default": None},
    ],
}  # fmt: skip
ENVELOPE = {
    "type": "record", "name": "Envelope", "namespace": "fulfillment.inventory.customers",
    "fields": [
        *({"name": n, "type": TEXT, "default": None} for n in ("before", "after")),
        {"name": "updateDescription", "type": ["null", DESCRIPTION], "default": None},
        {"name": "source", "type": SOURCE}, {"name": "op", "type": TEXT, "default": None},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}  # fmt: skip
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "string"}]}


def records(pairs: list[tuple[bytes | None, bytes | None]]) -> Records:
    return chunk_of([k for k, _ in pairs], [v for _, v in pairs])


def as_json(events: list[Event]) -> Records:
    return records([(json.dumps(e.key).encode(), json.dumps(e.value).encode()) for e in events])


def decode(given: Records, registry: SchemaRegistry | None = None, **choices: Any) -> ChangeBatch:
    return Decoder(TABLE, policy_of(**choices), want_before=True, registry=registry).decode(given)


def images(batch: ChangeBatch) -> list[Any]:
    return [
        (Op(o), k, a, b)
        for o, k, a, b in zip(
            batch.op.tolist(),
            batch.key.to_pylist() if batch.key is not None else [],
            batch.after.to_pylist(),
            batch.before.to_pylist() if batch.before is not None else [],
            strict=True,
        )
    ]


def test_avro_says_the_same_as_json() -> None:
    for seed in range(5):
        collection, dialect = draw_collection(seed + 500, typed=True)
        events = [e for e in collection.events(dialect) if e.value is not None and "patch" not in e.value]
        topic = Topic()
        pairs = [(topic.write(KEY, e.key), topic.write(ENVELOPE, e.value)) for e in events]
        one = decode(as_json(events), document_keys="typed")
        other = decode(records(pairs), topic.registry, document_keys="typed")
        assert images(one) == images(other)
        assert not one.bad
        assert not other.bad
        assert {n: m.tolist() for n, m in one.unavailable.items()} == {
            n: m.tolist() for n, m in other.unavailable.items()
        }
        assert {n: sorted(u.changes) for n, u in one.updates.items()} == {
            n: sorted(u.changes) for n, u in other.updates.items()
        }


def test_updates_leave_out_what_they_do_not_state() -> None:
    batch = decode(as_json([update_event("a", Description({"n": 5})), update_event("a", Description({}, ["n"]))]))
    assert batch.after.to_pylist() == [
        {"_id": b"a", "document": None, "n": 5},
        {"_id": b"a", "document": None, "n": None},
    ]
    assert batch.unavailable["document"].tolist() == [True, True]
    assert "n" not in batch.unavailable
    changed = batch.updates["document"].changes[0](b'{"_id":"a","x":[1.0]}')
    assert changed.to_pylist() == [b'{"_id":"a","x":[1.0],"n":5}']


def test_an_update_with_its_before_image_is_a_whole_document() -> None:
    batch = decode(as_json([update_event("a", Description({"n": 5}), before={"_id": "a", "m": 1})]))
    assert batch.after.to_pylist() == [{"_id": b"a", "document": b'{"_id":"a","m":1,"n":5}', "n": 5}]
    assert not batch.unavailable


def after(text: str) -> Event:
    """A create with this text for its document."""
    made = event("c", "1")
    return Event(made.key, {**(made.value or {}), "after": text})


BAD = {
    "no document": (after("[1]"), "expected a document"),
    "no extended json": (after("{"), "not Extended JSON"),
    "no after image": (event("c", "1"), "without an after image"),
    "an update that states nothing": (event("u", "1"), "without an after image"),
    "a wrong wrapper": (after('{"_id": "1", "x": {"$oid": "z"}}'), "not an ObjectId"),
    "a field that its column cannot take": (event("c", "1", {"_id": "1", "n": "many"}), "column 'n'"),
    "a key without id": (Event({"key": "1"}, event("c", "1", {"_id": "1"}).value), "no id"),
    "a key of null": (event("c", None, {"_id": None}), "_id is null"),
    "a patch with no fields": (event("u", "1", patch='{"$v": 2, "diff": {"u": 1}}'), "is malformed"),
    "a patch that cuts to nothing": (event("u", "1", patch='{"$v":2,"diff":{"sa":{"a":true,"l":null}}}'), "malformed"),
    "a filter that is not a document": (event("u", "1", patch='{"$set": {"a": 1}}', filter="[]"), "is malformed"),
    "nested too deeply": (after('{"a":' * 5000 + "1" + "}" * 5000), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_record_neighbours_go_on(name: str) -> None:
    wrong, reason = BAD[name]
    fine = [event("c", str(i), {"_id": str(i), "n": i}) for i in (7, 8)]
    batch = decode(as_json([fine[0], wrong, fine[1]]))
    assert batch.offset.tolist() == [0, 2]
    assert [b.index for b in batch.bad] == [1]
    assert reason in batch.bad[0].reason


def test_truncates_tombstones_and_boundaries_are_no_documents() -> None:
    truncate = event("t", 1)
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (json.dumps(one.key).encode(), json.dumps(one.value).encode()) for one in [event("c", "1", {"_id": "1"})]
    ]
    pairs += [
        (None, json.dumps(truncate.value).encode()),
        (b'{"id": "1"}', None),
        (b'{"id": "5"}', json.dumps(sample("transaction")[0]).encode()),
        (b'{"serverName": "m"}', b'{"ts_ms": 1}'),
    ]
    batch = decode(records(pairs))
    assert batch.op.tolist() == [Op.CREATE, Op.TRUNCATE]
    assert {str(kind): n for kind, n in batch.skipped_counts.items()} == {
        "tombstone": 1,
        "transaction": 1,
        "heartbeat": 1,
    }
    assert not batch.bad


def test_a_part_of_an_array_needs_the_document() -> None:
    table = replacing((Column("_id", "String"), Column("tags", "Array(String)")), ("_id",))
    given = as_json([update_event("a", Description({"tags.1": "x"})), update_event("a", Description({"tags": ["x"]}))])
    batch = Decoder(table, policy_of()).decode(given)
    assert [(b.index, b.kind, b.column) for b in batch.bad] == [(0, "unresolved", "tags")]
    assert batch.after.to_pylist() == [{"_id": b"a", "tags": [b"x"]}]


def test_fields_without_a_column_are_told_where_no_column_has_the_document() -> None:
    table = replacing((Column("_id", "String"), Column("n", "Int32"), Column("city", "String")), ("_id",))
    given = as_json([event("c", "a", {"_id": "a", "n": 1, "address": {"city": "x"}, "age": 5, "tags": []})])
    choices = policy_of(document_columns=(("city", "address.city"),))
    assert [(u.name, u.clickhouse_type) for u in Decoder(table, choices).decode(given).unknown] == [
        ("age", "Nullable(Int64)"),
        ("tags", "Nullable(String)"),
    ]
    assert not decode(given).unknown


def test_a_field_without_a_name_is_a_bad_record_where_it_should_become_a_column() -> None:
    table = replacing((Column("_id", "String"),), ("_id",))
    given = [
        event("c", "a", {"_id": "a", "": 1}),
        event("c", "b", {"_id": "b"}),
        update_event("b", Description({"": 1})),
    ]
    batch = Decoder(table, policy_of(evolve="add_columns")).decode(as_json(given))
    assert ([b.index for b in batch.bad], batch.offset.tolist(), batch.unknown) == ([0, 2], [1], [])
    assert "without a name" in batch.bad[0].reason
    ignored = Decoder(table, policy_of(evolve="ignore")).decode(as_json(given))
    assert (ignored.bad, len(ignored)) == ([], 3)


def test_a_new_fields_type_holds_all_its_values_in_the_chunk() -> None:
    table = replacing((Column("_id", "String"),), ("_id",))
    given = [event("c", "a", {"_id": "a", "f": None, "m": 1}), event("c", "b", {"_id": "b", "f": 1, "m": "x"})]
    given += [event("c", "c", {"_id": "c", "f": 1.5}), update_event("a", Description({"m": 2}))]
    found = Decoder(table, policy_of()).decode(as_json(given)).unknown
    assert [(u.name, u.clickhouse_type, u.first_offset) for u in found] == [
        ("f", "Nullable(Float64)", 0),
        ("m", "Nullable(String)", 0),
    ]


def test_a_table_without_the_key_column_is_refused() -> None:
    table = replacing((Column("id", "String"), Column("document", "String")), ("id",))
    given = as_json([event("c", "a", {"_id": "a"})])
    with pytest.raises(TableError, match="_id"):
        Decoder(table, policy_of()).decode(given)
    for choice in (policy_of(key_columns=("id",)), policy_of(document_columns=(("id", "_id"),))):
        batch = Decoder(table, choice).decode(given)
        assert listed(batch.key) == [{"id": b"a"}]


def test_init_reads_the_key_and_the_columns_from_a_sample() -> None:
    policy = policy_of(document_columns=(("age", "a.age"), ("none", "x")))
    schema = sample_schema(as_json([event("c", i, {"_id": i, "a": {"age": 0.5}}) for i in (1, 2)]), policy)
    assert schema is not None
    assert [(f.name, f.type.kind) for f in schema.key] == [("_id", "int64")]
    assert [(f.name, f.type.kind) for f in schema.fields] == [
        ("_id", "int64"), ("age", "float64"), ("none", "string"), ("document", "string"),
    ]  # fmt: skip
    mixed = sample_schema(as_json([event("c", i, {"_id": i}) for i in (1, "2")]), policy_of())
    assert mixed.key[0].type.kind == "string"


def test_init_reads_avro_too() -> None:
    topic = Topic()
    one = event("c", 1, {"_id": 1})
    given = records([(topic.write(KEY, one.key), topic.write(ENVELOPE, one.value))])
    schema = sample_schema(given, policy_of(), registry=topic.registry)
    assert schema is not None
    assert [f.name for f in schema.fields] == ["_id", "document"]


def test_the_samples_source_blocks_have_a_position() -> None:
    mongodb = source_for("mongodb")
    assert mongodb.default_strategy == "kafka_offset"
    blocks = [sample(n)[0]["payload"]["source"] for n in ("create", "update", "delete")]
    read = [
        msgspec.convert(b, msgspec.defstruct("B", [("ts_ms", int | None, None)], bases=(mongodb.wire,), kw_only=True))
        for b in [*blocks, {"ord": -1}, {"ord": 2**40, "tord": 5, "ts_ms": -3}]
    ]
    found = mongodb.positions(read)
    assert found.commit.tolist() == [[0, 0]] * 5
    assert not found.has_commit.any()
    second = 1558965508 << 32
    assert found.inner.tolist() == [[0, second | 31], [0, second | 1], [0, second | 6], [0, 0], [5, 2**32 - 1]]
