"""Columns, and the choices among their types."""

import pytest

from ch_sink.types import clickhouse_type
from ch_sink.types.column import TypeChoices
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
