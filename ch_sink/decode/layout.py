"""How the payloads of one shape are decoded: typed Structs made for the table, and a converter for each column."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from typing import Any, Literal, Protocol

import msgspec

from ch_sink.change import UnknownColumn
from ch_sink.decode.part import Part
from ch_sink.decode.schema import SourceType
from ch_sink.decode.types import Converter, converter
from ch_sink.decode.types.base import nullable
from ch_sink.decode.unknown import declared_unknown, never_null
from ch_sink.policy import Policy
from ch_sink.source import Source, source_for
from ch_sink.table.model import TargetTable

__all__ = [
    "NUMBER_FOR_BYTES",
    "ColumnReader",
    "Images",
    "Layout",
    "build_layout",
    "row_fields",
    "source_block",
]

NUMBER_FOR_BYTES = re.compile(r"Expected `bytes[^`]*`, got `(?:int|float)`")
"""Msgspec's complaint about a decimal that JsonConverter wrote as a number (``decimal.format=NUMERIC``)."""


class NoBlock(msgspec.Struct, gc=False):
    """The ``source`` block before any connector is known."""


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """One column of the target: its attribute in the row's Struct, and its converter."""

    name: str
    get: Callable[[Any], Any]
    converter: Converter
    never_null: UnknownColumn | None = None
    """For a schemaless column that was noted NOT NULL: what to report when it is null after all."""


class Images(Protocol):
    """Row images that are no Structs of columns: documents."""

    def fill(self, rows: list[Any], part: Part) -> list[tuple[int, UnknownColumn]]:
        """Fill in the part's columns from its envelopes.

        Returns unknown columns with the first event (by place in the part) that has them. Raises Fault.
        """
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything needed to turn payloads of one shape into columns."""

    connector: str
    source: Source | None
    decode: Callable[[bytes], Any]
    """Payload to envelope Struct. Raises msgspec's errors."""
    columns: tuple[ColumnReader, ...]
    before_columns: tuple[ColumnReader, ...]
    null_row: Any
    """A row whose columns are all null."""
    null_before: Any
    before: bool
    """The before image is decoded like the after image."""
    tolerant: bool
    """Columns may be UNSET: the field was absent."""
    missing: tuple[str, ...]
    """Source columns of the target that the shape lacks altogether."""
    unknown: tuple[UnknownColumn, ...] = ()
    """Fields that the target lacks or has in an older form, as the schema declares them; without offset."""
    extras: tuple[tuple[str, Callable[[Any], Any]], ...] = field(default=())
    """The same for schemaless rows, with their attributes (UNSET where the row has no such field)."""
    images: Images | None = None
    """Fills the columns where the row images are documents; the fields about columns are empty then."""


def row_fields(schema: SourceType | None) -> dict[str, SourceType] | None:
    """Types of the row image's fields by name; None where the schema is not that of change events."""
    if schema is None:
        return None
    for image in ("after", "before"):
        for member in schema.fields:
            if member.name == image and member.type.kind == "struct":
                return {f.name: f.type for f in member.type.fields}
    return None


def build_layout(
    table: TargetTable,
    policy: Policy,
    connector: str,
    *,
    schema: SourceType | None,
    before: bool,
    expected: frozenset[str] | None = None,
    extras: Sequence[str] = (),
    numbers: bool = False,
) -> Layout:
    """The layout of a schema, or of schemaless rows.

    ``expected``: the fields that every schemaless row has, neither more nor less; None for a tolerant layout
    in which any may be absent and the fields ``extras``, unknown to the table, may occur. ``before``: whether
    the before image is decoded. ``numbers``: decimals are JSON numbers.

    Raises TableError where a column cannot take its source type, DecodeError for an unknown connector.
    """
    source = source_for(connector) if connector else None
    declared = row_fields(schema)
    tolerant = declared is None and expected is None
    present = declared.keys() if declared is not None else expected
    readers: list[ColumnReader] = []
    members: list[tuple[str, Any, Any]] = []
    renamed: dict[str, str] = {}
    missing: list[str] = []
    for column in table.source_columns:
        # The before image of a schemaless row may have any column, whatever the after images had last.
        if present is not None and column.name not in present:
            missing.append(column.name)
            if declared is not None:
                continue
        made = converter(
            declared[column.name] if declared is not None else None,
            column,
            encoding="json",
            policy=policy,
            omits=source is None or source.omits_values,
            numbers=numbers,
            years=table.years,
        )
        attribute = f"f{len(readers)}"
        renamed[attribute] = column.name
        members.append((attribute, nullable(made.wire), msgspec.UNSET))
        strict = never_null(table, column) if declared is None else None
        readers.append(ColumnReader(column.name, attrgetter(attribute), made, strict))
    own = {c.name for c in table.columns}
    ignored = [c.name for c in table.columns if c.name not in {s.name for s in table.source_columns}]
    unknown_names = [n for n in declared if n not in own] if declared is not None else list(extras)
    skipped: list[tuple[str, Any, Any]] = []
    for i, name in enumerate([*unknown_names, *ignored]):
        renamed[f"x{i}"] = name
        skipped.append((f"x{i}", msgspec.Raw, msgspec.UNSET))
    after = [r for r in readers if r.name not in missing]
    row_members = [m for m in members if renamed[m[0]] not in missing]
    row = _struct("Row", row_members, skipped, renamed, required=not tolerant, forbid=True)
    image = _struct("BeforeRow", members, skipped, renamed, required=False, forbid=False)
    block = source_block(connector, source)
    # Numbers without a type keep their digits.
    decoder = msgspec.json.Decoder(_envelope(row, image if before else NoBlock, block), float_hook=Decimal)
    return Layout(
        connector=connector,
        source=source,
        decode=decoder.decode,
        columns=tuple(after),
        before_columns=tuple(readers),
        null_row=row(**{member[0]: None for member in row_members}),
        null_before=image(**{member[0]: None for member in members}),
        before=before,
        tolerant=tolerant,
        missing=tuple(missing),
        unknown=() if declared is None else declared_unknown(table, declared),
        extras=() if declared is not None else tuple((n, attrgetter(f"x{i}")) for i, n in enumerate(extras)),
    )


def _struct(
    name: str,
    members: list[tuple[str, Any, Any]],
    skipped: list[tuple[str, Any, Any]],
    renamed: dict[str, str],
    *,
    required: bool,
    forbid: bool,
) -> type[msgspec.Struct]:
    """A Struct of the row image. Optional members default to UNSET (after) or None (before)."""
    absent: Any = msgspec.UNSET if forbid else None
    columns: list[Any] = [
        (attribute, wire)
        if required
        else (attribute, wire if wire is Any else wire | msgspec.UnsetType if _unites(wire) else wire, absent)
        for attribute, wire, _ in members
    ]
    return msgspec.defstruct(
        name,
        [*columns, *skipped],
        rename={attribute: renamed[attribute] for attribute, _, _ in [*members, *skipped]},
        forbid_unknown_fields=forbid,
        gc=False,
    )


def _unites(wire: Any) -> bool:
    return wire is not msgspec.Raw


def source_block(connector: str, source: Source | None) -> type[msgspec.Struct]:
    """The ``source`` block's Struct for a connector."""
    fixed: list[Any] = [
        # Before a connector is known no block is accepted: its own has to be found first.
        ("connector", Literal[connector or "\0"]),
        ("name", str, ""),
        ("ts_ms", int | None, None),
        ("snapshot", str | bool | None, None),
    ]
    bases = (source.wire,) if source is not None else (NoBlock,)
    return msgspec.defstruct("SourceBlock", fixed, bases=bases, gc=False, kw_only=True)


def _envelope(row: Any, before: Any, block: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "Envelope",
        [("op", str, ""), ("after", row | None, None), ("before", before | None, None), ("source", block | None, None)],
        gc=False,
    )
