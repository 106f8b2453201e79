"""Bytes as Kafka Connect writes them: compact JSON, the schema envelope, the headers' pseudo-JSON, the partitioner."""

import json
import re
from typing import Any

from tests.model.shapes import TableShape

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_CONTROL = re.compile(r"\\(?:\\|u00[0-9a-f]{2})")


def dumps(document: Any) -> bytes:
    """JSON as Jackson writes it: no spaces, UTF-8, characters beyond the BMP as surrogate escapes."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    text = _CONTROL.sub(lambda found: found[0][:2] + found[0][2:].upper(), text)
    return _ASTRAL.sub(_surrogates, text).encode()


def _surrogates(found: re.Match[str]) -> str:
    code = ord(found[0]) - 0x10000
    return f"\\u{0xD800 + (code >> 10):04X}\\u{0xDC00 + (code & 0x3FF):04X}"


def header_struct(document: dict[str, Any]) -> bytes:
    """A key as in ``__debezium.newkey``: quotes and backslashes escaped, everything else raw."""
    fields = []
    for name, value in document.items():
        if isinstance(value, str):
            value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        fields.append(f'"{name}":{value}')
    return ("{" + ",".join(fields) + "}").encode()


def murmur2(key: bytes) -> int:
    """Kafka's hash of record keys, as an unsigned 32-bit number."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    result = (0x9747B28C ^ len(key)) & mask
    whole = len(key) // 4 * 4
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        result = (result * multiplier & mask) ^ word
    rest = key[whole:]
    if rest:
        result = (result ^ int.from_bytes(rest, "little")) * multiplier & mask
    result = (result ^ result >> 13) * multiplier & mask
    return result ^ result >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's default partitioner gives a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def key_schema(table: TableShape, topic: str) -> dict[str, Any]:
    fields = [table.column(name).schema for name in table.key]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{topic}.Key"}


def value_schema(table: TableShape, topic: str, source: dict[str, Any]) -> dict[str, Any]:
    """Schema of the envelope; ``source`` is the connector's source schema."""
    row = {
        "type": "struct",
        "fields": [column.schema for column in table.columns],
        "optional": True,
        "name": f"{topic}.Value",
    }
    block = {
        "type": "struct",
        "fields": [
            _plain("string", False, "id"),
            _plain("int64", False, "total_order"),
            _plain("int64", False, "data_collection_order"),
        ],
        "optional": True,
        "name": "event.block",
        "version": 1,
        "field": "transaction",
    }
    fields = [row | {"field": "before"}, row | {"field": "after"}, source | {"field": "source"}, block]
    fields += [_plain("string", False, "op")] + [_plain("int64", True, name) for name in ("ts_ms", "ts_us", "ts_ns")]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{topic}.Envelope", "version": 2}


def source_schema(connector: str, fields: list[tuple[str, str, bool]]) -> dict[str, Any]:
    """Schema of a source block: the common fields, then the connector's (name, type, optional)."""
    common = [_plain("string", False, name) for name in ("version", "connector", "name")]
    common.append(_plain("int64", False, "ts_ms"))
    common.append(
        {
            "type": "string",
            "optional": True,
            "name": "io.debezium.data.Enum",
            "version": 1,
            "parameters": {
                "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
            },
            "default": "false",
            "field": "snapshot",
        }
    )
    common += [_plain("string", False, "db"), _plain("string", True, "sequence")]
    common += [_plain("int64", True, "ts_us"), _plain("int64", True, "ts_ns")]
    own = [_plain(kind, optional, name) for name, kind, optional in fields]
    name = f"io.debezium.connector.{connector}.Source"
    return {"type": "struct", "fields": common + own, "optional": False, "name": name, "version": 1}


def _plain(kind: str, optional: bool, name: str) -> dict[str, Any]:
    if kind == "array":
        return {"type": kind, "items": {"type": "string", "optional": True}, "optional": optional, "field": name}
    return {"type": kind, "optional": optional, "field": name}
