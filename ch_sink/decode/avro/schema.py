"""Avro schemas, parsed with their named types in place, and the Connect types that they declare.

fastavro's own parser keeps references as names and refuses schemas that a registry holds and other readers take (a
default of another type than its field, a type defined twice). Reading columns needs every type in place.
"""

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec

from ch_sink.errors import DecodeError
from ch_sink.types.connect import Field, SourceType, check_numbers
from ch_sink.types.nested import UNION

_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED = frozenset(("record", "error", "enum", "fixed"))
_MOST_TYPES = 30_000
"""Types in one schema, those of a named type counted wherever it is used: each costs a step of reading a datum. Two
images of a table of 4,096 columns that can be null, the most that a source has, are fewer."""
_DEEPEST = 100
"""Types within each other. A limit that is reached earlier than Python's, which depends on the caller."""
_MOST_BYTES = (1 << 31) - 1
"""Of a fixed, as in Avro's own libraries."""


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
    types: int = field(init=False)
    """How many types it has with all that are in it, each counted wherever it is used."""
    depth: int = field(init=False)
    """How many types are within each other at most."""
    weightless: bool = field(init=False)
    """Whether a value of it, or one within, takes no bytes."""

    def __post_init__(self) -> None:
        # Each node knows the sums of its parts, so that a type that is used twice is not walked twice.
        parts = tuple(self.parts())
        self._set("types", 1 + sum(part.types for part in parts))
        self._set("depth", 1 + max((part.depth for part in parts), default=0))
        if self.types > _MOST_TYPES or self.depth > _DEEPEST:
            raise ValueError(f"more than {_MOST_TYPES:,} types, or types nested more than {_DEEPEST} deep")
        # A union and an array, even an empty one, take a byte.
        empty = self.kind == "null" or (self.kind == "fixed" and not self.size)
        empty = empty or (self.kind == "record" and not self.members)
        self._set("weightless", empty or any(member.type.weightless for member in self.members))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def parts(self) -> "Iterator[Node]":
        """The types in it."""
        yield from (member.type for member in self.members)
        yield from self.branches
        if self.items is not None:
            yield self.items

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
        """Whether an array holds a map's entries, as Connect writes maps whose keys are not texts."""
        item = self.items
        return (
            self.kind == "array"
            and item is not None
            and item.properties.get("connect.internal.type") == "MapEntry"
            and [m.name for m in item.members] == ["key", "value"]
        )

    @property
    def alternatives(self) -> "tuple[Node, ...]":
        """The types of a union that are not null; empty for any other type."""
        return tuple(branch for branch in self.branches if branch.kind != "null")

    @property
    def branch_names(self) -> tuple[str, ...]:
        """A name for each alternative: its type, or its own name, in full where two have the same."""
        found = self.alternatives
        names = [branch.name.rpartition(".")[2] or branch.kind for branch in found]
        times = Counter(names)
        return tuple(
            name if times[name] == 1 else branch.name.replace(".", "_") or branch.kind
            for name, branch in zip(names, found, strict=True)
        )

    def member(self, name: str) -> "Member | None":
        """The field of a record."""
        return next((m for m in self.members if m.name == name), None)


_LEAVES = {kind: Node(kind) for kind in _PRIMITIVES}


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A field of a record."""

    name: str
    type: Node
    default: Any = None


def parse(text: str, references: Sequence[str] = ()) -> Node:
    """The type that a schema's JSON text declares.

    ``references``: texts of the schemas whose names it uses, each after those that it uses itself. Raises
    DecodeError if a text is not an Avro schema that can be read.
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
        return _LEAVES.get(schema) or _known(schema, namespace, names)
    if isinstance(schema, list):
        return Node("union", branches=tuple(_node(branch, namespace, names) for branch in schema))
    kind = schema["type"]
    if not isinstance(kind, str):
        return _node(kind, namespace, names)  # {"type": {"type": …}}
    properties = {k: v for k, v in schema.items() if k not in ("type", "name", "namespace", "fields", "items")}
    if kind in _NAMED:
        return _define(kind, schema, properties, namespace, names)
    if kind == "array":
        return Node("array", items=_repeated(schema["items"], namespace, names), properties=properties)
    if kind == "map":
        return Node("map", items=_repeated(schema["values"], namespace, names), properties=properties)
    return Node(kind, properties=properties) if kind in _PRIMITIVES else _known(kind, namespace, names)


def _repeated(schema: Any, namespace: str, names: dict[str, Node | None]) -> Node:
    """The type of an array's or map's values."""
    items = _node(schema, namespace, names)
    if items.weightless:
        # A few bytes could declare any number of them.
        raise ValueError("an array or map of values that take no bytes")
    return items


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
        if not 0 <= made.size <= _MOST_BYTES:
            raise ValueError(f"fixed {name} of {schema['size']!s:.40} bytes")
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
        raise ValueError(f"{full} contains itself, which no type of Connect does")
    return found


@lru_cache(maxsize=1024)
def within(node: Node) -> tuple[Node, ...]:
    """A type and all types in it, each once."""
    found: dict[int, Node] = {}
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if id(one) not in found:
            found[id(one)] = one
            waiting += one.parts()
    return tuple(found.values())


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

    A logical type counts if there is no ``connect.name``. ``default`` is the field's own default in Avro. A union of
    several types is a struct with an optional field for each. Raises
    DecodeError for attributes that Connect's converter does not write.
    """
    if node.kind == "union":
        optional = len(node.alternatives) < len(node.branches)
        if len(node.alternatives) > 1:
            return _union(node, optional, default)
        declared = source_type(node.alternatives[0], default=default) if node.alternatives else SourceType("string")
        return replace(declared, optional=optional)
    if node.kind == "null":
        return SourceType("string")  # that it never is
    extra = node.properties
    kind = _KINDS.get(node.kind, node.kind)
    if extra.get("connect.type") in _SMALL:
        kind = extra["connect.type"]
    name, given = extra.get("connect.name"), extra.get("connect.parameters") or {}
    if not isinstance(given, dict):
        raise DecodeError("Avro schema: connect.parameters is not an object")
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
        optional=False,
        has_default=found is not None,
        items=source_type(items) if items is not None else None,
        keys=keys,
        fields=tuple(Field(m.name, source_type(m.type, default=m.default)) for m in node.members),
    )
    return made if found is None else replace(made, default=_default(made, found))


def _union(node: Node, optional: bool, default: Any) -> SourceType:
    fields = [
        Field(name, replace(source_type(branch), optional=True))
        for name, branch in zip(node.branch_names, node.alternatives, strict=True)
    ]
    made = SourceType("struct", UNION, optional=optional, fields=tuple(fields))
    if default is None:
        return made
    first = fields[0]  # a default is of the union's first type
    return replace(made, has_default=True, default={first.name: _default(first.type, default)})


def _default(source: SourceType, literal: Any) -> Any:
    """A default in JSON; None if JSON cannot express it."""
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
