"""How the payloads of one shape are decoded: typed Structs made for the table, and a converter for each column.

msgspec compares field names without unescaping them and refuses to make a Struct with a name that has a quote, a
backslash or a control character. A payload whose row images may have one is rewritten before it is decoded: each of
these names becomes its alias. Tables without such names skip this step.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from typing import Any, Literal, Protocol

import msgspec

from ch_sink.decode.native.library import Keep, Skip
from ch_sink.decode.parts import UNREADABLE, Part
from ch_sink.decode.unknown_columns import declared_unknown, never_null
from ch_sink.model.change import UnknownColumn
from ch_sink.sources import NoBlock, Source, source_for
from ch_sink.table.model import TargetTable
from ch_sink.types import Converter, converter
from ch_sink.types.column import ValuePolicy
from ch_sink.types.connect import SourceType, of_system
from ch_sink.types.converter import nullable

KEPT = 256
"""Layouts that are remembered."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field beside the columns."""

    type: Any
    absent: Any
    """Its value where the payloads lack it."""
    path: tuple[str, ...]
    """The names that lead to it."""


class Images(Protocol):
    """Row images that are not Structs of columns: documents."""

    def fill(self, rows: list[Any], part: Part) -> list[tuple[int, UnknownColumn]]:
        """Fill in the part's columns from its envelopes.

        Returns unknown columns with the first event (by place in the part) that has them. Raises Fault.
        """
        ...


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """One column of the target: its attribute in the row's Struct, and its converter."""

    name: str
    get: Callable[[Any], Any]
    converter: Converter
    never_null: UnknownColumn | None = None
    """The report for a null in a schemaless column whose comment states NOT NULL."""

    def values(self, rows: list[Any]) -> list[Any]:
        """The column's literals in these rows."""
        return list(map(self.get, rows))


Member = tuple[str, Any]
"""Attribute of a row's Struct, and its type."""


@dataclass(frozen=True, slots=True)
class RowReading:
    """How the fields of a row image are read, whether before or after image or flattened row."""

    readers: tuple[ColumnReader, ...] = ()
    """All columns that a row image may have, those of before images too …"""
    columns: tuple[ColumnReader, ...] = ()
    """… and those that the after images of this shape have."""
    members: tuple[Member, ...] = ()
    present: tuple[Member, ...] = ()
    skipped: tuple[Member, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    """Attribute → field."""
    missing: tuple[str, ...] = ()
    """Source columns of the target that no row of the shape has."""
    tolerant: bool = True
    """Columns may be UNSET: the field was absent."""
    unknown: tuple[UnknownColumn, ...] = ()
    """Fields of the schema that the target lacks or has with an older type; without offset."""
    extras: tuple[tuple[str, Callable[[Any], Any]], ...] = ()
    """The same for schemaless rows, with their attributes (UNSET where the row has no such field)."""
    reserved: tuple[tuple[str, Callable[[Any], Any]], ...] = ()
    """Columns that the sink fills itself, which a schemaless row may have too, with their attributes."""

    def without_column(self) -> dict[str, Keep | Skip]:
        """The fields that become no column; kept, if their values are looked at all the same."""
        reported = {name for name, _ in (*self.extras, *self.reserved)}
        ignored = (self.renamed[attribute] for attribute, _ in self.skipped)
        return {name: Keep() if name in reported else Skip() for name in ignored}

    def struct(
        self, name: str, members: Sequence[Member], *, required: bool, forbid: bool, more: Sequence[Any] = ()
    ) -> type[msgspec.Struct]:
        """A Struct of the row image. Optional members default to UNSET (after) or None (before).

        ``more``: further members with their types, defaults and field names.
        """
        absent: Any = msgspec.UNSET if forbid else None
        columns: list[Any] = [
            (attribute, wire)
            if required
            else (attribute, wire if wire is Any or wire is msgspec.Raw else wire | msgspec.UnsetType, absent)
            for attribute, wire in members
        ]
        skipped = [(attribute, wire, msgspec.UNSET) for attribute, wire in self.skipped]
        renamed = {attribute: self.renamed[attribute] for attribute, _ in [*members, *self.skipped]}
        renamed |= {attribute: field for attribute, _, _, field in more}
        return msgspec.defstruct(
            name,
            [*columns, *skipped, *[(attribute, wire, default) for attribute, wire, default, _ in more]],
            rename={attribute: alias(field) for attribute, field in renamed.items()},
            forbid_unknown_fields=forbid,
            gc=False,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How payloads of one shape become columns; compared by identity."""

    connector: str
    source: Source
    """`Other` without a name while the connector is unknown."""
    decode: Callable[[bytes], Any]
    """Payload to envelope Struct. Raises msgspec's errors."""
    row: RowReading
    null_row: Any
    """A row whose columns are all null."""
    null_before: Any
    before: bool
    """The before image is decoded like the after image."""
    block: type[msgspec.Struct] | None = None
    """The ``source`` block's Struct; None if the compiled scanner cannot read such payloads."""
    images: Images | None = None
    """Fills the columns if the row images are documents; ``row`` is empty then."""


def row_fields(schema: SourceType | None, connector: str) -> dict[str, SourceType] | None:
    """Types of the row image's fields by name; None if the schema is not that of change events.

    ``connector``: that of the events, empty if it is not known; the names that users give to types mean nothing.
    """
    if schema is None:
        return None
    for image in ("after", "before"):
        for member in schema.fields:
            if member.name == image and member.type.kind == "struct":
                return of_system({f.name: f.type for f in member.type.fields}, connector)
    return None


def build_layout(
    table: TargetTable,
    policy: ValuePolicy,
    connector: str,
    *,
    schema: SourceType | None,
    before: bool,
    expected: frozenset[str] | None = None,
    extras: Sequence[str] = (),
) -> Layout:
    """The layout of a schema, or of schemaless rows.

    ``expected``: the fields that every schemaless row has, neither more nor less; None for a tolerant layout
    in which any may be absent and the fields ``extras``, unknown to the table, may occur. ``before``: whether
    the before image is decoded.

    Raises TableError if a column cannot hold its source type, DecodeError for an unknown connector.
    """
    source = source_for(connector)
    row = read_row(table, policy, source, row_fields(schema, connector), expected, extras)
    after = row.struct("Row", row.present, required=not row.tolerant, forbid=True)
    image = row.struct("BeforeRow", row.members, required=False, forbid=False)
    block = source_block(connector, source)
    envelope = _envelope(after, image if before else NoBlock, block)
    # Numbers without a type keep their digits.
    decode = row_decoder(msgspec.json.Decoder(envelope, float_hook=Decimal).decode, (after, image))
    return Layout(
        connector=connector,
        source=source,
        decode=decode,
        row=row,
        null_row=after(**dict.fromkeys(m[0] for m in row.present)),
        null_before=image(**dict.fromkeys(m[0] for m in row.members)),
        before=before,
        block=block,
    )


def source_block(connector: str, source: Source) -> type[msgspec.Struct]:
    """The ``source`` block's Struct for a connector."""
    fixed: list[Any] = [
        # No block is accepted while the connector is unknown: the connector must be found first.
        ("connector", Literal[connector or "\0"]),
        ("name", str, ""),
        ("ts_ms", int | None, None),
    ]
    if source.per_database:
        fixed.append(("db", str | None, None))
    return msgspec.defstruct("SourceBlock", fixed, bases=(source.wire,), gc=False, kw_only=True)


def _envelope(row: Any, before: Any, block: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "Envelope",
        [("op", str, ""), ("after", row | None, None), ("before", before | None, None), ("source", block | None, None)],
        gc=False,
    )


def read_row(
    table: TargetTable,
    policy: ValuePolicy,
    source: Source,
    declared: dict[str, SourceType] | None,
    expected: frozenset[str] | None,
    extras: Sequence[str],
) -> RowReading:
    """How the rows of a shape are read: with the ``declared`` fields, or schemaless.

    ``expected`` and ``extras``: see ``build_layout``.

    Raises TableError if a column cannot hold its source type.
    """
    present = declared.keys() if declared is not None else expected
    readers: list[ColumnReader] = []
    members: list[Member] = []
    renamed: dict[str, str] = {}
    missing: list[str] = []
    for column in table.source_columns:
        # The before image of a schemaless row may have any column, whichever the last after images had.
        if present is not None and column.name not in present:
            missing.append(column.name)
            if declared is not None:
                continue
        made = converter(
            declared[column.name] if declared is not None else None,
            column,
            encoding="json",
            policy=policy,
            omits=source.omits_values,
            years=table.years,
        )
        attribute = f"f{len(readers)}"
        renamed[attribute] = column.name
        members.append((attribute, nullable(made.wire)))
        strict = never_null(table, column) if declared is None else None
        readers.append(ColumnReader(column.name, attrgetter(attribute), made, strict))
    skipped = {f"x{i}": name for i, name in enumerate(_without_column(table, declared, extras))}
    renamed |= skipped
    attributes = {} if declared is not None else {field: attribute for attribute, field in renamed.items()}
    return RowReading(
        readers=tuple(readers),
        columns=tuple(r for r in readers if r.name not in missing),
        members=tuple(members),
        present=tuple(m for m in members if renamed[m[0]] not in missing),
        skipped=tuple((attribute, msgspec.Raw) for attribute in skipped),
        renamed=renamed,
        missing=tuple(missing),
        tolerant=declared is None and expected is None,
        unknown=() if declared is None else declared_unknown(table, declared),
        extras=tuple((n, attrgetter(attributes[n])) for n in extras if n not in table.system_columns and attributes),
        reserved=tuple((n, attrgetter(attributes[n])) for n in table.system_columns if n in attributes),
    )


def _without_column(table: TargetTable, declared: dict[str, SourceType] | None, extras: Sequence[str]) -> Iterator[str]:
    """Fields that become no column: those that the table lacks, and those that the source does not fill."""
    own, filled = {c.name for c in table.columns}, {c.name for c in table.source_columns}
    yield from extras if declared is None else (name for name in declared if name not in own)
    yield from (c.name for c in table.columns if c.name not in filled)


_UNFIT = re.compile(r'["\\\x00-\x1f]')
_MARK = "\x7f"
_PRIVATE = 0xF000
"""First of the private-use characters that replace the unsupported ones, after the mark."""
_TO_ALIAS = {code: _PRIVATE + code for code in (*range(32), ord('"'), ord("\\"))}
_FROM_ALIAS = {private: code for code, private in _TO_ALIAS.items()}
_ALIASES = re.compile("|".join(map(chr, _FROM_ALIAS)))
_IMAGES = ("before", "after")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def alias(name: str) -> str:
    """The name by which a field is decoded: its own, unless msgspec cannot look that up."""
    return _MARK + name.translate(_TO_ALIAS) if _UNFIT.search(name) else name


def with_names(text: str) -> str:
    """A decoder's message with aliases replaced by the fields' own names."""
    return text.replace(_MARK, "").translate(_FROM_ALIAS) if _MARK in text and _ALIASES.search(text) else text


def row_decoder(decode: Callable[[bytes], Any], images: Iterable[type[msgspec.Struct]]) -> Callable[[bytes], Any]:
    """A decoder of envelopes whose row images are these Structs, some of whose fields may have aliases."""
    if not any(_has_alias(image) for image in images):
        return decode
    return lambda payload: decode(_with_aliases(payload))


def object_decoder(decode: Callable[[bytes], Any], struct: type[msgspec.Struct]) -> Callable[[bytes], Any]:
    """A decoder of JSON objects of this Struct, some of whose fields may have aliases."""
    if not _has_alias(struct):
        return decode
    return lambda payload: decode(_object(payload))


def _has_alias(struct: type[msgspec.Struct]) -> bool:
    return any(name.startswith(_MARK) and _ALIASES.search(name) for name in struct.__struct_encode_fields__)


def _with_aliases(payload: bytes) -> bytes:
    def images(members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        return {name: msgspec.Raw(_object(bytes(raw))) if name in _IMAGES else raw for name, raw in members.items()}

    return _rewritten(payload, images)


def _object(payload: bytes) -> bytes:
    return _rewritten(payload, lambda members: {alias(name): raw for name, raw in members.items()})


def _rewritten(payload: bytes, change: Callable[[dict[str, msgspec.Raw]], dict[str, msgspec.Raw]]) -> bytes:
    if b"\\" not in payload:
        return payload  # JSON writes each of these characters with a backslash
    try:
        members = _fields.decode(payload)
    except UNREADABLE:
        return payload  # the typed decoder says what is wrong
    return msgspec.json.encode(change(members))
