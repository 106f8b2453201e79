"""Avro in Confluent framing: shapes, keys and kinds of record, each by bytes that fastavro wrote."""

from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.model.change import Op, Skipped
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.avro import ID, KEY, ROW, TABLE, Topic, V, decode, envelope, event, rows
from tests.support.decoding import replacing
from tests.support.fixtures import as_records, registry, topics


def test_events_keys_and_tombstones() -> None:
    topic = Topic()
    key = topic.write(KEY, {"id": 1})
    batch = decode(
        topic,
        [
            (key, topic.write(ROW, event("c", {"id": 1, "v": "a"}))),
            (key, topic.write(ROW, event("u", {"id": 1, "v": None}, {"id": 1, "v": "a"}, pos=78))),
            (key, topic.write(ROW, event("d", None, {"id": 1, "v": None}, snapshot="true"))),
            (key, None),
            (None, topic.write(ROW, event("t"))),
        ],
        want_before=True,
    )
    assert not batch.bad
    assert rows(batch) == [(1, b"a"), (1, None), (None, None), (None, None)]
    assert batch.key is not None
    assert batch.key.to_pylist() == [{"id": 1}] * 3 + [{"id": None}]
    assert batch.op.tolist() == [Op.CREATE, Op.UPDATE, Op.DELETE, Op.TRUNCATE]
    assert batch.has_before.tolist() == [False, True, True, False]
    assert batch.before is not None
    assert batch.before.column("v").to_pylist() == [None, b"a", None, None]
    assert batch.commit[:, 1].tolist() == [3 << 40 | 77, 3 << 40 | 78, 3 << 40 | 77, 3 << 40 | 77]
    assert batch.source_name == ["m"]
    assert batch.connector == "mysql"
    assert batch.skipped_counts == {Skipped.TOMBSTONE: 1}


def test_old_and_new_shapes_in_one_chunk_keep_their_order() -> None:
    topic = Topic()
    more = envelope([ID, V, {"name": "w", "type": ["null", "int"], "default": None}])
    less = envelope([ID])
    table = replacing((*TABLE.columns[:2], Column("w", "Nullable(Int32)")), ("id",))
    pairs = []
    for i in range(9):
        schema = (ROW, more, less)[i % 3]
        row = {"id": i, "v": f"v{i}", "w": i}
        after = {f["name"]: row[f["name"]] for f in schema["fields"][0]["type"][1]["fields"]}
        pairs.append((topic.write(KEY, {"id": i}), topic.write(schema, event("c", after))))
    batch = decode(topic, pairs, table=table)
    assert batch.offset.tolist() == list(range(10, 19))
    v = [None if i % 3 == 2 else f"v{i}".encode() for i in range(9)]
    assert rows(batch) == [(i, v[i], i if i % 3 == 1 else None) for i in range(9)]
    assert batch.absent["w"].tolist() == [i % 3 != 1 for i in range(9)]
    assert batch.absent["v"].tolist() == [i % 3 == 2 for i in range(9)]


def test_keys_in_avro_with_values_in_json_and_the_reverse() -> None:
    topic = Topic()
    plain = b'{"op":"c","before":null,"after":{"id":2,"v":"j"},"source":{"connector":"mysql","name":"m"}}'
    batch = decode(
        topic,
        [
            (topic.write(KEY, {"id": 2}), plain),
            (b'{"id":3}', topic.write(ROW, event("c", {"id": 3, "v": "a"}))),
            (b'{"schema":{"type":"struct","fields":[{"field":"id","type":"int64"}]},"payload":{"id":4}}', plain),
        ],
    )
    assert not batch.bad
    assert batch.key is not None
    assert batch.key.column("id").to_pylist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "column", "value"), [("long", "Int64", 7), ("string", "String", "é"), ("int", "Int64", 7)]
)
def test_primitive_keys(kind: str, column: str, value: Any) -> None:
    topic = Topic()
    table = replacing((Column("id", column), Column("v", "Nullable(String)")), ("id",))
    schema = envelope([{"name": "id", "type": kind}, V])
    batch = decode(
        topic, [(topic.write(kind, value), topic.write(schema, event("c", {"id": value, "v": None})))], table=table
    )
    assert not batch.bad
    assert batch.key is not None
    assert batch.key.column("id").to_pylist() == [value.encode() if column == "String" else value]


def test_kinds_that_are_no_row_change_are_set_aside() -> None:
    topic = Topic()

    def record(name: str, **fields: Any) -> dict[str, Any]:
        members = [{"name": n, "type": ["null", "string"] if isinstance(v, str) else "long"} for n, v in fields.items()]
        return {"type": "record", "name": name, "fields": members}

    boundary = {"status": "BEGIN", "id": "7"}
    values = [
        topic.write(record("Heartbeat", ts_ms=1), {"ts_ms": 1}),
        topic.write(record("TransactionMetadataValue", **boundary), boundary),
        topic.write(record("SchemaChangeValue", ddl=""), {"ddl": "ALTER"}),
        topic.write(ROW, event("m")),
        topic.write(ROW, event("c", {"id": 1, "v": "a"})),
        None,
    ]
    transaction = {"type": "record", "name": "TransactionMetadataKey", "fields": [{"name": "id", "type": "string"}]}
    keys = [None, topic.write(transaction, {"id": "7"}), None, None, topic.write(KEY, {"id": 1}), None]
    batch = decode(topic, list(zip(keys, values, strict=True)))
    assert not batch.bad
    assert rows(batch) == [(1, b"a")]
    assert batch.skipped_counts == {
        Skipped.HEARTBEAT: 1,
        Skipped.TRANSACTION: 1,
        Skipped.SCHEMA_CHANGE: 1,
        Skipped.MESSAGE: 1,
        Skipped.TOMBSTONE: 1,
    }


def test_a_logical_message_alone_is_set_aside() -> None:
    topic = Topic()
    batch = decode(topic, [(None, topic.write(ROW, event("m")))])
    assert not len(batch)
    assert batch.skipped_counts == {Skipped.MESSAGE: 1}


@pytest.mark.parametrize("db", ["mariadb", "postgres"])
def test_schema_changes_of_a_connector_are_set_aside(db: str) -> None:
    for topic, found in topics(f"{db}-avro").items():
        if topic.count(".") == 0:
            batch = Decoder(TABLE, policy_of(), registry=registry(f"{db}-avro")).decode(as_records(found))
            assert not batch.bad
            assert batch.skipped_counts == {Skipped.SCHEMA_CHANGE: len(found)}


def test_ignored_fields_of_the_key_are_ignored_in_avro_too() -> None:
    topic = Topic()
    router = {"name": "__dbz__physicalTableIdentifier", "type": "string"}
    key = topic.write(KEY | {"fields": [ID, router]}, {"id": 1, "__dbz__physicalTableIdentifier": "t1"})
    policy = policy_of(ignored_key_fields=("__dbz__physicalTableIdentifier",))
    batch = decode(topic, [(key, topic.write(ROW, event("c", {"id": 1, "v": "a"})))], policy=policy)
    assert not batch.bad
    assert batch.key is not None
    assert batch.key.to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("key_type", ["Int64", "String"])
@pytest.mark.parametrize("form", ["envelope", "flattened"])
def test_rows_of_the_signal_table_are_set_aside(key_type: str, form: str) -> None:
    topic = Topic()
    table = replacing((Column("id", key_type), Column("v", "Nullable(String)")), ("id",))
    fields = [{"name": n, "type": "string"} for n in ("id", "type", "data")]
    signal = {"id": "6d-open", "type": "snapshot-window-open", "data": "{}"}
    if form == "envelope":
        values = [
            topic.write(envelope(fields), event("c", signal)),
            topic.write(envelope(fields), event("d", None, signal)),
        ]
    else:
        values = [topic.write({"type": "record", "name": "Value", "fields": fields}, signal)]
    key = topic.write({"type": "record", "name": "Key", "fields": fields[:1]}, {"id": "6d-open"})
    batch = decode(topic, [(key, value) for value in values], table=table)
    assert batch.skipped_counts == {Skipped.WATERMARK: len(values)}
    assert not batch.bad
    assert not batch.unknown


def test_an_envelope_that_may_be_null_is_read_like_others_and_null_is_a_tombstone() -> None:
    topic = Topic()
    key = topic.write(["null", KEY], {"id": 1})
    pairs = [
        (key, topic.write(["null", ROW], event("c", {"id": 1, "v": "a"}))),
        (key, topic.write(["null", ROW], None)),
    ]
    batch = decode(topic, [*pairs])
    assert not batch.bad
    assert rows(batch) == [(1, b"a")]
    assert batch.key is not None
    assert batch.key.to_pylist() == [{"id": 1}]
    assert batch.skipped_counts == {Skipped.TOMBSTONE: 1}
