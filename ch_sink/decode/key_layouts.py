"""Decoding of keys of one form to columns: structs or primitives, in JSON with or without schema, or in Avro.

Kafka picks a record's partition by the bytes of its key, not by what they mean: `key_forms` tells the forms apart.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa

from ch_sink.decode.avro.columns import AvroColumn, columns_of, read_keys
from ch_sink.decode.framing import AVRO_HEAD, Envelopes, Framed, FramingError
from ch_sink.decode.json.layout import ColumnReader, Image, literals, others, texts_of
from ch_sink.decode.json.scanned import Programs, column_of
from ch_sink.decode.native.library import Keep, Member, Members, Skip, library
from ch_sink.decode.native.scan import Scan
from ch_sink.decode.parts import UNREADABLE, Fault, unless_bad
from ch_sink.errors import DecodeError
from ch_sink.model.change import ReadAs, both_readings
from ch_sink.model.policy import Policy
from ch_sink.table.model import TargetTable
from ch_sink.types import Converter, Encoding, converter, expect_key, read_as
from ch_sink.types.column import PLAIN, Column, reading
from ch_sink.types.connect import Field, SourceType, of_system
from ch_sink.types.converter import nullable

NamedColumns = tuple[tuple[str, ...], list[pa.Array]]
"""Names of the key's columns, in the key's order, and their values."""
_Fields = tuple[tuple[str, SourceType | None], ...]
"""Fields of a key, with their types if a schema declares them."""
_KEPT = 256
"""Layouts that are remembered."""
_struct = msgspec.json.Decoder(Image).decode


@dataclass(frozen=True, slots=True)
class _Layout:
    """The decoding of JSON keys of one form."""

    decode: Callable[[bytes], Any]
    columns: tuple[ColumnReader, ...]
    fields: frozenset[str] | None
    """The names of a struct's fields; None for keys that are one value."""
    raw_text: bool
    """The key may be text without quotes (StringConverter)."""
    programs: Programs | None = None
    """Scan the keys, if they are structs."""
    read_as: Mapping[str, str] = field(default_factory=dict)
    """See `KeyLayouts._how`."""


class KeyLayouts:
    """Decodes keys into their columns. What a key means never depends on the keys read before it."""

    def __init__(self, table: TargetTable, policy: Policy) -> None:
        self._table, self._policy = table, policy
        self._of_system = lru_cache(_KEPT)(_of_system)
        self._avro = lru_cache(_KEPT)(self._avro_layout)
        self._struct = lru_cache(_KEPT)(self._struct_layout)
        self._primitive = lru_cache(_KEPT)(self._primitive_layout)
        self.read_as: ReadAs = {}
        """Of the keys that were read, where it matters (see `_how`); to be replaced by its reader."""

    def read(self, framed: Framed, payloads: list[bytes], connector: str) -> NamedColumns:
        """The key columns of keys of one framing. Raises DecodeError if one cannot be read.

        ``connector``: that of the rows, empty if it is not known; a key's schema does not name it.
        """
        framed = self._of_system(framed, connector)
        if framed.avro is not None:
            columns, primitive, read_as = self._avro(framed)
            self._note(read_as)
            arrays = read_keys(framed, columns, payloads, primitive=primitive)
            return tuple(column.name for column in columns), arrays
        layout = self._json(framed, payloads[0])
        self._note(layout.read_as)
        return _read_json(layout, payloads)

    def _note(self, read_as: Mapping[str, str]) -> None:
        self.read_as = both_readings(self.read_as, {name: (how,) for name, how in read_as.items()})

    def column(self, name: str) -> Column:
        """The table's column for a key column. Raises DecodeError if there is none."""
        column = self._table.column(name)
        if column is None or not column.insertable:
            raise DecodeError(
                f"the key has the column {name!r}, which {self._table.qualified} lacks",
                hint="add the column to the table, leave it out of the key (message.key.columns), or list it in "
                "ignored_key_fields if keys are unique without it",
            )
        return column

    def _json(self, framed: Framed, payload: bytes) -> _Layout:
        """The layout for keys written like this one: with the same fields and kinds of literals."""
        schema = framed.schema
        fields: _Fields | None = None
        if schema is None:
            found = _literals(payload)
            fields = tuple((name, None) for name in found) if isinstance(found, dict) else None
        elif schema.kind == "struct":
            fields = tuple((f.name, f.type) for f in as_written(schema.fields, payload))
        return self._primitive(schema) if fields is None else self._struct(fields)

    def _struct_layout(self, fields: _Fields) -> _Layout:
        ignored = self._policy.keys.ignored
        columns = tuple(
            ColumnReader(name, self._converter(declared, self.column(name)))
            for name, declared in fields
            if name not in ignored
        )
        native = library()
        kept = {column.name: Keep() for column in columns}
        every: dict[str, Member] = {name: kept.get(name, Skip()) for name, _ in fields}
        root = Members(every, frozenset(kept), None)
        programs = Programs(native, root) if native is not None else None
        read_as = {name: how for name, declared in fields if name in kept and (how := self._how(declared, name))}
        return _Layout(_struct, columns, frozenset(every), raw_text=False, programs=programs, read_as=read_as)

    def _primitive_layout(self, declared: SourceType | None) -> _Layout:
        name = self._primitive_name()
        made = self._converter(declared, self.column(name))
        decode = msgspec.json.Decoder(nullable(made.wire), float_hook=Decimal).decode
        noted = self.column(name).stated
        texts = noted is None or noted.kind in ("string", "bytes")
        raw_text = made.arrow == pa.binary() and declared is None and texts
        how = self._how(declared, name)
        return _Layout(decode, (ColumnReader(name, made),), None, raw_text=raw_text, read_as={name: how} if how else {})

    def _how(self, declared: SourceType | None, name: str) -> str:
        """As what a column's values are read: ``plain``, as they look, or a type as column comments state it.

        Empty if values of every type that the column takes are the same: see `ch_sink.types.column.reading`.
        """
        column, how = self.column(name), PLAIN
        stated = read_as(declared, column, self._policy.values)
        if stated is not None:
            scale = tuple(p for p in stated.parameters if p[0] in ("scale", "length"))
            how = SourceType(stated.kind, stated.name, scale).to_note()
        return how if reading(how, column) else ""

    def _avro_layout(self, framed: Framed) -> tuple[list[AvroColumn], bool, dict[str, str]]:
        """The columns of Avro's keys of a schema, whether each key is one value, and `_how` of the columns."""
        assert framed.schema is not None
        primitive = framed.schema.kind != "struct"
        found: Mapping[str, tuple[str, SourceType]]
        if primitive:
            found = {self._primitive_name(): ("", framed.schema)}
        else:
            fields = {f.name: f.type for f in framed.schema.fields if f.name not in self._policy.keys.ignored}
            named = columns_of(fields, [c.name for c in self._table.columns])
            found = {named[name]: (name, declared) for name, declared in fields.items()}
        columns = [
            AvroColumn(column, field, self._converter(declared, self.column(column), "avro"))
            for column, (field, declared) in found.items()
        ]
        return columns, primitive, {n: how for n, (_, d) in found.items() if (how := self._how(d, n))}

    def _converter(self, declared: SourceType | None, column: Column, encoding: Encoding = "json") -> Converter:
        expect_key(declared, column)
        return converter(
            declared,
            column,
            encoding=encoding,
            # A key that is clamped or cut would identify another row.
            policy=replace(self._policy.values, out_of_range="exact"),
            omits=False,
            years=self._table.years,
        )

    def _primitive_name(self) -> str:
        if len(self._policy.keys.columns) == 1:
            return self._policy.keys.columns[0]
        names = [e for e in self._table.sorting_key if e not in self._table.system_columns]
        if len(names) == 1 and self._table.column(names[0]) is not None:
            return names[0]
        raise DecodeError(
            "the key is a single value, and the table's sorting key does not show which column it is",
            hint="name the column in key_columns",
        )


def _read_json(layout: _Layout, payloads: list[bytes]) -> NamedColumns:
    decode = layout.decode
    scanned = _scanned(layout, payloads)
    if scanned is not None:
        return scanned
    try:
        rows: list[Any] = [_text(p, decode) for p in payloads] if layout.raw_text else list(map(decode, payloads))
    except UNREADABLE as error:
        raise DecodeError(f"key: {error}") from error
    if layout.fields is not None and others(rows, layout.fields):
        odd = next(name for row in rows for name in row if name not in layout.fields)
        raise DecodeError(f"key: it has the field {odd!r}, which other keys lack")
    arrays: list[pa.Array] = []
    for column in layout.columns:
        values: Sequence[Any] = rows if layout.fields is None else _field(column, rows)
        try:
            arrays.append(column.converter.convert(list(values)).array)
        except DecodeError as error:
            error.args = (f"key column {column.name!r}: {error.message}",)
            error.message = error.args[0]
            raise
    return tuple(column.name for column in layout.columns), arrays


def _field(column: ColumnReader, rows: list[Image]) -> list[Any]:
    """A field's values in structs. Raises DecodeError."""
    texts = texts_of(rows, column.name)
    if None in texts:
        raise DecodeError(f"key: it lacks the field {column.name!r}")
    try:
        return literals(column.name, column.converter.wire, texts)
    except Fault as fault:
        raise DecodeError(f"key {fault.reason}", column=column.name) from fault


def _scanned(layout: _Layout, payloads: list[bytes]) -> NamedColumns | None:
    """The keys' columns from the compiled scanner; None if the keys have to be decoded otherwise."""
    if layout.programs is None:
        return None

    def columns(found: Scan) -> NamedColumns:
        arrays = [column_of(found, (column.name,), column.converter).array for column in layout.columns]
        return tuple(column.name for column in layout.columns), arrays

    return layout.programs.read(payloads, columns)


def fields_of(framed: Framed, payload: bytes) -> tuple[str, ...]:
    """The names of a key's fields; none if it is one value, or cannot be read."""
    if framed.schema is not None:
        return tuple(field.name for field in framed.schema.fields)
    found = unless_bad(None, lambda: _literals(payload))
    return tuple(found) if isinstance(found, dict) else ()


def _literals(payload: bytes) -> Any:
    """The key as a plain Python value; None for text without quotes. Raises DecodeError for a broken struct."""
    try:
        return msgspec.json.decode(payload)
    except UNREADABLE as error:
        if payload[:1] in (b"{", b"["):
            raise DecodeError(f"key: {error}") from error
        return None


def _text(payload: bytes, decode: Callable[[bytes], Any]) -> Any:
    """A key that is one text: JSON's in quotes, else it is what it looks like (StringConverter), digits as well."""
    if payload[:1] == b'"':
        with suppress(*UNREADABLE):
            return decode(payload)
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"key: {error}") from error


def _of_system(framed: Framed, connector: str) -> Framed:
    """The framing without the names that users of the source system give to types."""
    if framed.schema is None:
        return framed
    schema = of_system({"": framed.schema}, connector)[""]
    return framed if schema == framed.schema else replace(framed, schema=schema)


def as_written(fields: Sequence[Field], payload: bytes) -> tuple[Field, ...]:
    """The key's fields; a field that is declared as an integer but written as text becomes text.

    SingleStore's ``InternalId`` is declared int64 and shown as 24 digits of text, which no int64 holds.
    """
    if all(field.type.kind != "int64" for field in fields):
        return tuple(fields)
    try:
        found = msgspec.json.decode(payload)
    except UNREADABLE:
        return tuple(fields)
    texts = {name for name, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else set()
    return tuple(
        replace(f, type=SourceType("string", optional=f.type.optional))
        if f.type.kind == "int64" and f.name in texts
        else f
        for f in fields
    )


_STRUCT_TEXT = re.compile(rb"(Struct)?\{.*\}", re.DOTALL)
REMEDY = (
    "Set key.converter to org.apache.kafka.connect.json.JsonConverter (or Avro's) at the connector and take a "
    "new snapshot into a new topic. If the key is one column, an ExtractField$Key transformation before "
    "StringConverter works too: then name the column with key_columns."
)


def is_struct_text(key: bytes) -> bool:
    """Whether a key is the text that Java prints for a struct or map, such as ``Struct{id=1}``."""
    if _STRUCT_TEXT.fullmatch(key) is None:
        return False
    try:
        msgspec.json.decode(key)
    except UNREADABLE:
        return True
    return False


def reason(topic: str, key: bytes) -> str:
    """Why a topic with such a key cannot be read."""
    text = key.decode(errors="replace")[:80]
    return (
        f"the keys of topic {topic} are text such as {text!r}: StringConverter wrote the key's struct as text, and no "
        "column can be read from it"
    )


@dataclass(frozen=True, slots=True)
class KeyForm:
    """One way in which keys of a chunk are written."""

    schema: str
    """Name of the keys' schema, empty if they have none: connectors that share a topic have one each."""
    name: str
    first: int
    """Place of the first record whose key is written so."""
    ignored: tuple[str, ...] = ()
    """Fields of these keys that are left out of the table's key."""


def key_forms(keys: Sequence[bytes | None], envelopes: Envelopes, ignored: Collection[str]) -> list[KeyForm]:
    """The forms of keys, in the order in which they come first; keys that cannot be read have none.

    Raises RegistryError.
    """
    given = [place for place, key in enumerate(keys) if key is not None and key != b"null"]
    found: list[KeyForm] = []
    while given:
        values = [key for place in given if (key := keys[place]) is not None]
        try:
            groups = envelopes.split(values)
        except FramingError as error:
            bad = set(error.places)
            given = [place for at, place in enumerate(given) if at not in bad]
            continue
        for framed, places, payloads in groups:
            mine = tuple(name for name in fields_of(framed, payloads[0]) if name in ignored) if ignored else ()
            schema = (framed.avro.name if framed.avro is not None else framed.schema and framed.schema.name) or ""
            found.append(
                KeyForm(schema, _form_name(framed), given[places[0]] if places is not None else given[0], mine)
            )
        break
    return sorted(found, key=lambda form: form.first)


def _form_name(framed: Framed) -> str:
    if framed.avro is not None:
        return f"Avro with schema id {int.from_bytes(framed.prefix[1:AVRO_HEAD], 'big', signed=True)}"
    if framed.prefix:
        return f"JSON with schema {blake2b(framed.prefix, digest_size=4).hexdigest()}"
    return "JSON without schema"
