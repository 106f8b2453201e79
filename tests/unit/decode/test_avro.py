"""Avro in Confluent framing: shapes, keys and kinds of record, each by bytes that fastavro wrote."""

import json
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import RegistryError
from ch_sink.model.change import Op, Skipped
from ch_sink.model.policy import policy_of
from ch_sink.ports import RegisteredSchema
from ch_sink.types.column import Column
from tests.support.avro import ID, KEY, ROW, TABLE, Topic, V, decode, envelope, event, records, rows
from tests.support.decoding import listed, replacing
from tests.support.fixtures import as_records, registry, topics
from tests.support.memory_stream import MemoryRegistry


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
    assert listed(batch.key) == [{"id": 1}] * 3 + [{"id": None}]
    assert batch.op.tolist() == [Op.CREATE, Op.UPDATE, Op.DELETE, Op.TRUNCATE]
    assert batch.has_before.tolist() == [False, True, True, False]
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
    assert listed(batch.key) == [{"id": 1}]


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
    assert listed(batch.key) == [{"id": 1}]
    assert batch.skipped_counts == {Skipped.TOMBSTONE: 1}


@pytest.mark.parametrize("format", ["auto", "json", "avro"])
def test_a_pinned_format_refuses_the_other_one(format: Any) -> None:  # noqa: A002
    topic = Topic()
    plain = b'{"op":"c","before":null,"after":{"id":2,"v":null},"source":{"connector":"mysql","name":"m"}}'
    batch = decode(topic, [(None, topic.write(ROW, event("c", {"id": 1, "v": None}))), (None, plain)], format=format)
    assert [row[0] for row in rows(batch)] == {"auto": [1, 2], "json": [2], "avro": [1]}[format]
    assert [b.index for b in batch.bad] == {"auto": [], "json": [0], "avro": [1]}[format]
    assert format != "avro" or "format: avro" in decode(topic, [(None, plain)], format=format).bad[0].reason


def test_each_bad_record_is_told_and_its_neighbours_go_on() -> None:
    topic = Topic()
    good = [topic.write(ROW, event("c", {"id": i, "v": "x" * i})) for i in range(9)]
    key = topic.write(KEY, {"id": 1})
    wrong = {
        1: good[1][:-3],
        2: good[2] + b"\0",
        3: b"\0\0\0\x03\xe7" + good[3][5:],
        4: topic.write(ROW, event("u")),
        5: topic.write(ROW, event("x", {"id": 5, "v": None})),
        6: b"\0\0",
        7: good[7].replace(b"x" * 7, b"\xff" * 7),
        8: topic.write(ROW, event("c", {"id": 8, "v": None}, file="no number")),
    }
    batch = decode(topic, [(key, wrong.get(i, value)) for i, value in enumerate(good)])
    assert rows(batch) == [(0, b"")]
    reasons = {b.index: b.reason for b in batch.bad}
    assert sorted(reasons) == sorted(wrong)
    assert "schema id 100" in reasons[1]
    assert "schema id 100" in reasons[2]
    assert "no schema with id 999" in reasons[3]
    assert "without an after image" in reasons[4]
    assert "unknown operation 'x'" in reasons[5]
    assert "ends after 2 bytes" in reasons[6]
    assert "column 'v'" in reasons[7]
    assert "UTF-8" in reasons[7]
    assert "source.file" in reasons[8]
    assert {b.index: b.kind for b in batch.bad}[8] == "position"
    assert {b.index: b.column for b in batch.bad}[7] == "v"


def test_many_values_out_of_range_are_each_a_letter_of_its_own() -> None:
    topic = Topic()
    table = replacing((Column("id", "Int8"), Column("v", "Nullable(String)")), ("id",))
    pairs = [(None, topic.write(ROW, event("c", {"id": i, "v": None}))) for i in range(500)]
    batch = decode(topic, pairs, table=table)
    assert [b.index for b in batch.bad] == list(range(128, 500))
    assert {b.kind for b in batch.bad} == {"range"}
    assert "499 does not fit Int8" in batch.bad[-1].reason
    assert len(batch) == 128


def test_other_kinds_of_schema_and_none_at_all_are_told() -> None:
    value = b"\0\0\0\0\x05abc"
    held = MemoryRegistry({5: RegisteredSchema("PROTOBUF", "syntax…")})
    broken = MemoryRegistry({5: RegisteredSchema("AVRO", '{"type":"record","name":"A","fields":[{"name":"a"}]}')})
    itself = MemoryRegistry(
        {5: RegisteredSchema("AVRO", '{"type":"record","name":"A","fields":[{"name":"a","type":"A"}]}')}
    )
    for found, told in ((held, "PROTOBUF"), (broken, "Avro schema"), (itself, "contains itself"), (None, "registry")):
        batch = Decoder(TABLE, policy_of(), registry=found).decode(records([(None, value)]))
        assert told in batch.bad[0].reason
        assert "5" in batch.bad[0].reason


def test_a_registry_that_is_away_makes_no_dead_letters_and_is_not_asked_for_a_negative_id() -> None:
    class Away:
        def find(self, schema_id: int) -> RegisteredSchema | None:
            raise RegistryError("away")

    decoder = Decoder(TABLE, policy_of(), registry=Away())
    with pytest.raises(RegistryError):
        decoder.decode(records([(None, b"\0\0\0\0\x05abc")]))
    assert "schema id -1" in decoder.decode(records([(None, b"\0\xff\xff\xff\xff\0")])).bad[0].reason


SOURCES = {
    "mysql": {"file": "string", "pos": "long", "row": "int"},
    "postgresql": {"lsn": "long", "sequence": "string"},
    "sqlserver": {"commit_lsn": "string", "change_lsn": "string", "event_serial_no": "long"},
    "oracle": {"commit_scn": "string", "scn": "string", "ssn": "long"},
    "db2": {"commit_lsn": "string", "change_lsn": "string"},
    "singlestore": {"partitionId": "int", "offsets": {"type": "array", "items": "string"}},
    "mongodb": {"ord": "int"},
    "vitess": {},
}
COMMON = {"connector": "string", "name": "string", "ts_ms": "long", "snapshot": "string"}
ODD = {"string": "x", "long": 5, "boolean": True, "double": 1.5, "bytes": b"\xff", "null": None}
ODD_LISTS: list[tuple[Any, Any]] = [
    ({"type": "array", "items": "string"}, ["a"]),
    ({"type": "array", "items": "long"}, [5]),
    ({"type": "map", "values": "string"}, {"a": "b"}),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("connector", SOURCES)
def test_a_source_block_of_other_types_is_refused_or_read_and_its_neighbour_lands(connector: str) -> None:
    usual = {"string": "1", "long": 5, "int": 1}
    block = {**COMMON, **SOURCES[connector]}
    found = {n: ["00"] if isinstance(t, dict) else usual[t] for n, t in block.items()}
    topic = Topic()
    good = (topic.write(KEY, {"id": 1}), topic.write(ROW, event("c", {"id": 1, "v": "a"})))
    for odd in block:
        pairs = [good]
        for kind, value in [*ODD.items(), *ODD_LISTS]:
            schema = envelope([ID])
            schema["fields"][2]["type"]["fields"] = [{"name": n, "type": t} for n, t in {**block, odd: kind}.items()]
            source = {**found, "connector": connector, odd: value}
            strange = topic.write(schema, {"op": "c", "before": None, "after": {"id": 2}, "source": source})
            pairs.append((topic.write(KEY, {"id": 2}), strange))
        batch = decode(topic, [*pairs])
        assert 0 in batch.source_index, odd
        assert len(batch) + len(batch.bad) == len(pairs), odd


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "int", "connect.type": ["int8"]},
        {
            "type": "bytes",
            "connect.name": "org.apache.kafka.connect.data.Decimal",
            "connect.parameters": {"scale": "x"},
        },
        {"type": "bytes", "logicalType": "decimal", "scale": "x", "precision": 4},
        {"type": "bytes", "connect.parameters": [1]},
    ],
)
def test_a_registered_schema_that_no_converter_writes_is_refused_by_itself(odd: dict[str, Any]) -> None:
    value = {"type": "record", "name": "R", "fields": [{"name": "op", "type": "string"}, {"name": "c", "type": odd}]}
    schemas = {7: RegisteredSchema("AVRO", json.dumps(value)), 8: RegisteredSchema("AVRO", json.dumps(ROW))}
    topic = Topic()
    good = b"\0\0\0\0\x08" + topic.write(ROW, event("c", {"id": 1, "v": "a"}))[5:]
    pairs = [(b'{"id":1}', good), (b'{"id":2}', b"\0\0\0\0\x07\x02c\x02")]
    batch = Decoder(TABLE, policy_of(), registry=MemoryRegistry(schemas)).decode(records([*pairs]))
    assert batch.source_index.tolist() == [0]
    assert "schema id 7" in batch.bad[0].reason
