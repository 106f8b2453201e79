"""What is wrong with a record in Avro, or with its schema, is told of it alone."""

import json
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import RegistryError
from ch_sink.model.policy import policy_of
from ch_sink.ports import RegisteredSchema
from ch_sink.types.column import Column
from tests.support.avro import ID, KEY, ROW, TABLE, Topic, decode, envelope, event, records, rows
from tests.support.decoding import replacing
from tests.support.memory_stream import MemoryRegistry


@pytest.mark.parametrize("format", ["auto", "json", "avro"])
def test_a_pinned_format_refuses_the_other_one(format: Any) -> None:  # noqa: A002
    topic = Topic()
    plain = b'{"op":"c","before":null,"after":{"id":2,"v":null},"source":{"connector":"mysql","name":"m"}}'
    batch = decode(topic, [(None, topic.write(ROW, event("c", {"id": 1, "v": None}))), (None, plain)], format=format)
    assert [row[0] for row in rows(batch)] == {"auto": [1, 2], "json": [2], "avro": [1]}[format]
    assert [b.index for b in batch.bad] == {"auto": [], "json": [0], "avro": [1]}[format]


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


def test_many_values_out_of_range_are_each_told_without_decoding_them_again() -> None:
    topic = Topic()
    table = replacing((Column("id", "Int8"), Column("v", "Nullable(String)")), ("id",))
    pairs = [(None, topic.write(ROW, event("c", {"id": i, "v": None}))) for i in range(2000)]
    batch = decode(topic, pairs, table=table)
    assert [b.index for b in batch.bad] == list(range(128, 2000))
    assert {b.kind for b in batch.bad} == {"range"}
    assert "1999 does not fit Int8" in batch.bad[-1].reason
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


def test_a_registry_that_is_away_makes_no_dead_letters() -> None:
    class Away:
        def find(self, schema_id: int) -> RegisteredSchema | None:
            raise RegistryError("away")

    with pytest.raises(RegistryError):
        Decoder(TABLE, policy_of(), registry=Away()).decode(records([(None, b"\0\0\0\0\x05abc")]))


def test_a_pinned_format_refuses_the_other_also_where_nothing_else_comes() -> None:
    topic = Topic()
    plain = b'{"op":"c"}'
    batch = decode(topic, [(None, plain), (None, plain)], format="avro")
    assert ["format: avro" in bad.reason for bad in batch.bad] == [True, True]


def test_a_negative_schema_id_is_not_asked_for() -> None:
    class Asked:
        def find(self, schema_id: int) -> RegisteredSchema | None:
            raise RegistryError(f"asked for {schema_id}")

    batch = Decoder(TABLE, policy_of(), registry=Asked()).decode(records([(None, b"\0\xff\xff\xff\xff\0")]))
    assert "schema id -1" in batch.bad[0].reason


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


@pytest.mark.parametrize("connector", SOURCES)
def test_a_source_block_of_other_types_is_refused_or_read_and_its_neighbour_lands(connector: str) -> None:
    usual = {"string": "1", "long": 5, "int": 1}
    block = {**COMMON, **SOURCES[connector]}
    for odd in block:
        for kind, value in [*ODD.items(), *ODD_LISTS]:
            topic = Topic()
            types = {**block, odd: kind}
            found = {n: ["00"] if isinstance(t, dict) else usual[t] for n, t in block.items()}
            schema = envelope([ID])
            schema["fields"][2]["type"]["fields"] = [{"name": n, "type": t} for n, t in types.items()]
            source = {**found, "connector": connector, odd: value}
            strange = topic.write(schema, {"op": "c", "before": None, "after": {"id": 2}, "source": source})
            good = topic.write(ROW, event("c", {"id": 1, "v": "a"}))
            keys = [topic.write(KEY, {"id": i}) for i in (1, 2)]
            batch = decode(topic, [(keys[0], good), (keys[1], strange)])
            assert 0 in batch.source_index, (odd, kind)
            assert len(batch) + len(batch.bad) == 2, (odd, kind)


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
