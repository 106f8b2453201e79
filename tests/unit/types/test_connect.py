"""The source's types in column comments."""

from typing import Any

import pytest

from ch_sink.types.connect import SourceType, parse_connect_schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "optional": True},
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "9"},
        },
        {"type": "string", "name": "io.debezium.data.Enum", "parameters": {"allowed": "a{,b\\, c 'é\""}},
        {"type": "array", "items": {"type": "float", "optional": True}, "optional": True},
        {
            "type": "map",
            "keys": {"type": "string"},
            "values": {"type": "struct", "fields": [{"field": "a b", "type": "double"}]},
        },
        {"type": "string", "name": "a name with spaces"},
    ],
)
def test_column_comment_round_trips(schema: dict[str, Any]) -> None:
    source = parse_connect_schema(schema)
    assert SourceType.from_comment(source.to_comment()) == source
    assert SourceType.from_comment("customer's own words; " + source.to_comment()) == source
    assert "\n" not in source.to_comment()


@pytest.mark.parametrize("text", ["", "plain", "debezium: ", "debezium: what", "debezium: int64 {", "debezium: a b c"])
def test_other_comments_tell_nothing(text: str) -> None:
    assert SourceType.from_comment(text) is None
