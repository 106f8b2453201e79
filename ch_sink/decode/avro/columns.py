"""Decoding of the datums of one schema to columns; a value that cannot be converted is reported with its record."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.avro.definition import Unreadable, read_group
from ch_sink.decode.avro.schema import Node
from ch_sink.decode.avro.vectors import NotText, Program, Struct, Vector, Want, program, whole
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import convert_column
from ch_sink.decode.json.layout import row_fields
from ch_sink.decode.mongodb.events import is_document_source
from ch_sink.decode.parts import Fault
from ch_sink.decode.unknown_columns import declared_unknown
from ch_sink.errors import DecodeError
from ch_sink.model.change import UnknownColumn
from ch_sink.sources import Source, source_for
from ch_sink.sources.base import TABLE
from ch_sink.table.model import TargetTable
from ch_sink.types import Converted, Converter, converter
from ch_sink.types.column import ValuePolicy
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import takes_arrow


def convert(name: str, converter: Converter, vector: Vector, places: Sequence[int]) -> Converted:
    """A column's values; ``places``: the datums' places in the chunk. Raises Fault."""
    try:
        values = vector.column()
    except NotText as error:
        raise Fault(f"column {name!r}: {error}", column=name, suspects=[places[i] for i in error.places]) from error
    if isinstance(values, pa.Array) and not takes_arrow(converter):
        values = values.to_pylist()
    try:
        return convert_column(name, converter, values)
    except Fault as fault:
        fault.suspects = [places[i] for i in fault.suspects]
        raise


def listed(vector: Vector | None, count: int, absent: Any, places: Sequence[int]) -> list[Any]:
    """Values of a field of the source block, ``absent`` if the schema lacks it. Raises Fault."""
    if vector is None:
        return [absent] * count
    repeated = vector.repeated()
    return repeated if repeated is not None else _objects(_block_column(vector, places))


def _objects(column: Any) -> list[Any]:
    """A column of the source block as Python objects."""
    if not isinstance(column, pa.Array):
        return list(column)
    if pa.types.is_string(column.type):
        return _as_texts(column)
    return list(column.to_pylist())


def _block_column(vector: Vector, places: Sequence[int]) -> Any:
    """A field of the source block as its vector gives it. Raises Fault."""
    try:
        return vector.column()
    except NotText as error:
        raise Fault(f"source block: {error}", suspects=[places[i] for i in error.places]) from error


def _as_texts(column: Any) -> list[Any]:
    """Python texts of an Arrow column, one object for each distinct text."""
    coded = column.dictionary_encode()
    if len(coded.dictionary) * 2 > len(column):
        return list(column.to_pylist())
    distinct = [*coded.dictionary.to_pylist(), None]
    codes = coded.indices.fill_null(len(distinct) - 1).to_pylist()
    return [distinct[code] for code in codes]


class Block:
    """Source blocks as what reads positions takes them (see `sources.base.Columns`)."""

    def __init__(
        self, source: Struct, wire: type[msgspec.Struct], absent: Mapping[str, Any], places: Sequence[int]
    ) -> None:
        """``absent``: the fields of ``wire``, each with the value used if the schema lacks it. Raises Fault."""
        self._source, self._wire, self._absent, self._places = source, wire, absent, places
        self._known: dict[str, list[Any]] = {}
        self._texts: dict[str, pa.Array] = {}
        # Text that is not UTF-8 is reported before a position of which it makes no sense.
        for name in absent:
            vector = source.fields.get(name)
            if vector is None or vector.numbers() is not None:
                continue
            if (repeated := vector.repeated()) is not None:
                self._known[name] = repeated
            else:
                column = _block_column(vector, places)
                if isinstance(column, pa.Array) and pa.types.is_string(column.type):
                    self._texts[name] = column
                else:
                    self._known[name] = _objects(column)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Any]:
        if not self._absent:
            return iter([self._wire() for _ in self._places])
        return (self._wire(*row) for row in zip(*map(self.values, self._absent), strict=True))

    def values(self, name: str) -> list[Any]:
        found = self._known.get(name)
        if found is None:
            column = self._texts.get(name)
            vector, absent = self._source.fields.get(name), self._absent.get(name)
            found = listed(vector, len(self), absent, self._places) if column is None else _objects(column)
            self._known[name] = found
        return found

    def numbers(self, name: str) -> npt.NDArray[np.int64] | None:
        vector = self._source.fields.get(name)
        return None if vector is None else vector.numbers()

    def texts(self, name: str) -> pa.Array | None:
        return self._texts.get(name)


@dataclass(frozen=True, slots=True)
class AvroColumn:
    """One column of the target: the field that holds it, and its converter."""

    name: str
    field: str
    converter: Converter


def read_keys(framed: Framed, columns: Sequence[AvroColumn], values: list[bytes], *, primitive: bool) -> list[Any]:
    """Arrow arrays of the key's columns; a primitive key is one column. Raises DecodeError."""
    assert framed.avro is not None
    try:
        found = read_group(framed.avro, values, whole(framed.avro))
    except Unreadable as error:
        raise DecodeError("key: its bytes do not follow the schema that they name") from error
    arrays: list[Any] = []
    for column in columns:
        vector = found if primitive else found.fields[column.field] if isinstance(found, Struct) else None
        if vector is None:
            raise DecodeError("key: it is not a record")
        if not primitive and isinstance(found, Struct):
            vector.only(found.present())
        try:
            arrays.append(convert(column.name, column.converter, vector, range(len(values))).array)
        except Fault as fault:
            raise DecodeError(f"key {fault.reason}", column=fault.column) from fault
    return arrays


def holds_documents(framed: Framed) -> bool:
    """Whether this schema's after image is text, as a document's is."""
    after = framed.avro.present.member("after") if framed.avro is not None else None
    return after is not None and after.type.present.kind == "string"


@dataclass(frozen=True, slots=True)
class AvroLayout:
    """The decoding of the datums of one schema to columns."""

    connector: str
    source: Source
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
    """The compiled reader's program, if it knows all types of the schema."""


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
    source = source_for(connector)
    if is_document_source(source):
        raise DecodeError(f"images of connector {connector!r} are documents, but the schema declares rows")
    fields = row_fields(schema, connector) or {}
    own = [c.name for c in table.columns]
    by_column = {column: field for field, column in columns_of(fields, own).items()}
    columns = tuple(
        AvroColumn(
            column.name,
            by_column[column.name],
            converter(
                fields[by_column[column.name]],
                column,
                encoding="avro",
                policy=policy,
                omits=source.omits_values,
                years=table.years,
            ),
        )
        for column in table.source_columns
        if column.name in by_column
    )
    block = _block(source)
    _check_block(schema, source)
    names = [column.field for column in columns]
    want: Want = {
        "op": None,
        "after": _all(names),
        "before": _all(names if before else ()),
        "source": _all(["connector", "name", "ts_ms", *TABLE, *(name for name, _ in block)]),
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


def _block(source: Source) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (field.encode_name, None if field.default is msgspec.NODEFAULT else field.default)
        for field in msgspec.structs.fields(source.wire)
    )


_COMMON: dict[str, Any] = {
    "connector": str | None,
    "name": str | None,
    "ts_ms": int | None,
    **dict.fromkeys(TABLE, str | None),
}
_SAMPLES: dict[str, Any] = {"boolean": True, "string": "", "bytes": b"", "float32": 0.5, "float64": 0.5, "struct": {}}


def _check_block(schema: SourceType, source: Source) -> None:
    """Raises DecodeError if a field of the source block that makes a position has another type than the connector's."""
    types = _COMMON | {field.encode_name: field.type for field in msgspec.structs.fields(source.wire)}
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
