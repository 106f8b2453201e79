"""Columns whose Avro type is a union of several types."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import TableError
from ch_sink.model.change import ChangeBatch
from ch_sink.model.policy import Policy
from ch_sink.ports import RegisteredSchema
from ch_sink.types import clickhouse_type
from ch_sink.types.column import Column
from tests.support.avro import ID, TABLE, Topic, envelope, event, records
from tests.support.avro_fuzz import Branch, encoded
from tests.support.decoding import listed, replacing
from tests.support.memory_stream import MemoryRegistry

MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
START, SECOND = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "double"}]}
BLOCK = {"connector": "mysql", "name": "m", "ts_ms": 5, "snapshot": Branch(0, None), "file": "bin.000003", "pos": 77}


def row_of(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Value", "fields": list(fields)}


def created(image: Any) -> dict[str, Any]:
    return {**event("c", Branch(1, image), Branch(0, None)), "source": BLOCK}


def by_hand(topic: Topic, schema: Any, value: Any, row: Any) -> bytes:
    """A value under this schema; ``row`` is the record of its images."""
    number = topic.ids.setdefault(json.dumps(schema), 100 + len(topic.ids))
    names = {"Value": row, "shop.public.t.Value": row}
    return b"\0" + number.to_bytes(4, "big") + encoded(schema, value, names)


def topic_of(column: Any, values: list[Any], *, form: str = "envelope") -> tuple[Topic, list[tuple[bytes, bytes]]]:
    """Rows (id, u) with these values of ``u``, in envelopes or flattened, encoded by hand."""
    topic, row = Topic(), row_of(ID, {"name": "u", "type": column})
    key = {"type": "record", "name": "Key", "fields": [ID]}
    pairs = []
    for i, value in enumerate(values):
        image: Any = {"id": i, "u": value}
        schema, whole = (row, image) if form == "flattened" else (envelope(row["fields"]), created(image))
        pairs.append((topic.write(key, {"id": i}), by_hand(topic, schema, whole, row)))
    return topic, pairs


def decode(
    column: Any, values: list[Any], column_type: str, *, form: str = "envelope", policy: Policy | None = None
) -> ChangeBatch:
    topic, pairs = topic_of(column, values, form=form)
    table = replacing((Column("id", "Int64"), Column("u", column_type)), ("id",))
    return Decoder(table, policy or Policy(), registry=topic.registry).decode(records(list(pairs)))


def cells(batch: ChangeBatch) -> list[Any]:
    return [row["u"] for row in batch.after.to_pylist()]


UNION = ["null", "string", "long", "double", "boolean", "bytes", POINT, {"type": "array", "items": "int"}]
VALUES = [
    Branch(0, None),
    Branch(1, "42"),
    Branch(2, 42),
    Branch(3, float("nan")),
    Branch(4, True),
    Branch(5, b"\0\xff"),
    Branch(6, {"x": 0.5}),
    Branch(7, [1, -2]),
]
TEXTS = [
    None,
    b'{"string":"42"}',
    b'{"long":42}',
    b'{"double":"NaN"}',
    b'{"boolean":true}',
    b'{"bytes":"AP8="}',
    b'{"Point":{"x":0.5}}',
    b'{"array":[1,-2]}',
]


@pytest.mark.parametrize("form", ["envelope", "flattened"])
def test_text_columns_hold_the_value_under_the_name_of_its_type(form: str) -> None:
    batch = decode(UNION, VALUES, "Nullable(String)", form=form)
    assert not batch.bad
    assert cells(batch) == TEXTS
    batch = decode(UNION, VALUES, "Nullable(JSON)", form=form)
    assert cells(batch) == [None if text is None else text.decode() for text in TEXTS]


@pytest.mark.parametrize("form", ["envelope", "flattened"])
def test_a_tuple_has_a_member_for_each_type_that_it_names(form: str) -> None:
    batch = decode(UNION, VALUES[:3], "Tuple(string Nullable(String), long Nullable(Int32))", form=form)
    assert not batch.bad
    assert cells(batch) == [None, {"string": b"42", "long": None}, {"string": None, "long": 42}]


@pytest.mark.parametrize("form", ["envelope", "flattened"])
@pytest.mark.parametrize(
    ("union", "values", "column", "shown"),
    [
        (["null", "int", "long"], [(1, 5), (0, None), (2, 1 << 40)], "Nullable(Int64)", [5, None, 1 << 40]),
        (["int", "double"], [(0, 5), (1, 0.5)], "Float64", [5.0, 0.5]),
        (["long", PRICE], [(0, 7), (1, b"\x04\xd2")], "Decimal(9, 2)", [Decimal(7), Decimal("12.34")]),
        ([MOMENT, "string"], [(0, 0), (1, "1970-01-01T00:00:01Z")], "DateTime64(3, 'UTC')", [START, SECOND]),
        ([MOMENT, {"type": "int", "logicalType": "date"}], [(0, 86_400_000), (1, 1)], "Date32", [date(1970, 1, 2)] * 2),
        (["null", "boolean", "int"], [(1, True), (2, 0)], "Nullable(Bool)", [True, False]),
    ],
)
def test_a_typed_column_holds_the_value_of_any_type_that_goes_into_it(
    union: Any, values: list[Any], column: str, shown: list[Any], form: str
) -> None:
    batch = decode(union, [Branch(*value) for value in values], column, form=form)
    assert not batch.bad
    assert len(batch) == len(values)
    assert cells(batch) == shown


@pytest.mark.parametrize("form", ["envelope", "flattened"])
def test_a_value_of_a_type_that_does_not_go_into_the_column_is_bad_by_itself(form: str) -> None:
    values = [Branch(1, 5), Branch(0, "x"), Branch(1, 6)]
    batch = decode(["string", "long", POINT], [*values, Branch(2, {"x": 0.5})], "Int64", form=form)
    assert [bad.index for bad in batch.bad] == [1, 3]
    assert "column 'u'" in batch.bad[0].reason
    assert "the union's Point, which does not go into Int64" in batch.bad[1].reason
    assert cells(batch) == [5, 6]


def test_a_column_that_takes_no_type_of_the_union_is_refused_at_once() -> None:
    with pytest.raises(TableError, match=r"column 'u': a union of boolean, Point does not go into IPv4"):
        decode(["boolean", POINT], [Branch(0, True)], "IPv4")


def test_a_key_may_be_a_union() -> None:
    topic, row = Topic(), row_of({"name": "id", "type": ["long", "string"]})
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (by_hand(topic, {**row, "name": "Key"}, key, row), by_hand(topic, envelope(row["fields"]), created(key), row))
        for key in ({"id": Branch(0, 1)}, {"id": Branch(1, "1")})
    ]
    table = replacing((Column("id", "String"),), ("id",))
    batch = Decoder(table, Policy(), registry=topic.registry).decode(records(pairs))
    assert not batch.bad
    assert listed(batch.key) == [{"id": b'{"long":1}'}, {"id": b'{"string":"1"}'}]


def test_init_proposes_text() -> None:
    topic, pairs = topic_of(UNION, VALUES)
    schema = sample_schema(records(list(pairs)), registry=topic.registry)
    field = schema.field("u")
    assert clickhouse_type(field.type) == "Nullable(String)"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}, "A contains itself"),
        ({"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]}, "A contains itself"),
        ({"type": "array", "items": "null"}, "values that take no bytes"),
        ([ID["type"], "string"], "the value itself is a union of several types"),
    ],
)
def test_what_no_reader_serves_is_refused_by_name(schema: Any, reason: str) -> None:
    held = MemoryRegistry({5: RegisteredSchema("AVRO", json.dumps(schema))})
    batch = Decoder(TABLE, Policy(), registry=held).decode(records([(None, b"\0\0\0\0\x05abc")]))
    assert reason in batch.bad[0].reason
    assert "schema id 5" in batch.bad[0].reason


@pytest.mark.parametrize(
    ("union", "default", "sql"),
    [
        (["string", "long", "null"], "it's", """'{"string":"it\\'s"}'"""),
        (["long", "string"], 7, """'{"long":7}'"""),
        (["null", "string", "long"], None, None),
    ],
)
def test_the_default_of_a_union_is_of_its_first_type(union: Any, default: Any, sql: str | None) -> None:
    topic, row = Topic(), row_of(ID, {"name": "u", "type": union, "default": default})
    image = {"id": 1, "u": Branch(0, None if union[0] == "null" else default)}
    datum = by_hand(topic, envelope(row["fields"]), created(image), row)
    table = replacing((Column("id", "Int64"),), ("id",))
    batch = Decoder(table, Policy(), registry=topic.registry).decode(records([(None, datum)]))
    assert not batch.bad
    [unknown] = batch.unknown
    assert unknown.name == "u"
    assert unknown.default == sql
