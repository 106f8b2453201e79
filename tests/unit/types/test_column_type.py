"""The column type that ``init`` chooses."""

from ch_sink.types import clickhouse_type
from ch_sink.types.column import TypeChoices
from ch_sink.types.connect import SourceType
from tests.unit.types.columns import INT


def test_keys_and_required_columns_are_not_nullable() -> None:
    assert clickhouse_type(SourceType("int32", optional=False)) == "Int32"
    assert clickhouse_type(SourceType("int32"), key=True) == "Int32"
    label = SourceType("string", "io.debezium.data.Enum")
    assert clickhouse_type(label) == "LowCardinality(Nullable(String))"
    assert clickhouse_type(label, TypeChoices(low_cardinality=False)) == "Nullable(String)"
    assert clickhouse_type(SourceType("array", items=INT), TypeChoices(nullable_tuple=False)) == "Nullable(String)"
