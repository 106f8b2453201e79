"""Kafka keys: structs or primitives, in JSON with or without the schema envelope or in Avro, typed as the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

from ch_sink.decode.avro.events import as_json
from ch_sink.decode.avro.keys import holds_documents, read_keys
from ch_sink.decode.avro.layout import AvroColumn
from ch_sink.decode.avro.names import columns_of
from ch_sink.decode.framing import Envelopes, Framed
from ch_sink.decode.json.aliases import alias, object_decoder, with_names
from ch_sink.decode.json.rows import NUMBER_FOR_BYTES, ColumnReader
from ch_sink.decode.key_literals import as_written
from ch_sink.decode.mongodb import DocumentKeys, is_document_event, key_column_name
from ch_sink.decode.record_kinds import changes_no_row
from ch_sink.errors import DecodeError, TableError
from ch_sink.model.policy import Policy
from ch_sink.ports import SchemaRegistry
from ch_sink.table.model import TargetTable
from ch_sink.types import Converter, Encoding, arrow_type, converter
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import nullable

__all__ = ["KeyReader"]


@dataclass(frozen=True, slots=True)
class _Shape:
    """How keys of one framing are decoded."""

    decode: Callable[[bytes], Any]
    columns: tuple[ColumnReader, ...]
    primitive: bool


@dataclass(frozen=True, slots=True)
class _AvroShape:
    """How keys of one Avro schema are decoded."""

    columns: tuple[AvroColumn, ...]
    primitive: bool


class KeyReader:
    """Decodes the keys of one topic. The key's columns are learned from the first key that can be read."""

    def __init__(self, table: TargetTable, policy: Policy, registry: SchemaRegistry | None = None) -> None:
        self._table = table
        self._names = frozenset(c.name for c in table.source_columns)
        self._sorted = frozenset(table.sorting_key)
        self._policy = policy
        self._envelopes = Envelopes(registry)
        self._value_envelopes = Envelopes(registry)
        self._shapes: dict[Framed, _Shape] = {}
        self._avro: dict[Framed, _AvroShape] = {}
        self.columns: tuple[str, ...] = policy.keys.columns
        self._raw_text = False
        self._numbers = False
        self._documents: DocumentKeys | None = None

    def learn(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
        """Learn the key's columns, if they are not known yet; records that change no row do not tell them.

        Null values do only where no row does, and only columns by which the table is sorted: as its key's are.
        Raises TableError where the table has no column for the key of documents.
        """
        for key, value in zip(keys, values, strict=True):
            if self._documents is None and key is not None and value is not None and self._is_document(value):
                self._documents = DocumentKeys(self._table, self._policy)
                self.columns = (self._documents.name,)
            if self.columns:
                return
            if value is not None and key is not None and key != b"null" and not self._is_no_row(value):
                self._try(key)
        for key, value in zip(keys, values, strict=True):
            if self.columns:
                return
            if value is None and key is not None and key != b"null":
                self._try(key)
                if not self.columns and self._policy.events.tombstones == "delete" and self._is_document_key(key):
                    self._documents = DocumentKeys(self._table, self._policy)
                    self.columns = (self._documents.name,)
                elif not self._sorted.issuperset(self.columns):
                    self.columns = ()  # perhaps of a row of another table, such as a signal
                    self._forget()

    def _try(self, key: bytes) -> None:
        try:
            self.read([key])
        except (DecodeError, TableError):
            self._forget()  # that was no key of this table

    def _forget(self) -> None:
        self._shapes.clear()
        self._avro.clear()

    def _is_document(self, value: bytes) -> bool:
        if value[:1] != b"\0":
            return is_document_event(value)
        try:
            framed, payload = self._value_envelopes.one(value)
            return holds_documents(framed) and is_document_event(as_json(framed, payload))
        except DecodeError:
            return False

    def _is_document_key(self, key: bytes) -> bool:
        """Whether a key whose value does not tell it is that of a document: `id`, and the table has `_id` instead."""
        try:
            found: Any = msgspec.json.decode(as_json(*self._envelopes.one(key)))
        except (DecodeError, msgspec.DecodeError, ValueError, RecursionError):
            return False
        column = self._table.column(key_column_name(self._policy))
        is_key = isinstance(found, dict) and found.keys() == {"id"} and isinstance(found["id"], str)
        return is_key and column is not None and column.insertable and self._table.column("id") is None

    def _is_no_row(self, value: bytes) -> bool:
        """Whether a value is of a kind that is set aside: transaction metadata, a signal, a message, …"""
        try:
            found: Any = msgspec.json.decode(as_json(*self._value_envelopes.one(value)))
        except (DecodeError, msgspec.DecodeError, ValueError, RecursionError):
            return False
        return changes_no_row(found, self._names, self._policy.events.fields_prefix)

    @property
    def of_documents(self) -> bool:
        """Whether the keys are those of documents."""
        return self._documents is not None

    @property
    def types(self) -> list[pa.DataType]:
        """Arrow types of the key's columns."""
        return [arrow_type(self._column(name).type) for name in self.columns]

    @property
    def never_null(self) -> list[str]:
        """The key's columns that cannot hold null."""
        return [name for name in self.columns if not parse_type(self._column(name).type).nullable]

    def read(self, keys: list[bytes]) -> list[pa.Array]:
        """The key's columns, in the order of :attr:`columns`. Raises DecodeError where a key cannot be read."""
        if not keys:
            return [pa.nulls(0, found) for found in self.types]
        groups = self._envelopes.split(keys)
        group = self._group if self._documents is None else self._document_keys
        if len(groups) == 1 and groups[0][1] is None:
            return group(groups[0][0], groups[0][2])
        order: list[int] = []
        parts: list[list[pa.Array]] = []
        for framed, places, payloads in groups:
            order.extend(places if places is not None else range(len(keys)))
            parts.append(group(framed, payloads))
        where = pa.array(_inverse(order))
        return [pa.concat_arrays(column).take(where) for column in zip(*parts, strict=True)]

    def _document_keys(self, framed: Framed, payloads: list[bytes]) -> list[pa.Array]:
        assert self._documents is not None
        return [self._documents.read([as_json(framed, payload) for payload in payloads])]

    def _group(self, framed: Framed, payloads: list[bytes]) -> list[pa.Array]:
        known = self._shapes.get(framed)
        try:
            return self._in_order(framed, payloads)
        except DecodeError:
            # A shape is remembered once a key was read by it: it may have been made of one that is none.
            self._shapes.pop(framed, None)
            if known is None:
                raise
            try:
                if framed.schema is None and len(payloads) == 1:
                    return self._in_order(framed, payloads)
            except DecodeError:
                pass
            self._shapes[framed] = known
            raise

    def _in_order(self, framed: Framed, payloads: list[bytes]) -> list[pa.Array]:
        names, arrays = (self._json if framed.avro is None else self._datums)(framed, payloads)
        if not self.columns:
            self.columns = names
        if names == self.columns:
            return arrays
        if set(names) != set(self.columns):
            raise DecodeError(
                f"the key has the columns {', '.join(names)}, earlier ones had {', '.join(self.columns)}",
                hint="a topic must keep its key (message.key.columns)",
            )
        return [arrays[names.index(name)] for name in self.columns]

    def _datums(self, framed: Framed, values: list[bytes]) -> tuple[tuple[str, ...], list[pa.Array]]:
        shape = self._avro.get(framed)
        if shape is None:
            shape = self._avro[framed] = self._avro_shape(framed)
        arrays = read_keys(framed, shape.columns, values, primitive=shape.primitive)
        return tuple(column.name for column in shape.columns), arrays

    def _avro_shape(self, framed: Framed) -> _AvroShape:
        assert framed.schema is not None
        primitive = framed.schema.kind != "struct"
        if primitive:
            found = {self._primitive_name(): ("", framed.schema)}
        else:
            ignored = self._policy.keys.ignored
            fields = {f.name: f.type for f in framed.schema.fields if f.name not in ignored}
            named = columns_of(fields, [c.name for c in self._table.columns])
            found = {named[name]: (name, declared) for name, declared in fields.items()}
        columns = [
            AvroColumn(column, field, self._converter(declared, self._column(column), "avro"))
            for column, (field, declared) in found.items()
        ]
        return _AvroShape(tuple(columns), primitive)

    def _json(self, framed: Framed, payloads: list[bytes]) -> tuple[tuple[str, ...], list[pa.Array]]:
        shape = self._shapes.get(framed)
        if shape is None:
            shape = self._shape(framed, payloads[0])
        decode = shape.decode
        try:
            rows: list[Any] = list(map(decode, payloads))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            if not self._numbers and NUMBER_FOR_BYTES.search(str(error)):
                self._numbers = True
                self._shapes.clear()
                return self._json(framed, payloads)
            if not (self._raw_text and shape.primitive):
                raise DecodeError(f"key: {with_names(str(error))}") from error
            rows = [_text(payload, decode) for payload in payloads]
        arrays: list[pa.Array] = []
        for column in shape.columns:
            values = rows if shape.primitive else list(map(column.get, rows))
            try:
                arrays.append(column.converter.convert(values).array)
            except DecodeError as error:
                error.args = (f"key column {column.name!r}: {error.message}",)
                error.message = error.args[0]
                raise
        return tuple(column.name for column in shape.columns), arrays

    def _shape(self, framed: Framed, payload: bytes) -> _Shape:
        if framed.schema is not None:
            fields = _declared(framed.schema, payload)
        else:
            found = self._peek(payload)
            fields = dict.fromkeys(found) if isinstance(found, dict) else None
        shape = self._primitive(framed.schema) if fields is None else self._struct(fields)
        if len(self._shapes) > 256:
            self._shapes.clear()
        self._shapes[framed] = shape
        return shape

    def _peek(self, payload: bytes) -> Any:
        try:
            return msgspec.json.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            if payload[:1] in (b"{", b"["):
                raise DecodeError(f"key: {error}") from error
            return None

    def _struct(self, fields: dict[str, SourceType | None]) -> _Shape:
        members: list[Any] = []
        columns: list[ColumnReader] = []
        for name, declared in fields.items():
            if name in self._policy.keys.ignored:
                continue
            made = self._converter(declared, self._column(name))
            attribute = f"k{len(members)}"
            members.append((attribute, nullable(made.wire)))
            columns.append(ColumnReader(name, attrgetter(attribute), made))
        kept = [name for name in fields if name not in self._policy.keys.ignored]
        renamed = {f"k{i}": name for i, name in enumerate(kept)}
        for i, name in enumerate(n for n in fields if n not in kept):
            members.append((f"i{i}", msgspec.Raw, msgspec.UNSET))
            renamed[f"i{i}"] = name
        aliases = {attribute: alias(name) for attribute, name in renamed.items()}
        key = msgspec.defstruct("Key", members, rename=aliases, forbid_unknown_fields=True, gc=False)
        decode = object_decoder(msgspec.json.Decoder(key, float_hook=Decimal).decode, key)
        return _Shape(decode, tuple(columns), primitive=False)

    def _primitive(self, declared: SourceType | None) -> _Shape:
        name = self._primitive_name()
        column = self._column(name)
        made = self._converter(declared, column)
        self._raw_text = made.arrow == pa.binary() and declared is None
        decoder = msgspec.json.Decoder(nullable(made.wire), float_hook=Decimal)
        return _Shape(decoder.decode, (ColumnReader(name, _itself, made),), primitive=True)

    def _converter(self, declared: SourceType | None, column: Column, encoding: Encoding = "json") -> Converter:
        return converter(
            declared,
            column,
            encoding=encoding,
            # A clamped key would be another row's.
            policy=replace(self._policy.values, out_of_range="fail"),
            omits=False,
            numbers=self._numbers and encoding == "json",
            years=self._table.years,
        )

    def _primitive_name(self) -> str:
        if len(self._policy.keys.columns) == 1:
            return self._policy.keys.columns[0]
        names = [e for e in self._table.sorting_key if e not in self._table.system_columns]
        if len(names) == 1 and self._table.column(names[0]) is not None:
            return names[0]
        raise DecodeError(
            "the key is a single value and the table's sorting key does not tell which column it is",
            hint="name the column in key_columns",
        )

    def _column(self, name: str) -> Column:
        column = self._table.column(name)
        if column is None or not column.insertable:
            raise DecodeError(
                f"the key has the column {name!r}, which {self._table.qualified} lacks",
                hint="add the column to the table, leave it out of the key (message.key.columns), or list it in "
                "ignored_key_fields where keys are unique without it",
            )
        return column


def _declared(schema: SourceType, payload: bytes) -> dict[str, SourceType | None] | None:
    return {f.name: f.type for f in as_written(schema.fields, payload)} if schema.kind == "struct" else None


def _itself(value: Any) -> Any:
    return value


def _text(payload: bytes, decode: Any) -> Any:
    """A key written without quotes (StringConverter)."""
    try:
        return decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"key: {error}") from error


def _inverse(order: list[int]) -> list[int]:
    out = [0] * len(order)
    for place, original in enumerate(order):
        out[original] = place
    return out
