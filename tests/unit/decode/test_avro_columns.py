"""Fields of Avro become the columns that the same fields become in JSON."""

import copy
import ctypes
import json
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.decode.avro import definition
from ch_sink.decode.avro.definition import Unreadable, read
from ch_sink.decode.avro.events import as_json
from ch_sink.decode.avro.schema import parse
from ch_sink.decode.avro.vectors import program, scan
from ch_sink.decode.framing import Envelopes
from ch_sink.decode.native.library import Joined
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.avro import ID, KEY, ROW, Topic, V, decode, envelope, event, rows
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


@pytest.mark.parametrize("form", ["envelope", "flattened"])
def test_adjusted_names_find_the_columns_they_were_made_of(form: str) -> None:
    topic = Topic()
    columns = ("we ird-Name.x", "1st", "a_b", "ok")
    table = replacing((Column("id", "Int64"), *(Column(c, "Nullable(Int32)") for c in columns)), ("id",))
    fields = [ID, *({"name": n, "type": "int"} for n in ("we_ird_Name_x", "_1st", "a_u005fb", "ok"))]
    row = {f["name"]: i for i, f in enumerate(fields)}
    schema, value = (envelope(fields), event("c", row)) if form == "envelope" else ({**KEY, "fields": fields}, row)
    batch = decode(topic, [(b'{"id":0}', topic.write(schema, value))], table=table)
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


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 3}
NULL_FIRST, NULL_LAST = ["null", "long"], ["long", "null"]


def _row(schema: Any) -> Any:
    return parse(json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": schema}]}))


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        ("long", b"\x80\x00", 0),  # in more bytes than it needs
        ("long", b"\xff" * 9 + b"\1", -(1 << 63)),
        ("long", b"\xfe" + b"\xff" * 8 + b"\1", (1 << 63) - 1),
        ("long", b"\x81" + b"\x80" * 8 + b"\0", -1),
        ("int", b"\xfe\xff\xff\xff\xff\x01", (1 << 35) - 1),  # of more than 32 bits
        ("string", b"\0", ""),
        ("string", b"\x84\0ab", "ab"),
        ("bytes", b"\x02\xff", b"\xff"),
        ("boolean", b"\1", True),
        ("float", b"\0\0\xc0\x3f", 1.5),
        (ENUM, b"\2", "B"),
        (FIXED, b"abc", b"abc"),
        (NULL_FIRST, b"\0", None),
        (NULL_FIRST, b"\2\1", -1),
        (NULL_LAST, b"\2", None),
        (NULL_LAST, b"\0\1", -1),
    ],
)
def test_what_follows_the_schema_is_read(library: ctypes.CDLL, schema: Any, raw: bytes, value: Any) -> None:
    node = _row(schema)
    made = program(node)
    assert made is not None
    found = scan(library, made, Joined([raw, raw]))
    assert found.tolist() == [{"a": value}] * 2 == read(node, [raw, raw]).tolist()


@pytest.mark.parametrize(
    ("schema", "raw"),
    [
        ("long", b""),
        ("long", b"\x80"),
        ("long", b"\x80" * 9 + b"\2"),  # more than 64 bits
        ("long", b"\xff" * 9 + b"\3"),
        ("long", b"\x80" * 10 + b"\0"),
        ("long", b"\0\0"),  # a byte more
        ("string", b"\1"),  # shorter than nothing
        ("string", b"\3a"),
        ("string", b"\4a"),
        ("bytes", b"\xfe" + b"\xff" * 8 + b"\1"),
        ("bytes", b"\xff" * 9 + b"\1"),
        ("boolean", b"\2"),
        ("boolean", b""),
        ("float", b"\0\0\0"),
        ("double", b"\0" * 7),
        (ENUM, b"\1"),
        (ENUM, b"\3"),
        (ENUM, b"\4"),
        (FIXED, b"ab"),
        (NULL_FIRST, b"\1"),
        (NULL_FIRST, b"\4"),
        (NULL_FIRST, b"\4\0"),
        (NULL_LAST, b"\3"),
        (NULL_LAST, b"\0"),
    ],
)
@pytest.mark.parametrize("wanted", [True, False])
def test_what_does_not_is_refused(library: ctypes.CDLL, schema: Any, raw: bytes, wanted: bool) -> None:
    node = _row(schema)
    with pytest.raises(Unreadable) as refused:
        read(node, [raw, raw], want=None if wanted else {})
    assert refused.value.places == [0, 1]
    made = program(node, None if wanted else {})
    assert made is not None
    assert scan(library, made, Joined([raw, raw])) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "long"},
        {"type": "map", "values": "long"},
        ["null", "long", "string"],
        ["long"],
    ],
)
def test_other_types_have_no_program(schema: Any) -> None:
    assert program(_row(schema)) is None
    assert program(_row(schema), {}) is None


def test_types_within_each_other_do_not_make_endless_programs() -> None:
    fields: Any = "long"
    for depth in range(13):
        kinds = [{"name": "a", "type": fields}, {"name": "b", "type": f"D{depth - 1}" if depth else "long"}]
        fields = {"type": "record", "name": f"D{depth}", "fields": kinds}
    assert program(parse(json.dumps(fields))) is None


@pytest.mark.parametrize("kind", ["bytes", ["null", "bytes"], {"type": "fixed", "name": "One", "size": 1}])
def test_an_operation_that_is_no_text_is_refused_as_without_it(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    schema = copy.deepcopy(ROW)
    schema["fields"][-1]["type"] = kind
    topic = Topic()
    value = topic.write(schema, {**event("c", {"id": 1, "v": "x"}), "op": b"c"})
    pairs: list[tuple[bytes | None, bytes | None]] = [(topic.write(KEY, {"id": 1}), value)] * 3
    found = decode(topic, pairs).bad
    monkeypatch.setattr(definition, "library", lambda: None)
    assert [one.reason for one in found] == [one.reason for one in decode(topic, pairs).bad]
    assert len(found) == 3
