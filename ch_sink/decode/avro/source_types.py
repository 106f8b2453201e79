"""The Connect types that Avro schemas declare, as Connect's own Avro converter reads them."""

import base64
from dataclasses import replace
from typing import Any

from ch_sink.decode.avro.schema import Node
from ch_sink.errors import DecodeError
from ch_sink.types.connect import Field, SourceType, check_numbers
from ch_sink.types.unions import UNION

__all__ = ["source_type"]

_C = "org.apache.kafka.connect.data."
_KINDS = {
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "fixed": "bytes",
    "enum": "string",
    "record": "struct",
    "reference": "struct",
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
    several types is a struct with an optional field for each, a record within itself a struct without fields. Raises
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
