"""How the payloads of one shape are decoded: typed Structs made for the table, and a converter for each column."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal, Protocol

import msgspec

from ch_sink.decode.assemble import Part
from ch_sink.decode.json.aliases import row_decoder
from ch_sink.decode.json.rows import ColumnReader, read_row
from ch_sink.decode.json.usual import Usual
from ch_sink.model.change import UnknownColumn
from ch_sink.sources import Source, source_for
from ch_sink.table.model import TargetTable
from ch_sink.types.connect import SourceType
from ch_sink.types.propagated_type import of_system
from ch_sink.types.value_policy import ValuePolicy

__all__ = [
    "ColumnReader",
    "Field",
    "Images",
    "Layout",
    "build_layout",
    "row_fields",
    "source_block",
]


SNAPSHOT_MARKS = (
    Literal["true", "false", "first", "last", "first_in_data_collection", "last_in_data_collection", "incremental"]
    | bool
    | None
)
"""What ``source.snapshot`` may be, as far as Debezium's documentation goes."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field beside the columns."""

    type: Any
    absent: Any
    """Its value where the payloads lack it."""
    path: tuple[str, ...]
    """The names that lead to it."""


class NoBlock(msgspec.Struct, gc=False):
    """The ``source`` block while the connector is unknown."""


class Images(Protocol):
    """Row images that are not Structs of columns: documents."""

    def fill(self, rows: list[Any], part: Part) -> list[tuple[int, UnknownColumn]]:
        """Fill in the part's columns from its envelopes.

        Returns unknown columns with the first event (by place in the part) that has them. Raises Fault.
        """
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """How payloads of one shape become columns."""

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
    """Source columns of the target that no row of the shape has."""
    unknown: tuple[UnknownColumn, ...] = ()
    """Fields of the schema that the target lacks or has with an older type; without offset."""
    extras: tuple[tuple[str, Callable[[Any], Any]], ...] = field(default=())
    """The same for schemaless rows, with their attributes (UNSET where the row has no such field)."""
    reserved: tuple[tuple[str, Callable[[Any], Any]], ...] = field(default=())
    """Columns that the sink fills itself, with the attributes of schemaless rows."""
    usual: Usual | None = None
    """Decodes most payloads faster."""
    block: type[msgspec.Struct] | None = None
    """The ``source`` block's Struct; None if the compiled scanner cannot read such payloads."""
    ignored: frozenset[str] = frozenset()
    """Fields of a row that become no column."""
    images: Images | None = None
    """Fills the columns if the row images are documents; the fields about columns are empty then."""

    @property
    def reported(self) -> frozenset[str]:
        """Fields whose values are looked at though they become no column."""
        return frozenset(name for name, _ in (*self.extras, *self.reserved))


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
    numbers: bool = False,
) -> Layout:
    """The layout of a schema, or of schemaless rows.

    ``expected``: the fields that every schemaless row has, neither more nor less; None for a tolerant layout
    in which any may be absent and the fields ``extras``, unknown to the table, may occur. ``before``: whether
    the before image is decoded. ``numbers``: decimals are JSON numbers.

    Raises TableError if a column cannot hold its source type, DecodeError for an unknown connector.
    """
    source = source_for(connector) if connector else None
    row = read_row(table, policy, source, row_fields(schema, connector), expected, extras, numbers=numbers)
    after = row.struct("Row", row.present, required=not row.tolerant, forbid=True)
    image = row.struct("BeforeRow", row.members, required=False, forbid=False)

    def decoder(types: Mapping[str, Any]) -> Callable[[bytes], Any]:
        envelope = _envelope(after, image if before else NoBlock, source_block(connector, source, types))
        # Numbers without a type keep their digits.
        return row_decoder(msgspec.json.Decoder(envelope, float_hook=Decimal).decode, (after, image))

    return Layout(
        connector=connector,
        source=source,
        decode=decoder({}),
        usual=Usual(decoder, {"snapshot": SNAPSHOT_MARKS}, _repeating(source)),
        columns=row.columns,
        before_columns=row.readers,
        null_row=after(**dict.fromkeys(m[0] for m in row.present)),
        null_before=image(**dict.fromkeys(m[0] for m in row.members)),
        before=before,
        tolerant=row.tolerant,
        missing=row.missing,
        unknown=row.unknown,
        extras=row.extras,
        reserved=row.reserved,
        block=source_block(connector, source),
        ignored=frozenset(row.renamed[attribute] for attribute, _ in row.skipped),
    )


def source_block(
    connector: str, source: Source | None, types: Mapping[str, Any] = MappingProxyType({})
) -> type[msgspec.Struct]:
    """The ``source`` block's Struct for a connector. ``types``: those of optional fields that are narrower."""
    fixed: list[Any] = [
        # No block is accepted while the connector is unknown: the connector must be found first.
        ("connector", Literal[connector or "\0"]),
        ("name", str, ""),
        ("ts_ms", int | None, None),
        ("snapshot", str | bool | None, None),
    ]
    if source is not None and source.per_database:
        fixed.append(("db", str | None, None))
    own = [name for name, *_ in fixed]
    fixed = [(name, types.get(name, wire), *rest) for name, wire, *rest in fixed]
    fixed += [(name, wire, None) for name, wire in types.items() if name not in own]
    bases = (source.wire,) if source is not None else (NoBlock,)
    return msgspec.defstruct("SourceBlock", fixed, bases=bases, gc=False, kw_only=True)


def _repeating(source: Source | None) -> dict[str, bool]:
    """Texts of the block that are the same in most events, and whether they may be null."""
    if source is None:
        return {"name": False}
    found = {"name": False}
    if "file" in source.wire.__struct_fields__:
        found["file"] = True
    if source.per_database:
        found["db"] = True
    return found


def _envelope(row: Any, before: Any, block: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "Envelope",
        [("op", str, ""), ("after", row | None, None), ("before", before | None, None), ("source", block | None, None)],
        gc=False,
    )
