"""Avro's binary encoding, written from its specification: no code shared with the product or with fastavro."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Branch", "encoded", "expected"]

Names = Mapping[str, Any]
"""Definitions of the named types, by full name."""


@dataclass(frozen=True)
class Branch:
    """A union's value, with the place of its type in the union."""

    index: int
    value: Any


def encoded(schema: Any, value: Any, names: Names) -> bytes:
    """The bytes of one value."""
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        return _long(value.index) + encoded(schema[value.index], value.value, names)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return b"".join(encoded(f["type"], value[f["name"]], names) for f in schema["fields"])
    if kind == "array":
        items = b"".join(encoded(schema["items"], item, names) for item in value)
        return (_long(len(value)) + items if value else b"") + b"\0"
    if kind == "map":
        items = b"".join(
            encoded("string", k, names) + encoded(schema["values"], item, names) for k, item in value.items()
        )
        return (_long(len(value)) + items if value else b"") + b"\0"
    if kind == "enum":
        return _long(schema["symbols"].index(value))
    return _primitive(kind, value)


def _primitive(kind: str, value: Any) -> bytes:
    if kind == "null":
        return b""
    if kind in ("int", "long"):
        return _long(value)
    if kind == "boolean":
        return b"\1" if value else b"\0"
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind == "fixed":
        return bytes(value)
    raw = value.encode() if kind == "string" else value
    return _long(len(raw)) + bytes(raw)


def _long(value: int) -> bytes:
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*out, zigzag])


def expected(schema: Any, value: Any, names: Names) -> Any:
    """The expected value: that of a union of several types names its type."""
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        branch = schema[value.index]
        found = expected(branch, value.value, names)
        several = len([one for one in schema if one != "null"]) > 1
        return {_name(branch): found} if several and branch != "null" else found
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return {f["name"]: expected(f["type"], value[f["name"]], names) for f in schema["fields"]}
    if kind == "array":
        return [expected(schema["items"], item, names) for item in value]
    if kind == "map":
        return {key: expected(schema["values"], item, names) for key, item in value.items()}
    return value


def _name(branch: Any) -> str:
    if isinstance(branch, str):
        return branch.rpartition(".")[2]
    return str(branch.get("name", branch["type"])).rpartition(".")[2]
