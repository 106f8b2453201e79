"""BSON values into ClickHouse columns: what each column type makes of each value, and what it refuses."""

import datetime
from decimal import Decimal
from typing import Any

import pytest

from ch_sink.decode.mongodb.targets import document_converter, into
from ch_sink.decode.mongodb.texts import plain_text
from ch_sink.decode.mongodb.values import parse
from ch_sink.errors import DecodeError, TableError
from ch_sink.types import OutOfRange, arrow_type
from ch_sink.types.column import Column, ValuePolicy

OID, UUID = '{"$oid": "596e275826f08b2730779e1f"}', '{"$binary": "ABEiM0RVZneImaq7zN3u/w==", "$type": "04"}'
UUID_TEXT = "00112233-4455-6677-8899-aabbccddeeff"
DATE = '{"$date": 1709210096789}'
MOMENT = datetime.datetime(2024, 2, 29, 12, 34, 56, 789000, tzinfo=datetime.UTC)

TAKEN: list[tuple[str, str, Any]] = [
    ("String", '"text"', b"text"),
    ("String", OID, b"596e275826f08b2730779e1f"),
    ("String", '{"$numberLong": "9007199254740993"}', b"9007199254740993"),
    ("String", "10.0", b"10.0"),
    ("String", "true", b"true"),
    ("String", DATE, b"2024-02-29T12:34:56.789Z"),
    ("String", '{"$date": 253402300800000}', b"10000-01-01 00:00:00"),
    ("String", '{"$numberDecimal": "1.10"}', b"1.10"),
    ("String", UUID, b"00112233-4455-6677-8899-aabbccddeeff"),
    ("String", '{"$binary": "AP8=", "$type": "00"}', b"\x00\xff"),
    ("String", '{"a": {"$numberLong": "1"}}', b'{"a":1}'),
    ("String", '[1, "x"]', b'[1,"x"]'),
    ("String", '{"$regex": "^a", "$options": "i"}', b'{"$regularExpression":{"pattern":"^a","options":"i"}}'),
    ("String", '{"$undefined": true}', None),
    ("Nullable(String)", "null", None),
    ("LowCardinality(String)", '"x"', b"x"),
    ("JSON", '{"a": ' + DATE + "}", '{"a":"2024-02-29T12:34:56.789Z"}'),
    ("Int32", "5", 5),
    ("Int64", '{"$numberLong": "-9223372036854775808"}', -(2**63)),
    ("Int64", "30.0", 30),
    ("Int64", '{"$numberDecimal": "30.00"}', 30),
    ("UInt64", '{"$numberDecimal": "18446744073709551615"}', 2**64 - 1),
    ("Int128", "-1", (2**128 - 1).to_bytes(16, "little")),
    ("UInt8", "true", 1),
    ("Float64", "0.1", 0.1),
    ("Float64", "5", 5.0),
    ("Float64", "Infinity", float("inf")),
    ("Float64", '{"$numberDouble": "-Infinity"}', float("-inf")),
    ("Float64", '{"$numberDecimal": "1.5"}', 1.5),
    ("Decimal(18, 4)", '{"$numberDecimal": "1.25"}', Decimal("1.2500")),
    ("Decimal(18, 4)", '{"$numberDecimal": "125E-2"}', Decimal("1.2500")),
    ("Decimal(18, 4)", "0.1", Decimal("0.1000")),
    ("Decimal(38, 0)", '{"$numberLong": "5"}', Decimal(5)),
    ("Int64", '"12"', 12),
    ("Bool", "true", True),
    ("Bool", "0", False),
    ("UUID", UUID, UUID_TEXT),
    ("UUID", '"00112233-4455-6677-8899-aabbccddeeff"', UUID_TEXT),
    ("UUID", '{"$binary": "ABEiM0RVZneImaq7zN3u/w==", "$type": "03"}', UUID_TEXT),
    ("DateTime64(3, 'UTC')", DATE, MOMENT),
    ("DateTime64(3, 'UTC')", '{"$date": {"$numberLong": "1709210096789"}}', MOMENT),
    ("DateTime64(3, 'UTC')", '{"$date": "2024-02-29T12:34:56.789Z"}', MOMENT),
    ("DateTime64(3, 'UTC')", '{"$date": -1}', datetime.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=datetime.UTC)),
    ("DateTime64(6, 'UTC')", DATE, MOMENT),
    ("DateTime64(3, 'UTC')", '"2024-02-29T12:34:56.789Z"', MOMENT),
    ("DateTime", '{"$timestamp": {"t": 1709210096, "i": 7}}', 1709210096),
    ("Date32", DATE, datetime.date(2024, 2, 29)),
    ("FixedString(12)", OID, bytes.fromhex("596e275826f08b2730779e1f")),
    ("FixedString(24)", OID, b"596e275826f08b2730779e1f"),
    ("Enum8('a' = 1, 'b\\'s' = 2)", '"b\'s"', 2),
    ("IPv4", '"127.0.0.1"', 2130706433),
    ("Array(String)", '["a", ' + OID + "]", [b"a", b"596e275826f08b2730779e1f"]),
    ("Array(Array(Int32))", "[[1], [], [2.0]]", [[1], [], [2]]),
    ("Array(Nullable(Int64))", "[1, null]", [1, None]),
    ("Map(String, Int64)", '{"a": 1, "b": {"$numberLong": "2"}}', [(b"a", 1), (b"b", 2)]),
    ("Tuple(city String, zip Nullable(String))", '{"city": "Oslo", "more": 1}', {"city": b"Oslo", "zip": None}),
    ("Nullable(Tuple(items Array(String)))", '["a"]', {"items": [b"a"]}),
    ("Point", '{"type": "Point", "coordinates": [10.5, 60]}', {"1": 10.5, "2": 60.0}),
    ("Point", "[10.5, 60]", {"1": 10.5, "2": 60.0}),
]  # fmt: skip


@pytest.mark.parametrize(("column", "given", "want"), TAKEN)
def test_a_column_takes(column: str, given: str, want: Any) -> None:
    made = into(Column("c", column), ValuePolicy()).convert([None, parse(given)])
    assert made.array.type == arrow_type(column)
    assert made.array.to_pylist()[1] == want
    # A value that went through the stored document first (an update of a part of it) is the same.
    stored = parse(plain_text({"v": parse(given)}))["v"]
    assert into(Column("c", column), ValuePolicy()).convert([stored]).array.to_pylist() == [want]


REFUSED = [
    ("Int32", '"five"'), ("Int32", OID), ("Int32", DATE), ("Int64", "1.5"), ("Int8", "300"), ("UInt64", "-1"),
    ("Int64", "NaN"), ("Int64", '{"$oid": "596027582608627307790e18"}'),
    ("Float64", '"abc"'), ("Float64", "true"), ("Decimal(18, 4)", "NaN"), ("Bool", "2"), ("Bool", '"true"'),
    ("UUID", OID), ("UUID", '"x"'), ("DateTime64(3, 'UTC')", "5"), ("DateTime64(3, 'UTC')", '"soon"'),
    ("DateTime64(3, 'UTC')", '{"$date": 999999999999999999}'), ("Date", '{"$date": -1}'), ("Array(Int32)", "5"),
    ("Array(Int32)", '["x"]'), ("Map(String, Int64)", "[1]"), ("Tuple(a Int32)", "5"), ("JSON", "5"), ("JSON", "[1]"),
    ("JSON", '{"a": {"b": 1}, "a.b": 2}'), ("JSON", '{"a": [{"x": {"y": 1}, "x.y": 2}]}'),
    ("Enum8('a' = 1)", '"z"'), ("FixedString(2)", '"abc"'), ("IPv4", "5"), ("Point", "[1]"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "given"), REFUSED)
def test_a_column_refuses(column: str, given: str) -> None:
    with pytest.raises((DecodeError, ValueError)):
        into(Column("c", column), ValuePolicy()).convert([parse(given)])


def test_out_of_range_values_are_clamped_or_null_as_configured() -> None:
    many = [parse("300"), parse("-1")]
    clamped = into(Column("c", "UInt8"), ValuePolicy(out_of_range="clamp")).convert(many)
    assert (clamped.array.to_pylist(), clamped.clamped) == ([255, 0], 2)
    assert into(Column("c", "UInt8"), ValuePolicy(out_of_range="clamp")).convert([300.5, 1.5]).array.to_pylist() == [
        255,
        1,
    ]
    huge = [parse('{"$numberDecimal": "1E+6144"}'), parse('{"$numberDecimal": "-1E+6144"}')]
    found = into(Column("c", "Int64"), ValuePolicy(out_of_range="clamp")).convert(huge)
    assert found.array.to_pylist() == [2**63 - 1, -(2**63)]
    nulled = into(Column("c", "Nullable(UInt8)"), ValuePolicy(out_of_range="null")).convert(many)
    assert nulled.array.to_pylist() == [None, None]
    with pytest.raises(OutOfRange):
        into(Column("c", "UInt8"), ValuePolicy()).convert(many)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("UInt8", "300"),
        ("Decimal(3, 1)", '{"$numberDecimal": "1000"}'),
        ("Enum8('a' = 1)", '"b"'),
        ("DateTime", '{"$date": 99999999999999}'),
    ],
)
def test_what_becomes_null_can_be_null(kind: str, given: str) -> None:
    policy = ValuePolicy(out_of_range="null")
    assert into(Column("c", f"Nullable({kind})"), policy).convert([parse(given)]).array.to_pylist() == [None]
    inner = into(Column("c", f"Array(Nullable({kind}))"), policy).convert([[parse(given)]])
    assert inner.array.to_pylist() == [[None]]
    with pytest.raises(OutOfRange):
        into(Column("c", kind), policy).convert([parse(given)])
    with pytest.raises(OutOfRange):
        into(Column("c", f"Array({kind})"), policy).convert([[parse(given)]])


def test_types_that_take_no_document_are_refused_by_name() -> None:
    with pytest.raises(TableError, match="'c'"):
        into(Column("c", "Tuple(Int32, String)"), ValuePolicy())
    with pytest.raises(TableError, match="'doc'"):
        document_converter(Column("doc", "Int64"))
