"""Types as the source declares them: the Connect schema of a row, from a JSON schema envelope or a column comment."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ch_sink.errors import DecodeError

__all__ = ["Field", "RowSchema", "SourceType", "check_numbers", "parse_connect_schema"]

_COMMENT_MARK = "debezium: "
_JSON_NAMES = {"float": "float32", "double": "float64"}
"""JsonConverter's names that differ from Connect's."""
_KINDS = frozenset(
    ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string", "bytes", "array", "map", "struct"),
)
_COUNTING: dict[str, dict[str, range]] = {
    # PostgreSQL's NUMERIC(p, s) has the widest bounds of both.
    "org.apache.kafka.connect.data.Decimal": {
        "scale": range(-1000, 1001),
        "connect.decimal.precision": range(147_456),
    },
    # 2³¹−1 stands for no limit.
    "io.debezium.data.Bits": {"length": range(1 << 31)},
}
"""Semantic types with the parameters that are numbers, and what these may be."""
_MOST_TYPES = 20_000
"""Types in one schema: two images of a table of 4,096 columns, the most that a source has, some of them nested."""
_DEEPEST = 100
"""Types within each other. A limit that is reached earlier than Python's, which depends on the caller."""


@dataclass(frozen=True, slots=True)
class SourceType:
    """A Connect type with its semantic name, e.g. int64 ``io.debezium.time.MicroTimestamp``."""

    kind: str
    """int8 int16 int32 int64 float32 float64 boolean string bytes array map struct"""
    name: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    optional: bool = True
    default: object = field(default=None, hash=False)
    """The default's literal as the schema writes it (a decimal is base64 text there)."""
    has_default: bool = False
    items: "SourceType | None" = None
    """Elements of an array, values of a map."""
    keys: "SourceType | None" = None
    """Keys of a map."""
    fields: tuple["Field", ...] = ()
    """Fields of a struct."""

    def parameter(self, name: str) -> str | None:
        """The schema parameter of this name, None if it is absent."""
        return next((v for k, v in self.parameters if k == name), None)

    def to_comment(self) -> str:
        """One line for a ClickHouse column comment, e.g. ``debezium: int64 io.debezium.time.MicroTimestamp``.

        Holds all that decoding needs (not the default); :meth:`from_comment` reads it back.
        """
        return _COMMENT_MARK + self.to_note()

    def to_note(self) -> str:
        """The same without the mark, as the sink's own table of column types holds it."""
        schema = _to_json(self)
        del schema["type"]
        words = [self.kind]
        if self.name and " " not in self.name:
            words.append(self.name)
            del schema["name"]
        if schema:
            words.append(json.dumps(schema, separators=(",", ":"), ensure_ascii=False))
        return " ".join(words)

    @staticmethod
    def from_comment(text: str) -> "SourceType | None":
        """The type that a column comment states, None if it states none that can be read.

        The mark may follow a comment of the user's own; it extends to the comment's end.
        """
        _, mark, rest = text.rpartition(_COMMENT_MARK)
        if not mark:
            return None
        head, brace, tail = rest.strip().partition("{")
        words = head.split()
        if not words or len(words) > 2:
            return None
        try:
            schema = json.loads(brace + tail) if brace else {}
            schema["type"] = words[0]
            if len(words) == 2:
                schema["name"] = words[1]
            return parse_connect_schema(schema, optional=True)
        except (ValueError, DecodeError):
            return None


@dataclass(frozen=True, slots=True)
class Field:
    """A named member of a struct or row."""

    name: str
    type: SourceType
    unmasked: SourceType | None = None
    """Of a masked column, whose type is text: what the source declares."""


@dataclass(frozen=True, slots=True)
class RowSchema:
    """Row image and key as the source declares them."""

    fields: tuple[Field, ...]
    key: tuple[Field, ...]
    """Key fields in the key's order; empty for a topic without keys. A primitive key has the name ``""``."""
    inferred: bool = False
    """The types are guesses from sampled values: good for new columns, never stated as the source's types."""

    def field(self, name: str) -> Field | None:
        return next((f for f in self.fields if f.name == name), None)


def parse_connect_schema(schema: Mapping[str, Any], *, optional: bool = False) -> SourceType:
    """The type that a schema of a JSON schema envelope (``schema``) declares.

    ``optional`` is what an absent ``optional`` means: required in Connect. Raises DecodeError if it
    is no schema, or one of more types or levels than a table has.
    """
    return _parse(schema, optional, 1, count())


def _parse(schema: Mapping[str, Any], optional: bool, depth: int, types: Iterator[int]) -> SourceType:
    """``types`` counts those of the whole schema."""
    if depth > _DEEPEST or next(types) >= _MOST_TYPES:
        raise DecodeError(
            f"schema envelope: more than {_MOST_TYPES:,} types, or types more than {_DEEPEST} deep in each other",
            hint="the record is no change event of a table",
        )
    if not isinstance(schema, Mapping):
        raise DecodeError(f"schema envelope: expected an object, found {type(schema).__name__}")
    kind = schema.get("type")
    if isinstance(kind, str):
        kind = _JSON_NAMES.get(kind, kind)
    if kind not in _KINDS:
        raise DecodeError(
            f"schema envelope: unknown type {str(kind)[:40]!r}", hint="the record is no Connect JSON with schema"
        )
    name = schema.get("name")
    if name is not None and not isinstance(name, str):
        raise DecodeError(f"schema envelope: a type's name is {type(name).__name__}, no text")
    parameters = tuple((str(k), str(v)) for k, v in (schema.get("parameters") or {}).items())
    check_numbers(name, parameters)
    items, keys = schema.get("values") if kind == "map" else schema.get("items"), schema.get("keys")
    return SourceType(
        kind=kind,
        name=name,
        parameters=parameters,
        optional=bool(schema.get("optional", optional)),
        default=schema.get("default"),
        has_default="default" in schema,
        items=_parse(items, optional, depth + 1, types) if items is not None else None,
        keys=_parse(keys, optional, depth + 1, types) if keys is not None else None,
        fields=tuple(
            [Field(_field_name(f), _parse(f, optional, depth + 1, types)) for f in schema.get("fields") or ()]
        ),
    )


def check_numbers(name: str | None, parameters: Iterable[tuple[str, str]]) -> None:
    """Whether the parameters that a semantic type counts by are numbers that a source has. Raises DecodeError."""
    bounds = _COUNTING.get(name or "", {})
    for parameter, text in parameters if bounds else ():
        if parameter in bounds:
            try:
                fits = int(text) in bounds[parameter]
            except ValueError:
                fits = False
            if not fits:
                raise DecodeError(f"schema: {parameter} of {name} is {text[:40]!r}")


def _field_name(schema: Mapping[str, Any]) -> str:
    name = schema.get("field")
    if not isinstance(name, str):
        raise DecodeError("schema envelope: a field has no name")
    return name


def _to_json(source: SourceType) -> dict[str, Any]:
    """Connect's JSON of the type, in which an absent ``optional`` means optional."""
    out: dict[str, Any] = {"type": source.kind}
    if source.name:
        out["name"] = source.name
    if source.parameters:
        out["parameters"] = dict(source.parameters)
    if not source.optional:
        out["optional"] = False
    if source.keys is not None:
        out["keys"] = _to_json(source.keys)
    if source.items is not None:
        out["values" if source.kind == "map" else "items"] = _to_json(source.items)
    if source.fields:
        out["fields"] = [{"field": f.name, **_to_json(f.type)} for f in source.fields]
    return out
