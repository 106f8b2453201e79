"""Types as the source declares them: the Connect schema of a row, from a JSON schema envelope or a column comment.

``column.propagate.source.type`` adds the source column's own type, length and scale. A type's name means something in
the system that it comes from only. PostgreSQL's connector propagates the name of a domain, SQL Server's that of an
alias type and Db2's that of a distinct type: users choose these names, and one that another system gives a meaning to
(a domain ``year`` over ``integer``) has none here.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

from ch_sink.errors import DecodeError

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
    default_is: Literal["stated", "doubtful", "unstated"] = "stated"
    """Whether ``default`` is the source's. ``doubtful``: the connector also states it for expressions; ``unstated``: it
    may be the text or a remainder of one."""
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

    def names(self, other: "SourceType") -> bool:
        """Whether this is the other type with a name that it lacks: a comment may say more than a schema does."""
        return bool(self.name) and not other.name and self.kind == other.kind

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
    is not a schema, or has more types or levels than any table.
    """
    return _parse(schema, optional, 1, count())


def _parse(schema: Mapping[str, Any], optional: bool, depth: int, types: Iterator[int]) -> SourceType:
    """``types`` counts those of the whole schema."""
    if depth > _DEEPEST or next(types) >= _MOST_TYPES:
        raise DecodeError(
            f"schema envelope: more than {_MOST_TYPES:,} types, or types more than {_DEEPEST} deep in each other",
            hint="the record is not a change event of a table",
        )
    if not isinstance(schema, Mapping):
        raise DecodeError(f"schema envelope: expected an object, found {type(schema).__name__}")
    kind = schema.get("type")
    if isinstance(kind, str):
        kind = _JSON_NAMES.get(kind, kind)
    if kind not in _KINDS:
        raise DecodeError(
            f"schema envelope: unknown type {str(kind)[:40]!r}", hint="the record is not Connect JSON with a schema"
        )
    name = schema.get("name")
    if name is not None and not isinstance(name, str):
        raise DecodeError(f"schema envelope: a type's name is {type(name).__name__}, not text")
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


_MARK = "__debezium.source.column."
_DECIMALS = frozenset(("DECIMAL", "DEC", "NUMERIC", "FIXED", "NUMBER", "MONEY", "SMALLMONEY"))
_BINARY = frozenset(("BINARY", "VARBINARY", "BYTEA", "IMAGE", "ROWVERSION", "RAW"))
_INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 32, "INT": 32, "INTEGER": 32, "BIGINT": 64}
_UUIDS = frozenset(("UUID", "UNIQUEIDENTIFIER"))
_OWN = {
    "postgresql": frozenset(("NUMERIC", "BYTEA", "VARBIT")),
    "sqlserver": frozenset(
        "TINYINT SMALLINT INT BIGINT DECIMAL NUMERIC MONEY SMALLMONEY BINARY VARBINARY IMAGE ROWVERSION TIMESTAMP "
        "UNIQUEIDENTIFIER DATETIMEOFFSET DATETIME2".split()
    ),
    "db2": frozenset("SMALLINT INTEGER BIGINT DECIMAL NUMERIC BINARY VARBINARY BLOB".split()),
}
"""Of the systems in which users name types: the words that have a meaning here, and that the system itself gives."""
_OTHERS = frozenset(("YEAR", "SERIAL", "VARBIT", "ROWVERSION", "TIMESTAMP", "DATETIMEOFFSET", "DATETIME2"))


@dataclass(frozen=True, slots=True)
class PropagatedType:
    """The declaration of the source column, or what was sent of it. ``word`` is empty if none was."""

    word: str = ""
    """The type's first word in capitals: ``DECIMAL``, ``BIGINT``, ``UNIQUEIDENTIFIER``."""
    is_unsigned: bool = False
    length: int | None = None
    scale: int | None = None

    @property
    def unsigned(self) -> str | None:
        """The ClickHouse type of an unsigned integer; None for other types."""
        bits = _INTEGERS.get(self.word) if self.is_unsigned else 64 if self.word == "SERIAL" else None
        return f"UInt{bits}" if bits else None

    @property
    def is_signed(self) -> bool:
        return self.word in _INTEGERS and not self.is_unsigned

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a decimal that ClickHouse holds; None for anything else."""
        if self.word == "NUMBER" and self.scale is None:
            return None  # Oracle's NUMBER without either is propagated_type as one of 38 digits, and holds any scale
        precision, scale = self.length or 0, self.scale or 0
        return (precision, scale) if self.word in _DECIMALS and 0 <= scale <= precision <= 76 and precision else None

    @property
    def is_rowversion(self) -> bool:
        return self.word in ("ROWVERSION", "TIMESTAMP")

    @property
    def is_binary(self) -> bool:
        return self.word in _BINARY or self.word.endswith("BLOB")

    @property
    def is_uuid(self) -> bool:
        return self.word in _UUIDS

    def is_of(self, system: str) -> bool:
        """Whether the word is a type of this system, or has no meaning here in any system.

        ``system``: a connector's name; empty if it is not known. Then a plain integer is not a YEAR: the connector of
        MySQL, which has that type, says so by the semantic type as well.
        """
        if system in _OWN:
            return not self._has_meaning or (self.word in _OWN[system] and not self.is_unsigned)
        return bool(system) or self.word != "YEAR"

    @property
    def _has_meaning(self) -> bool:
        known = self.word in _OTHERS or self.word in _DECIMALS or self.word in _INTEGERS
        return known or self.is_binary or self.is_uuid


def of_system(fields: Mapping[str, SourceType], connector: str) -> dict[str, SourceType]:
    """The types of a row's fields without the propagated names that are none of the source system's.

    Of SQL Server also without defaults of columns that can be null: rows from before such a column have NULL. Some
    connectors state an empty value, or the text of the expression, where the default is one (`SourceType.default_is`).

    ``connector`` is that of the events: ``postgresql``, ``flattened:postgresql``; empty or ``flattened`` if it is not
    known.
    """
    form, _, inner = connector.partition(":")
    system = inner if form == "flattened" else form
    types = {name: _of_system(source, system) for name, source in fields.items()}
    for name, source in types.items():
        if system == "sqlserver" and source.optional:
            types[name] = replace(source, default=None, has_default=False)
        elif source.default is not None:
            types[name] = replace(source, default_is=_default_is(source, system))
    return types


MOMENTS = (
    "io.debezium.time.Timestamp",
    "io.debezium.time.MicroTimestamp",
    "io.debezium.time.NanoTimestamp",
    "io.debezium.time.ZonedTimestamp",
    "io.debezium.time.IsoTimestamp",
    "org.apache.kafka.connect.data.Timestamp",
)
_DAYS = ("io.debezium.time.Date", "io.debezium.time.IsoDate", "org.apache.kafka.connect.data.Date")
_EPOCH = re.compile(r"1970-01-01([T ]00:00:00(\.0+)?)?(Z|\+00:00)?", re.ASCII)
_NO_UUID = "00000000-0000-0000-0000-000000000000"
_FUNCTIONS = re.compile(r"(CURRENT|SESSION|SYSTEM)_USER|CURRENT_(ROLE|CATALOG|SCHEMA)", re.ASCII)
_SERIALS = ("SMALLSERIAL", "SERIAL", "BIGSERIAL", "SERIAL2", "SERIAL4", "SERIAL8")
_LOSSY: Mapping[str, tuple[str, ...]] = {"sqlserver": ("string", "boolean"), "oracle": ("string",)}
"""Kinds whose defaults may be the text or a remainder of an expression."""
_NOTHING = (0, "AA==", "{}", "00:00:00", "00:00:00Z", "P0Y0M0DT0H0M0S")
"""What PostgreSQL's connector states for functions, and for these constants; as texts also none, 0 and 0.00."""


def _default_is(source: SourceType, system: str) -> Literal["stated", "doubtful", "unstated"]:
    """See `SourceType.default_is`: connectors state 1970 for CURRENT_TIMESTAMP, zeros for gen_random_uuid()."""
    value = source.default
    if source.name in (*MOMENTS, *_DAYS):
        return "unstated" if is_epoch(value) else "stated"
    is_text = source.kind == "string" and source.name is None
    if value == _NO_UUID or (is_text and _FUNCTIONS.fullmatch(str(value))) or propagated_type(source).word in _SERIALS:
        return "unstated"
    if source.kind in _LOSSY.get(system, ()) and not (source.name or "").startswith("io.debezium.time."):
        return "unstated"
    nothing = value in _NOTHING or (isinstance(value, str) and not value.strip("0."))
    return "doubtful" if system == "postgresql" and nothing else "stated"


def is_epoch(default: object) -> bool:
    """Whether a default of a date or date-time is 1970-01-01."""
    return default == 0 or (isinstance(default, str) and _EPOCH.fullmatch(default) is not None)


def _of_system(source: SourceType, system: str) -> SourceType:
    items = _of_system(source.items, system) if source.items is not None else None
    fields = tuple(Field(f.name, _of_system(f.type, system), f.unmasked) for f in source.fields)
    kept = source.parameters
    if not propagated_type(source).is_of(system):
        kept = tuple((name, value) for name, value in kept if name != _MARK + "type")
    return replace(source, parameters=kept, items=items, fields=fields)


def propagated_type(source: SourceType) -> PropagatedType:
    """The propagated declaration of a column."""
    declared = (source.parameter(_MARK + "type") or "").strip().upper()
    if not declared:
        return PropagatedType()
    return PropagatedType(
        declared.split()[0].split("(")[0],
        "UNSIGNED" in declared,
        _number(source.parameter(_MARK + "length")),
        _number(source.parameter(_MARK + "scale")),
    )


def _number(text: str | None) -> int | None:
    digits = "" if text is None else text.removeprefix("-")
    return int(text or "") if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
