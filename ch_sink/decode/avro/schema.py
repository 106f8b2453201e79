"""Avro schemas: parsed with their named types put in place, and what they declare as Connect types."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ch_sink.errors import DecodeError
from ch_sink.types.connect import Field, SourceType, check_numbers

__all__ = ["Member", "Node", "parse", "source_type"]

_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED = frozenset(("record", "error", "enum", "fixed"))


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One type of an Avro schema. References to named types are replaced by the types themselves."""

    kind: str
    """null boolean int long float double bytes string fixed enum record array map union"""
    name: str = ""
    """Full name of a record, enum or fixed."""
    members: tuple["Member", ...] = ()
    """Fields of a record."""
    items: "Node | None" = None
    """Elements of an array, values of a map."""
    branches: tuple["Node", ...] = ()
    """Types of a union."""
    symbols: tuple[str, ...] = ()
    """Texts of an enum."""
    size: int = 0
    """Bytes of a fixed."""
    properties: Mapping[str, Any] = field(default_factory=dict)
    """The schema's other attributes: ``connect.name``, ``logicalType``, …"""

    @property
    def null_branch(self) -> int:
        """Which branch of a union of null and one other type is null; -1 for any other type."""
        if self.kind != "union" or len(self.branches) != 2:
            return -1
        return next((i for i, branch in enumerate(self.branches) if branch.kind == "null"), -1)

    @property
    def present(self) -> "Node":
        """The other type of a union with null; else the type itself."""
        return self.branches[1 - self.null_branch] if self.null_branch >= 0 else self

    @property
    def entries(self) -> bool:
        """Whether an array holds a map's entries: so Connect writes maps whose keys are no texts."""
        item = self.items
        return (
            self.kind == "array"
            and item is not None
            and item.properties.get("connect.internal.type") == "MapEntry"
            and [m.name for m in item.members] == ["key", "value"]
        )

    def member(self, name: str) -> "Member | None":
        """The field of a record."""
        return next((m for m in self.members if m.name == name), None)


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A field of a record."""

    name: str
    type: Node
    default: Any = None


def parse(text: str, references: Sequence[str] = ()) -> Node:
    """The type that a schema's JSON text declares.

    ``references``: texts of the schemas whose names it uses, each after those that it uses itself. Raises
    DecodeError where a text is no Avro schema, or a type contains itself (a row image cannot).
    """
    names: dict[str, Node | None] = {}
    try:
        for other in references:
            _node(msgspec.json.decode(other), "", names)
        return _node(msgspec.json.decode(text), "", names)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DecodeError(f"Avro schema: {error or type(error).__name__}") from error


def _node(schema: Any, namespace: str, names: dict[str, Node | None]) -> Node:
    if isinstance(schema, str):
        return Node(schema) if schema in _PRIMITIVES else _known(schema, namespace, names)
    if isinstance(schema, list):
        return Node("union", branches=tuple(_node(branch, namespace, names) for branch in schema))
    kind = schema["type"]
    if not isinstance(kind, str):
        return _node(kind, namespace, names)  # {"type": {"type": …}}
    properties = {k: v for k, v in schema.items() if k not in ("type", "name", "namespace", "fields", "items")}
    if kind in _NAMED:
        return _define(kind, schema, properties, namespace, names)
    if kind == "array":
        return Node("array", items=_node(schema["items"], namespace, names), properties=properties)
    if kind == "map":
        return Node("map", items=_node(schema["values"], namespace, names), properties=properties)
    return Node(kind, properties=properties) if kind in _PRIMITIVES else _known(kind, namespace, names)


def _define(
    kind: str, schema: Mapping[str, Any], properties: Mapping[str, Any], namespace: str, names: dict[str, Node | None]
) -> Node:
    name = str(schema["name"])
    if "." not in name:
        space = schema.get("namespace", namespace)
        name = f"{space}.{name}" if space else name
    names[name] = None
    if kind == "enum":
        made = Node("enum", name, symbols=tuple(map(str, schema["symbols"])), properties=properties)
    elif kind == "fixed":
        made = Node("fixed", name, size=int(schema["size"]), properties=properties)
        if made.size < 0:
            raise ValueError(f"fixed {name} of {made.size} bytes")
    else:
        inside = name.rpartition(".")[0]
        members = tuple(
            Member(str(f["name"]), _node(f["type"], inside, names), f.get("default")) for f in schema["fields"]
        )
        made = Node("record", name, members, properties=properties)
    names[name] = made
    return made


def _known(name: str, namespace: str, names: dict[str, Node | None]) -> Node:
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    if full not in names and name in names:
        full = name
    if full not in names:
        raise ValueError(f"{full} is not defined")
    found = names[full]
    if found is None:
        raise ValueError(f"{full} contains itself")
    return found


_C = "org.apache.kafka.connect.data."
_KINDS = {
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "fixed": "bytes",
    "enum": "string",
    "record": "struct",
}
_SMALL = frozenset(("int8", "int16"))
_LOGICAL = {
    ("int", "date"): _C + "Date",
    ("int", "time-millis"): _C + "Time",
    ("long", "time-micros"): "io.debezium.time.MicroTime",
    ("long", "timestamp-millis"): _C + "Timestamp",
    ("long", "timestamp-micros"): "io.debezium.time.MicroTimestamp",
    ("long", "timestamp-nanos"): "io.debezium.time.NanoTimestamp",
    ("long", "local-timestamp-millis"): _C + "Timestamp",
    ("long", "local-timestamp-micros"): "io.debezium.time.MicroTimestamp",
    ("long", "local-timestamp-nanos"): "io.debezium.time.NanoTimestamp",
    ("string", "uuid"): "io.debezium.data.Uuid",
    ("bytes", "decimal"): _C + "Decimal",
    ("fixed", "decimal"): _C + "Decimal",
}


def source_type(node: Node, *, default: Any = None) -> SourceType:
    """The Connect type that Connect's Avro converter wrote as this schema.

    A logical type counts where there is no ``connect.name``. ``default`` is the field's own default in Avro.
    Raises DecodeError for a union of several types, which no row image has.
    """
    optional = node.null_branch >= 0
    node = node.present
    if node.kind in ("union", "null"):
        raise DecodeError("Avro schema: a union of several types, or of null alone, has no column type")
    extra = node.properties
    kind = _KINDS.get(node.kind, node.kind)
    if extra.get("connect.type") in _SMALL:
        kind = extra["connect.type"]
    name, given = extra.get("connect.name"), extra.get("connect.parameters") or {}
    if not isinstance(given, dict):
        raise DecodeError("Avro schema: connect.parameters is no object")
    parameters = {str(k): str(v) for k, v in given.items()}
    if name is None:
        name = _LOGICAL.get((node.kind, str(extra.get("logicalType"))))
        if name == _C + "Decimal":
            parameters = {"scale": str(extra.get("scale", 0))}
            if "precision" in extra:
                parameters["connect.decimal.precision"] = str(extra["precision"])
    name = str(name) if name is not None else None
    check_numbers(name, parameters.items())
    found = extra.get("connect.default", default)
    keys, items = None, node.items
    if node.entries and items is not None:
        kind, keys, items = "map", source_type(items.members[0].type), items.members[1].type
    elif node.kind == "map":
        keys = SourceType("string", optional=False)
    made = SourceType(
        kind=kind,
        name=name,
        parameters=tuple(parameters.items()),
        optional=optional,
        has_default=found is not None,
        items=source_type(items) if items is not None else None,
        keys=keys,
        fields=tuple(Field(m.name, source_type(m.type, default=m.default)) for m in node.members),
    )
    return made if found is None else replace(made, default=_default(made, found))


def _default(source: SourceType, literal: Any) -> Any:
    """A default as JSON would write it. None if it cannot be written."""
    try:
        return _as_json(source, literal)
    except UnicodeEncodeError:
        return None


def _as_json(source: SourceType, literal: Any) -> Any:
    """Avro's schemas write bytes as text, one character for each byte; JSON has them in base64."""
    if isinstance(literal, str):
        return base64.b64encode(literal.encode("latin-1")).decode() if source.kind == "bytes" else literal
    if isinstance(literal, list) and source.items is not None:
        return [_as_json(source.items, item) for item in literal]
    if isinstance(literal, dict):
        types = {f.name: f.type for f in source.fields}
        return {key: _as_json(types.get(key, source.items or source), item) for key, item in literal.items()}
    return literal
