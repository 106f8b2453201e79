"""Unions of several types: read as they were written, by an encoder made by hand."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ch_sink.decode.avro.definition import Unreadable, read
from ch_sink.decode.avro.schema import Node, parse, source_type
from ch_sink.decode.avro.vectors import NotText
from ch_sink.types.connect import SourceType
from tests.support.avro_fuzz import Branch, encoded, expected

LEAF = {"type": "record", "name": "Leaf", "fields": [{"name": "n", "type": "long"}]}
TREE = {
    "type": "record",
    "name": "Tree",
    "namespace": "shop",
    "fields": [
        {"name": "value", "type": ["null", "int", "long", "string", "bytes"]},
        {"name": "left", "type": ["null", LEAF]},
        {"name": "others", "type": {"type": "map", "values": ["Leaf", "float", "double"]}},
        {"name": "rest", "type": {"type": "array", "items": "shop.Leaf"}},
    ],
}
ENUM = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
FIXED = {"type": "fixed", "name": "Hash", "size": 3}
POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "double"}, {"name": "y", "type": "long"}]}
MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
DAY = {"type": "int", "logicalType": "date"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
NUMBERS = {"type": "array", "items": ["null", "int", "long"]}
TEXTS = {"type": "map", "values": ["null", "string"]}
NAMES = {"Leaf": LEAF, "shop.Leaf": LEAF, "Colour": ENUM, "Hash": FIXED, "Point": POINT}
TYPES: list[Any] = [
    *("boolean", "float", "double", "string"),
    *(ENUM, FIXED, POINT, TREE, MOMENT, DAY, DECIMAL, NUMBERS, TEXTS),
]


@st.composite
def unions(draw: st.DrawFn) -> list[Any]:
    branches = draw(st.lists(st.sampled_from(TYPES), min_size=2, max_size=6, unique_by=repr))
    return draw(st.permutations([*branches, *draw(st.sampled_from([(), ("null",)]))]))


def values(schema: Any, depth: int = 3) -> st.SearchStrategy[Any]:
    schema = NAMES.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        return st.sampled_from(range(len(schema))).flatmap(
            lambda i: values(schema[i], depth).map(lambda found: Branch(i, found))
        )
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return st.fixed_dictionaries({f["name"]: values(f["type"], depth - 1) for f in schema["fields"]})
    if kind in ("array", "map") and depth <= 0:
        return st.just([] if kind == "array" else {})
    if kind == "array":
        return st.lists(values(schema["items"], depth - 1), max_size=2)
    if kind == "map":
        return st.dictionaries(st.text(max_size=3), values(schema["values"], depth - 1), max_size=2)
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(1 << 31), (1 << 31) - 1),
        "long": st.integers(-(1 << 63), (1 << 63) - 1),
        "float": st.floats(width=32),
        "double": st.floats(),
        "bytes": st.binary(max_size=9),
        "string": st.text(max_size=9),
        "fixed": st.binary(min_size=3, max_size=3),
        "enum": st.sampled_from(["RED", "GREEN"]),
    }[kind]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_values_are_read_with_their_type_and_their_neighbours_in_place(data: st.DataObject) -> None:
    """Each type of the union for itself, as a column between two others."""
    union = data.draw(unions())
    row = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "a", "type": "long"}, {"name": "u", "type": union}, {"name": "b", "type": "string"}],
    }
    rows = data.draw(st.lists(values(row, 4), min_size=1, max_size=5))
    node = parse(json.dumps(row))
    datums = [encoded(row, one, NAMES) for one in rows]
    assert repr(read(node, datums).tolist()) == repr([expected(row, one, NAMES) for one in rows])
    assert read(node, datums, want={}).tolist() == [{}] * len(rows)
    declared = source_type(node)
    assert SourceType.from_comment(declared.to_comment()) is not None
    assert [f.name for f in declared.fields] == ["a", "u", "b"]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_bytes_that_are_cut_or_changed_leave_their_neighbours_alone(data: st.DataObject) -> None:
    node = parse(json.dumps(TREE))
    whole = [encoded(TREE, one, NAMES) for one in data.draw(st.lists(values(TREE), min_size=2, max_size=4))]
    broken = bytearray(data.draw(st.sampled_from(whole)))
    place = data.draw(st.integers(0, len(broken) - 1))
    if data.draw(st.booleans()):
        broken[place] ^= data.draw(st.integers(1, 255))
    else:
        del broken[place:]
    wanted = read(node, whole).tolist()
    rows, odd = _rows(node, [*whole[:1], bytes(broken), *whole[1:]])
    assert odd == [1] if rows is None else repr([*rows[:1], *rows[2:]]) == repr(wanted)


def _rows(node: Node, datums: list[bytes]) -> tuple[list[Any] | None, list[int]]:
    """The values, or the places of those that cannot be read."""
    try:
        return read(node, datums).tolist(), []
    except (Unreadable, NotText) as error:
        return None, error.places
