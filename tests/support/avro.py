"""Avro values in Confluent framing, written by fastavro, and a registry that holds their schemas."""

import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro

from ch_sink.decode import Decoder
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import policy_of
from ch_sink.ports import RegisteredSchema
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.event import chunk_of
from tests.support.memory_stream import MemoryRegistry


def peer_schema(text: str) -> Any:
    """A schema for fastavro that leaves values as they are written: without logical types."""
    return fastavro.parse_schema(_physical(json.loads(text)))


def _physical(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _physical(v) for k, v in schema.items() if not (k == "logicalType" and isinstance(v, str))}
    return [_physical(part) for part in schema] if isinstance(schema, list) else schema


def peer_read(schema: Any, datum: bytes) -> tuple[Any, bool]:
    """What fastavro reads, and whether the datum is just what it would write of that. Raises what fastavro raises."""
    found = fastavro.schemaless_reader(io.BytesIO(datum), schema, None)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, found)
    return found, out.getvalue() == datum


class Topic:
    """Writes values under schemas that it registers, ids in the order of their first use."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def write(self, schema: Any, value: Any) -> bytes:
        """One value with its five bytes of framing."""
        text = json.dumps(schema)
        known = self.ids.setdefault(text, 100 + len(self.ids))
        out = io.BytesIO()
        fastavro.schemaless_writer(out, peer_schema(text), value)
        return b"\0" + known.to_bytes(4, "big") + out.getvalue()

    @property
    def registry(self) -> MemoryRegistry:
        return MemoryRegistry({found: RegisteredSchema("AVRO", text) for text, found in self.ids.items()})


def envelope(fields: list[Mapping[str, Any]], *, source: list[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """The schema of change events with these row fields, in the order in which Debezium has them."""
    block = source or [{"name": "file", "type": "string"}, {"name": "pos", "type": "long"}]
    common = [
        {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": ["null", "string"], "default": None},
        *block,
    ]
    value = {"type": "record", "name": "Value", "fields": fields}
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.t",
        "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": {"type": "record", "name": "Source", "namespace": "x", "fields": common}},
            {"name": "op", "type": "string"},
        ],
    }


TABLE = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))
ID = {"name": "id", "type": "long"}
V = {"name": "v", "type": ["null", "string"], "default": None}
ROW = envelope([ID, V])
KEY = {"type": "record", "name": "Key", "fields": [ID]}


def event(op: str, after: Any = None, before: Any = None, **source: Any) -> dict[str, Any]:
    block = {"connector": "mysql", "name": "m", "ts_ms": 5, "snapshot": None, "file": "bin.000003", "pos": 77}
    return {"op": op, "after": after, "before": before, "source": block | source}


def records(pairs: list[tuple[bytes | None, bytes | None]]) -> Records:
    return chunk_of([k for k, _ in pairs], [v for _, v in pairs], first=10)


def decode(topic: Topic, pairs: list[tuple[bytes | None, bytes | None]], **more: Any) -> ChangeBatch:
    table = more.pop("table", TABLE)
    return Decoder(table, more.pop("policy", policy_of()), registry=topic.registry, **more).decode(records(pairs))


def rows(batch: ChangeBatch) -> list[Any]:
    return [tuple(row.values()) for row in batch.after.to_pylist()]
