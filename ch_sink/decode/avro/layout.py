"""How the datums of one schema become columns: which fields are read, and the converter of each column."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from ch_sink.decode.avro.definition import Want
from ch_sink.decode.avro.scanned import Program, program
from ch_sink.decode.avro.schema import Node
from ch_sink.decode.json.layout import row_fields
from ch_sink.decode.mongodb import is_document_source
from ch_sink.decode.unknown_columns import declared_unknown
from ch_sink.errors import DecodeError
from ch_sink.model.change import UnknownColumn
from ch_sink.sources import Source, source_for
from ch_sink.table.model import TargetTable
from ch_sink.types import Converter, converter
from ch_sink.types.connect import SourceType
from ch_sink.types.value_policy import ValuePolicy

__all__ = ["AvroColumn", "AvroLayout", "build_layout", "columns_of", "is_envelope"]


@dataclass(frozen=True, slots=True)
class AvroColumn:
    """One column of the target: the field that holds it, and its converter."""

    name: str
    field: str
    converter: Converter


@dataclass(frozen=True, slots=True)
class AvroLayout:
    """How the datums of one schema become columns."""

    connector: str
    source: Source | None
    block: tuple[tuple[str, Any], ...]
    """Fields of the ``source`` block that the position needs, each with the value used if the schema lacks it."""
    columns: tuple[AvroColumn, ...]
    before: bool
    """The before image is read like the after image."""
    missing: tuple[str, ...]
    """Source columns of the target that the schema lacks."""
    unknown: tuple[UnknownColumn, ...]
    """Fields of the schema that the target lacks or has with an older type."""
    want: Want
    """The fields that are built; all others are skipped."""
    program: Program | None
    """How the compiled reader builds them, if it knows all types of the schema."""


def is_envelope(node: Node) -> bool:
    """Whether a schema is that of change events."""
    return node.present.member("op") is not None


def build_layout(
    table: TargetTable, policy: ValuePolicy, connector: str, *, node: Node, schema: SourceType, before: bool
) -> AvroLayout:
    """The layout of an envelope's schema. ``connector`` is empty while it is unknown.

    Raises TableError if a column cannot hold its source type, DecodeError for an unknown connector or a source
    block whose fields have other types than the connector's.
    """
    source = source_for(connector) if connector else None
    if is_document_source(source):
        raise DecodeError(f"images of connector {connector!r} are documents, but the schema declares rows")
    fields = row_fields(schema, connector) or {}
    own = [c.name for c in table.columns]
    by_column = {column: field for field, column in columns_of(fields, own).items()}
    omits = source is None or source.omits_values
    columns = tuple(
        AvroColumn(
            column.name,
            by_column[column.name],
            converter(
                fields[by_column[column.name]], column, encoding="avro", policy=policy, omits=omits, years=table.years
            ),
        )
        for column in table.source_columns
        if column.name in by_column
    )
    block = _block(source)
    _check_block(schema, source)
    names = [column.field for column in columns]
    database = ["db"] if source is not None and source.per_database else []
    want: Want = {
        "op": None,
        "after": _all(names),
        "before": _all(names if before else ()),
        "source": _all(["connector", "name", "ts_ms", "snapshot", *database, *(name for name, _ in block)]),
    }
    return AvroLayout(
        connector=connector,
        source=source,
        block=block,
        columns=columns,
        before=before,
        missing=tuple(c.name for c in table.source_columns if c.name not in by_column),
        unknown=declared_unknown(table, {column: fields[field] for column, field in by_column.items()}),
        want=want,
        program=program(node, want),
    )


def _all(names: Iterable[str]) -> Want:
    return dict.fromkeys(names)


def _block(source: Source | None) -> tuple[tuple[str, Any], ...]:
    if source is None:
        return ()
    return tuple(
        (field.encode_name, None if field.default is msgspec.NODEFAULT else field.default)
        for field in msgspec.structs.fields(source.wire)
    )


_COMMON: dict[str, Any] = {
    "connector": str | None,
    "name": str | None,
    "ts_ms": int | None,
    "snapshot": str | bool | None,
}
_SAMPLES: dict[str, Any] = {"boolean": True, "string": "", "bytes": b"", "float32": 0.5, "float64": 0.5, "struct": {}}


def _check_block(schema: SourceType, source: Source | None) -> None:
    """Raises DecodeError if a field of the source block that makes a position has another type than the connector's."""
    types = dict(_COMMON)
    if source is not None:
        types |= {field.encode_name: field.type for field in msgspec.structs.fields(source.wire)}
    block = next((field.type for field in schema.fields if field.name == "source"), None)
    for field in block.fields if block is not None else ():
        if field.name in types:
            try:
                msgspec.convert(_sample(field.type), types[field.name])
            except msgspec.ValidationError as error:
                raise DecodeError(f"source.{field.name} has the type {field.type.kind}: {error}") from error


def _sample(declared: SourceType) -> Any:
    """A value of this type."""
    if declared.kind == "array":
        return [_sample(declared.items)] if declared.items is not None else []
    return {} if declared.kind == "map" else _SAMPLES.get(declared.kind, 1)


_FIRST, _OTHER = re.compile(r"[A-Za-z_]"), re.compile(r"[A-Za-z0-9_]")


def columns_of(fields: Iterable[str], columns: Iterable[str]) -> dict[str, str]:
    """Field → column: of the same name, else the one column whose adjusted name the field has, else its own name."""
    names, there = list(fields), set(columns)
    out = {name: name for name in names}
    left = there.difference(names)
    if left:
        by_adjusted: dict[str, list[str]] = {}
        for column in left:
            for adjusted in {_underscores(column), _codes(column)} - {column}:
                by_adjusted.setdefault(adjusted, []).append(column)
        for name in names:
            found = by_adjusted.get(name, ())
            if name not in there and len(found) == 1:
                out[name] = found[0]
    return out


def _underscores(name: str) -> str:
    """Mode ``avro``: an underscore for every character that is not allowed."""
    if name and not _FIRST.match(name[0]) and _OTHER.match(name[0]):
        name = "_" + name
    return "".join(c if _OTHER.match(c) else "_" for c in name)


def _codes(name: str) -> str:
    """Mode ``avro_unicode``: ``_u002d`` for such a character, the underscore among them."""
    return "".join(
        c if c != "_" and (_OTHER if i else _FIRST).match(c) else "".join(f"_u{u:04x}" for u in _units(c))
        for i, c in enumerate(name)
    )


def _units(character: str) -> list[int]:
    raw = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]
