"""Fields of Avro become the columns that the same fields become in JSON."""

import pytest

from ch_sink.decode import Decoder
from ch_sink.decode.avro.events import as_json
from ch_sink.decode.framing import Envelopes
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.avro import ID, ROW, Topic, V, decode, envelope, event, rows
from tests.support.decoding import replacing, table_of
from tests.support.fixtures import partitions, registry, topics
from tests.support.stream import schema_of, typed_stream


def test_an_unknown_column_comes_with_its_type_and_default() -> None:
    topic = Topic()
    price = {
        "type": "bytes",
        "logicalType": "decimal",
        "scale": 2,
        "precision": 9,
        "connect.name": "org.apache.kafka.connect.data.Decimal",
        "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"},
        "connect.default": "\x04\xd2",
    }
    more = envelope(
        [
            ID,
            V,
            {"name": "n", "type": {"type": "int", "connect.default": 7}, "default": 7},
            {"name": "price", "type": price, "default": "\x04\xd2"},
            {"name": "s", "type": [{"type": "string", "connect.default": "it's"}, "null"], "default": "it's"},
            {"name": "b", "type": "bytes", "default": "\xff"},
            {"name": "a", "type": {"type": "array", "items": "bytes"}, "default": ["a", "\xff"]},
        ]
    )
    row = {"id": 2, "v": None, "n": 1, "price": b"\1", "s": None, "b": b"", "a": []}
    batch = decode(
        topic,
        [
            (None, topic.write(ROW, event("c", {"id": 1, "v": None}))),
            (None, topic.write(more, event("d", None, row))),
            (None, topic.write(more, event("c", row))),
        ],
    )
    found = {c.name: (c.clickhouse_type, c.default, c.first_offset) for c in batch.unknown}
    assert found == {
        "n": ("Int32", "7", 12),
        "price": ("Decimal(9, 2)", "'12.34'", 12),
        "s": ("Nullable(String)", "'it\\'s'", 12),
        "b": ("String", "unhex('ff')", 12),
        "a": ("Array(String)", "['a', unhex('ff')]", 12),
    }


def test_adjusted_names_find_the_columns_they_were_made_of() -> None:
    topic = Topic()
    columns = ("we ird-Name.x", "1st", "a_b", "ok")
    table = replacing((Column("id", "Int64"), *(Column(c, "Nullable(Int32)") for c in columns)), ("id",))
    fields = [ID, *({"name": n, "type": "int"} for n in ("we_ird_Name_x", "_1st", "a_u005fb", "ok"))]
    batch = decode(
        topic,
        [(None, topic.write(envelope(fields), event("c", {f["name"]: i for i, f in enumerate(fields)})))],
        table=table,
    )
    assert not batch.bad
    assert not batch.unknown
    assert rows(batch) == [(0, 1, 2, 3, 4)]


def test_arrays_maps_and_entries_become_columns() -> None:
    topic = Topic()
    entry = {
        "type": "record",
        "name": "Entry",
        "connect.internal.type": "MapEntry",
        "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": ["null", "string"]}],
    }
    fields = [
        ID,
        {"name": "a", "type": {"type": "array", "items": ["null", "long"]}},
        {"name": "m", "type": {"type": "map", "values": "double"}},
        {"name": "e", "type": {"type": "array", "items": entry}},
        {"name": "j", "type": ["null", {"type": "array", "items": {"type": "array", "items": "string"}}]},
    ]
    table = replacing(
        (
            Column("id", "Int64"),
            Column("a", "Array(Nullable(Int32))"),
            Column("m", "Map(String, Float64)"),
            Column("e", "Map(Int32, Nullable(String))"),
            Column("j", "Nullable(String)"),
        ),
        ("id",),
    )
    row = {"id": 1, "a": [1, None, -3], "m": {"x": 0.5}, "e": [{"key": 4, "value": "four"}], "j": [["p"], []]}
    empty = {"id": 2, "a": [], "m": {}, "e": [], "j": None}
    batch = decode(
        topic, [(None, topic.write(envelope(fields), event("c", found))) for found in (row, empty)], table=table
    )
    assert not batch.bad
    assert rows(batch) == [
        (1, [1, None, -3], [(b"x", 0.5)], [(4, b"four")], b'[["p"],[]]'),
        (2, [], [], [], None),
    ]


@pytest.mark.parametrize(
    ("value", "text"), [("nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"'), ("1.5", "1.5")]
)
def test_floats_without_a_number_in_json_are_told_as_text(value: str, text: str) -> None:
    topic = Topic()
    item = {"type": "array", "items": ["null", "double"]}
    raw = topic.write(
        {"type": "record", "name": "Value", "fields": [{"name": "a", "type": item}]}, {"a": [float(value)]}
    )
    framed, payload = Envelopes(topic.registry).one(raw)
    assert as_json(framed, payload) == b'{"a":[' + text.encode() + b"]}"


@pytest.mark.parametrize("column", ["Float64", "Float32", "Array(Float64)"])
def test_special_floats_reach_their_columns(column: str) -> None:
    topic = Topic()
    kind = {"Float64": "double", "Float32": "float"}.get(column, {"type": "array", "items": "double"})
    table = replacing((Column("id", "Int64"), Column("f", column)), ("id",))
    schema = envelope([ID, {"name": "f", "type": kind}])
    found = [float("nan"), float("inf"), float("-inf"), 0.5]
    values = [[f] if "Array" in column else f for f in found]
    pairs = [(None, topic.write(schema, event("c", {"id": i, "f": v}))) for i, v in enumerate(values)]
    batch = decode(topic, pairs, table=table)
    assert not batch.bad
    assert repr([row[1] for row in rows(batch)]) == repr(values)


CASES = [
    (f"{db}-avro", topic.rpartition(".")[2])
    for db in ("mariadb", "postgres")
    for topic in topics(f"{db}-avro")
    if topic.count(".") == 2 and not topic.endswith(".odd")
]


@pytest.mark.parametrize(("stream", "table"), CASES)
def test_row_and_key_are_declared_as_in_json_with_schema(stream: str, table: str) -> None:
    typed = next(s for s in (typed_stream(f"{stream.split('-')[0]}-json_plain", table),))
    assert schema_of(stream, table) == schema_of(typed, table)


@pytest.mark.parametrize("db", ["mariadb", "postgres"])
def test_columns_added_in_mid_stream_are_told_with_the_first_offset_that_has_them(db: str) -> None:
    stream = f"{db}-avro"
    name = next(t for t in topics(stream) if t.endswith(".ac"))
    parts = list(partitions(stream, name).values())
    old = sample_schema([part.slice(0, 1) for part in parts], registry=registry(stream))
    assert old is not None
    decoder = Decoder(table_of(old), policy_of(), registry=registry(stream))
    told: set[str] = set()
    for part in parts:
        batch = decoder.decode(part)
        assert not batch.bad
        told.update(column.name for column in batch.unknown)
        for column in batch.unknown:
            assert column.clickhouse_type
            own = part.values[part.offsets.tolist().index(column.first_offset)]
            assert own is not None
            earlier = [v for v, o in zip(part.values, part.offsets, strict=True) if v and o < column.first_offset]
            assert all(v[:5] != own[:5] for v in earlier)
    assert told
