"""Decoding of payloads of one shape: event Structs, fields as texts, converters of columns.

The fields of a row stay texts until a column takes them: its values from many rows are decoded as one list.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Literal, Protocol

import msgspec

from ch_sink.decode.parts import UNREADABLE, Fault, Part, fails
from ch_sink.decode.unknown_columns import declared_unknown, never_null
from ch_sink.model.change import UnknownColumn
from ch_sink.sources import NoBlock, Source, source_for
from ch_sink.sources.base import TABLE
from ch_sink.table.model import TargetTable
from ch_sink.types import Converter, converter
from ch_sink.types.column import ValuePolicy
from ch_sink.types.connect import SourceType, of_system
from ch_sink.types.converter import nullable

KEPT = 256
"""Layouts that are remembered."""
Image = dict[str, msgspec.Raw]
"""A row image or a key: each field's text."""


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
    """One column of the target, which has its field's name, and its converter."""

    name: str
    converter: Converter
    never_null: UnknownColumn | None = None
    """The report for a null in a schemaless column whose comment states NOT NULL."""


@dataclass(frozen=True, slots=True)
class RowReading:
    """The reading of a row image's fields, whether before or after image or flattened row."""

    columns: tuple[ColumnReader, ...] = ()
    """Columns that a row image may have."""
    missing: tuple[str, ...] = ()
    """Source columns of the target that the schema does not declare."""
    declared: frozenset[str] | None = None
    """The fields that the schema declares: an after image has no others, and those that are columns; None without."""
    unknown: tuple[UnknownColumn, ...] = ()
    """Fields of the schema that the target lacks or has with an older type; without offset."""
    known: frozenset[str] = frozenset()
    """Fields of schemaless rows of which nothing is to report."""
    reserved: frozenset[str] = frozenset()
    """Columns that the sink fills itself; a row may have them, too."""


def _never(name: str) -> bool:
    del name
    return False


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The decoding of payloads of one shape to columns; compared by identity."""

    connector: str
    source: Source
    """`Other` without a name while the connector is unknown."""
    decode: Callable[[bytes], Any]
    """Payload to envelope Struct (a flattened row: to its fields). Raises msgspec's errors."""
    row: RowReading
    before: bool
    """The before image is decoded like the after image."""
    block: type[msgspec.Struct] | None = None
    """The ``source`` block's Struct."""
    images: Images | None = None
    """Fills the columns if the row images are documents; ``row`` is empty then."""
    added: Callable[[str], bool] = _never
    """Whether flattening added a field of this name."""

    def decoded(self, payloads: Sequence[bytes]) -> list[Any]:
        """Each payload as `decode` returns it. Raises Fault, whose suspects are places in ``payloads``."""
        try:
            return list(map(self.decode, payloads))
        except UNREADABLE as error:
            text = "the JSON is nested too deeply" if isinstance(error, RecursionError) else str(error)
            if not isinstance(error, msgspec.ValidationError | RecursionError):
                text = f"not the JSON of a change event: {text}"
            raise Fault(text, suspects=failing(self.decode, payloads)) from error

    def reports(self, name: str) -> bool:
        """Whether a field of a schemaless row is reported: it may become a column, or the sink fills that itself."""
        return name not in self.row.known and not self.added(name)


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
    table: TargetTable, policy: ValuePolicy, connector: str, *, schema: SourceType | None, before: bool
) -> Layout:
    """The layout of a schema, or of schemaless rows. ``before``: whether the before image is decoded.

    Raises TableError if a column cannot hold its source type, DecodeError for an unknown connector.
    """
    source = source_for(connector)
    block = source_block(connector, source)
    envelope = msgspec.defstruct(
        "Envelope",
        [
            ("op", str, ""),
            ("after", Image | None, None),
            ("before", (Image if before else NoBlock) | None, None),
            ("source", block | None, None),
        ],
        gc=False,
    )
    return Layout(
        connector=connector,
        source=source,
        decode=msgspec.json.Decoder(envelope).decode,
        row=read_row(table, policy, source, row_fields(schema, connector)),
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
        *((part, str | None, None) for part in TABLE),
    ]
    return msgspec.defstruct("SourceBlock", fixed, bases=(source.wire,), gc=False, kw_only=True)


def read_row(
    table: TargetTable, policy: ValuePolicy, source: Source, declared: dict[str, SourceType] | None
) -> RowReading:
    """The reading of a shape's rows: with the ``declared`` fields, or schemaless.

    Raises TableError if a column cannot hold its source type.
    """
    readers: list[ColumnReader] = []
    missing: list[str] = []
    for column in table.source_columns:
        if declared is not None and column.name not in declared:
            missing.append(column.name)
            continue
        made = converter(
            declared[column.name] if declared is not None else None,
            column,
            encoding="json",
            policy=policy,
            omits=source.omits_values,
            years=table.years,
        )
        readers.append(ColumnReader(column.name, made, never_null(table, column) if declared is None else None))
    return RowReading(
        columns=tuple(readers),
        missing=tuple(missing),
        declared=None if declared is None else frozenset(declared),
        unknown=() if declared is None else declared_unknown(table, declared),
        known=frozenset(c.name for c in table.columns) - table.system_columns,
        reserved=table.system_columns,
    )


@lru_cache(1024)
def lists(wire: Any) -> msgspec.json.Decoder[list[Any]]:
    """A decoder of lists of a literal. Numbers without a type keep their digits."""
    return msgspec.json.Decoder(list[wire], float_hook=Decimal)


class _Nothing(Image):
    """The image of a row that is not there: each field is null."""

    def __missing__(self, name: str) -> msgspec.Raw:
        return _NULL


_NULL = msgspec.Raw(b"null")
NOTHING = _Nothing()


def texts_of(images: Iterable[Image], name: str) -> list[Any]:
    """A field's texts, None where an image lacks it."""
    try:
        return list(map(itemgetter(name), images))
    except KeyError:
        return [image.get(name) for image in images]


def literals(name: str, wire: Any, texts: Sequence[msgspec.Raw | None]) -> list[Any]:
    """The values of a column from their texts, None for no text. Raises Fault, whose suspects are their places."""
    decode = lists(nullable(wire)).decode
    given: Sequence[Any] = texts if None not in texts else [b"null" if text is None else text for text in texts]
    try:
        return decode(b"[" + b",".join(given) + b"]")
    except UNREADABLE as error:
        suspects = failing(lambda text: decode(b"[" + bytes(text) + b"]"), given)
        try:
            decode(b"[" + bytes(given[suspects[0]]) + b"]")
        except UNREADABLE as one:
            reason = str(one).replace(" - at `$[0]`", "").replace("`$[0]", "`$")
            raise Fault(f"column {name!r}: {reason}", column=name, suspects=suspects) from error
        raise


def failing(function: Callable[[Any], Any], values: Sequence[Any]) -> list[int]:
    """The places of the values that a function refuses."""
    return [i for i, value in enumerate(values) if fails(function, value)]


def others(images: Iterable[Image], names: frozenset[str]) -> bool:
    """Whether any of the images has a field that is not among these."""
    return not names.issuperset(chain.from_iterable(images))
