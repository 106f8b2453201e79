"""What init learns of a topic is learned from its rows, whatever other records stand before or behind them."""

import json
from typing import Any

import pytest

from ch_sink.discovery.sample import sample_schema
from tests.support.event import event, records

SIGNAL = {"id": "6d5f-open", "type": "snapshot-window-open", "data": "{}"}
MESSAGE = {"op": "m", "source": {"connector": "postgresql"}, "message": {"prefix": "p", "content": "AA=="}}
OTHERS: list[tuple[dict[str, str], Any]] = [
    ({"id": "6d5f-open"}, json.loads(event("c", SIGNAL))),
    ({"id": "6d5f-open"}, {**SIGNAL, "__deleted": "false"}),
    ({"prefix": "p"}, MESSAGE),
    ({"id": "7:1"}, {"status": "END", "id": "7:1", "event_count": 2, "data_collections": [], "ts_ms": 1}),
    ({"id": "9"}, {"id": "9", "aggregate_type": "x", "type": "STARTED", "additional_data": {}}),
    ({"serverName": "s"}, {"ts_ms": 1}),
    ({"databaseName": "d"}, {"source": {"connector": "mysql"}, "ddl": "x", "tableChanges": []}),
]


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("value", [event("c", {"a": 1, "v": "x"}), text({"a": 1, "v": "x", "__deleted": "false"})])
@pytest.mark.parametrize("first", [True, False])
def test_columns_and_key_are_those_of_the_rows(other: tuple[Any, Any], value: bytes, first: bool) -> None:
    pairs = [(text(other[0]), text(other[1])), (text({"a": 1}), value), (text({"a": 1}), None)]
    schema = sample_schema(records(*(pairs if first else pairs[::-1])))
    assert schema is not None
    assert [f.name for f in schema.fields] == ["a", "v"]
    assert [f.name for f in schema.key] == ["a"]


def test_a_tombstone_of_a_signal_does_not_tell_the_key() -> None:
    schema = sample_schema(records((text({"id": "6d"}), None), (text({"a": 1}), event("c", {"a": 1}))))
    assert schema is not None
    assert [f.name for f in schema.key] == ["a"]


def test_the_signal_table_has_a_schema_of_its_own() -> None:
    schema = sample_schema(records((text({"id": "6d"}), event("c", SIGNAL)), (text({"id": "6d"}), None)))
    assert schema is not None
    assert [f.name for f in schema.fields] == ["id", "type", "data"]
    assert [f.name for f in schema.key] == ["id"]
