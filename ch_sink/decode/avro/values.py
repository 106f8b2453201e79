"""Values that are read one after the other, by fastavro: arrays, maps, unions of several types, whole records.

fastavro gets a schema derived from the parsed one: without logical types, so that values stay as they are written, and
with each type of a union of several in a record of one field, so that the value shows which type it has (such a record
is written like its field).
"""

import io
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import fastavro
from fastavro import _read_py
from fastavro.schema import SchemaParseException

from ch_sink.decode.avro.schema import Node, within
from ch_sink.errors import DecodeError

__all__ = ["UNREADABLE", "ValueReader", "value_reader"]

UNREADABLE = (EOFError, ValueError, LookupError, OverflowError, RecursionError, MemoryError)
"""Exceptions that reading bytes that do not follow their schema may raise."""

_LONGEST = 32_768
"""Bytes of a value whose type contains itself, of which each may be a value: reading one takes some microseconds."""

ValueReader = Callable[[bytes], tuple[Any, int]]
"""Bytes to the value at their start and its length. Raises UNREADABLE.

Values are None, bool, int, float, bytes, str, list and dict; a list of pairs for a map's entries; a dict of the type's
name and the value for a union of several types.
"""


@lru_cache(maxsize=1024)
def value_reader(node: Node) -> ValueReader:
    """The reader of a type. Raises DecodeError for a schema that fastavro refuses."""
    field = {"name": "value", "type": _Definitions().schema(node)}
    try:
        schema = fastavro.parse_schema({"type": "record", "name": "Value", "fields": [field]})
    except (SchemaParseException, ValueError, TypeError, KeyError) as error:
        raise DecodeError(f"Avro schema: {error}") from error
    types = within(node)
    # The compiled reader overflows the process's stack if values are nested some thousand times.
    recursive = any(one.kind == "reference" for one in types)
    decode: Any = _read_py.schemaless_reader if recursive else fastavro.schemaless_reader
    entries = any(one.entries for one in types)

    def read(raw: bytes) -> tuple[Any, int]:
        stream = io.BytesIO(raw[:_LONGEST] if recursive else raw)
        try:
            found = decode(stream, schema, None)["value"]
        except EOFError:
            if not recursive or len(raw) <= _LONGEST:
                raise
            raise ValueError(f"more than {_LONGEST:,} bytes of a type that contains itself") from None
        return (_with_pairs(node, found) if entries else found), stream.tell()

    return read


class _Definitions:
    """Builds the schema for fastavro; each named type is defined at its first use, under a unique name."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._wrappers = 0

    def schema(self, node: Node) -> Any:
        node = node.target
        if node.kind == "array" and node.items is not None:
            return {"type": "array", "items": self.schema(node.items)}
        if node.kind == "map" and node.items is not None:
            return {"type": "map", "values": self.schema(node.items)}
        if node.kind == "union":
            return self._union(node)
        if node.kind not in ("record", "enum", "fixed"):
            return node.kind
        if id(node) in self._names:
            return self._names[id(node)]
        name = self._names[id(node)] = f"Type{len(self._names)}"
        if node.kind == "enum":
            return {"type": "enum", "name": name, "symbols": list(node.symbols)}
        if node.kind == "fixed":
            return {"type": "fixed", "name": name, "size": node.size}
        fields = [{"name": member.name, "type": self.schema(member.type)} for member in node.members]
        return {"type": "record", "name": name, "fields": fields}

    def _union(self, node: Node) -> list[Any]:
        if len(node.alternatives) < 2:
            return [self.schema(branch) for branch in node.branches]
        names = iter(node.branch_names)
        return ["null" if branch.kind == "null" else self._wrapper(next(names), branch) for branch in node.branches]

    def _wrapper(self, name: str, branch: Node) -> Any:
        self._wrappers += 1
        wrapper = f"Branch{self._wrappers}"  # before the branch's own unions take the next numbers
        return {"type": "record", "name": wrapper, "fields": [{"name": name, "type": self.schema(branch)}]}


def _with_pairs(node: Node, value: Any) -> Any:
    """The value with each list of a map's entries as pairs."""
    node = node.target
    if value is None:
        return None
    if node.kind == "record":
        return {member.name: _with_pairs(member.type, value[member.name]) for member in node.members}
    if node.kind == "union":
        if len(node.alternatives) == 1:
            return _with_pairs(node.alternatives[0], value)
        branches = dict(zip(node.branch_names, node.alternatives, strict=True))
        return {name: _with_pairs(branches[name], found) for name, found in value.items()}
    if node.items is None:
        return value
    if node.kind == "map":
        return {key: _with_pairs(node.items, item) for key, item in value.items()}
    items = [_with_pairs(node.items, item) for item in value]
    return [(item["key"], item["value"]) for item in items] if node.entries else items
