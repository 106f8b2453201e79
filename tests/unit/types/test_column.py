"""Columns, and the choices among their types."""

import pytest

from ch_sink.types import clickhouse_type
from ch_sink.types.column import TypeChoices, same_values
from ch_sink.types.connect import SourceType
from tests.unit.types.columns import INT

TEXT = SourceType("string")
TEXTS = SourceType("array", items=TEXT)
PAIRS = SourceType("map", keys=SourceType("string", optional=False), items=TEXT)
JSON = SourceType("string", "io.debezium.data.Json")
EMPTY, AS_JSON = TypeChoices(arrays="empty_for_null"), TypeChoices(json_type="JSON")


@pytest.mark.parametrize(
    ("source", "choices", "column_type"),
    [
        (TEXTS, TypeChoices(), "Nullable(Tuple(items Array(Nullable(String))))"),
        (TEXTS, EMPTY, "Array(Nullable(String))"),
        (PAIRS, EMPTY, "Map(String, Nullable(String))"),
        (TEXTS, TypeChoices(arrays="empty_for_null", nullable_tuple=False), "Array(Nullable(String))"),
        (SourceType("array", items=TEXTS), EMPTY, "Array(Array(Nullable(String)))"),
        (JSON, TypeChoices(), "Nullable(String)"),
        (JSON, AS_JSON, "Nullable(JSON)"),
        (SourceType("string", JSON.name, optional=False), AS_JSON, "JSON"),
        (JSON, TypeChoices(json_columns=(("x", "JSON"),)), "Nullable(JSON)"),
        (JSON, TypeChoices(json_columns=(("y", "JSON"),)), "Nullable(String)"),
        (JSON, TypeChoices(json_type="JSON", json_columns=(("x", "String"),)), "Nullable(String)"),
        (SourceType("array", items=JSON, optional=False), AS_JSON, "Array(Nullable(String))"),
        (TEXT, AS_JSON, "Nullable(String)"),
    ],
)
def test_the_column_follows_the_choice(source: SourceType, choices: TypeChoices, column_type: str) -> None:
    assert clickhouse_type(source, choices, column="x") == column_type


def test_json_in_a_key_stays_a_text() -> None:
    assert clickhouse_type(JSON, AS_JSON, key=True) == "String"


def test_keys_and_required_columns_are_not_nullable() -> None:
    assert clickhouse_type(SourceType("int32", optional=False)) == "Int32"
    assert clickhouse_type(SourceType("int32"), key=True) == "Int32"
    label = SourceType("string", "io.debezium.data.Enum")
    assert clickhouse_type(label) == "LowCardinality(Nullable(String))"
    assert clickhouse_type(label, TypeChoices(low_cardinality=False)) == "Nullable(String)"
    assert clickhouse_type(SourceType("array", items=INT), TypeChoices(nullable_tuple=False)) == "Nullable(String)"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("LowCardinality(Nullable(String))", "Nullable(String)"),
        ("Array(LowCardinality(String))", "Array(String)"),
        ("Tuple(a LowCardinality(String), b Int8)", "Tuple(a String, b Int8)"),
        ("DateTime64(3)", "DateTime64(3, 'UTC')"),
        ("DateTime('Asia/Tokyo')", "DateTime"),
        ("Enum8('a' = 1)", "Enum16('a' = 1, 'b' = 2)"),
        ("Enum8('a' = 1)", "LowCardinality(String)"),
    ],
)
def test_types_that_show_the_same_values(before: str, now: str) -> None:
    for clamped in (False, True):
        assert same_values(before, now, clamped=clamped)
        assert same_values(now, before, clamped=clamped)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("UInt8", "Int16"),
        ("Nullable(Int32)", "Nullable(Int256)"),
        ("Decimal(10, 2)", "Decimal(12, 4)"),
        ("Date", "Date32"),
    ],
)
def test_a_wider_type_has_the_same_values_unless_others_were_clamped(before: str, now: str) -> None:
    assert same_values(before, now, clamped=False)
    assert not same_values(before, now, clamped=True)
    assert not same_values(now, before, clamped=False)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("Float32", "Float64"),
        ("DateTime64(3)", "DateTime64(6)"),
        ("Date32", "DateTime64(3)"),
        ("Int64", "Nullable(Int64)"),
        ("Int64", "String"),
        ("Int64", "Float64"),
        ("FixedString(4)", "String"),
        ("UUID", "String"),
        ("Array(Int32)", "Array(Nullable(Int32))"),
        ("Tuple(a Int8, b Int8)", "Tuple(b Int8, a Int8)"),
    ],
)
def test_types_of_which_an_alter_makes_other_values(before: str, now: str) -> None:
    assert not same_values(before, now, clamped=False)
    assert not same_values(now, before, clamped=False)
