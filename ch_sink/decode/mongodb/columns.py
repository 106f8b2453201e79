"""The parts of a document that the columns of a table get, and the documents' Kafka keys."""

import re
from collections.abc import Callable, Sequence
from ctypes import CDLL
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.decode.json.scanned import Programs, Refused
from ch_sink.decode.mongodb.targets import TEXT_TYPES, Prepared, document_converter, into
from ch_sink.decode.mongodb.texts import (
    Binary,
    Decimal,
    NonFinite,
    ObjectId,
    canonical_text,
    key_text,
    text_of,
    typed_key_text,
)
from ch_sink.decode.mongodb.updates import MISSING, Path, Update, at
from ch_sink.decode.mongodb.values import parse, read
from ch_sink.decode.native.library import Keep, Members, library
from ch_sink.decode.native.scan import NIL, NOTHING, NULL, SPECIAL, STRING, TEXTS, Scan, written
from ch_sink.errors import DecodeError, TableError
from ch_sink.model.policy import Policy
from ch_sink.table.model import TargetTable
from ch_sink.types import Converter
from ch_sink.types.arrow import integer_bounds
from ch_sink.types.chtype import ChType, parse_type
from ch_sink.types.column import Column, Years

ID = ("_id",)


@dataclass(frozen=True, slots=True)
class DocumentColumn:
    """One column: the path of its value in the document (empty: the whole document), and its converter."""

    name: str
    path: Path
    converter: Converter
    text: bool
    """The column holds its part as JSON text, so that a change inside that part can be applied to what is stored."""
    plain: bool = False
    """It holds the plain JSON of its part, a string without its quotes; equal numbers of a key have one text."""

    def pick(self, document: Any) -> Any:
        """The column's part of a document; None if the document lacks it."""
        found = at(document, self.path)
        return None if found is MISSING else found


class DocumentTable:
    """The columns of a target for documents.

    A column gets the field of its name, or the path that ``document.columns`` gives it; the column named in
    ``document.column`` gets the whole document. Raises TableError if a column's type cannot hold its value.
    """

    def __init__(self, table: TargetTable, policy: Policy) -> None:
        self._evolves = policy.changes.evolve == "add_columns"
        self._may_be_null = policy.changes.on_unresolved == "null"
        paths = {name: tuple(path.split(".")) for name, path in policy.documents.columns}
        unknown = sorted(paths.keys() - {c.name for c in table.source_columns})
        if unknown:
            raise TableError(
                f"document.columns names {', '.join(unknown)}, which {table.qualified} lacks",
                hint="add the column to the table, or remove it from document.columns",
            )
        self.key = key_column_name(policy)
        columns: list[DocumentColumn] = []
        for column in table.source_columns:
            path = ID if column.name == self.key else paths.get(column.name, (column.name,))
            whole = column.name == policy.documents.column and column.name not in paths and _holds(column)
            columns.append(self._column(column, () if whole else path, policy, table.years))
        self.columns = tuple(columns)
        self.document = next((c for c in columns if c.path == ()), None)
        self.reserved = table.system_columns
        named = {c.name for c in table.columns} - self.reserved
        self._known = named | {c.path[0] for c in columns if c.path}

    def _column(self, column: Column, path: Path, policy: Policy, years: Years) -> DocumentColumn:
        if path == ():
            return DocumentColumn(column.name, path, document_converter(column), True)
        made = key_converter(column, policy, years) if path == ID else into(column, policy.values, years)
        kind = parse_type(column.type).bare.name
        plain = kind == "String" and (path != ID or policy.documents.keys == "plain")
        return DocumentColumn(column.name, path, made, kind in TEXT_TYPES, plain)

    def reader(self, column: DocumentColumn) -> Callable[[Sequence[str | bytes | None]], pa.Array]:
        """A function from Extended JSON of the field that the column's path begins with to the column's values.

        For a column of the whole document it takes that. It raises DecodeError.
        """
        field = DocumentColumn(column.name, column.path[1:], column.converter, column.text)

        def read(texts: Sequence[str | bytes | None]) -> pa.Array:
            parts = [None if text is None else field.pick(parse(text)) for text in texts]
            return column.converter.convert(parts).array

        return read

    def unknown_fields(self, document: Any) -> list[str]:
        """Fields of a document without a column; none if a column holds the whole document.

        Raises DecodeError if one of them should become a column but cannot.
        """
        if self.document is not None or not isinstance(document, dict) or document.keys() <= self._known:
            return []
        if self._evolves and "" in document:
            raise DecodeError(
                "a field without a name cannot be a column: only a column for the whole document holds it"
            )
        return [name for name in document if name not in self._known]

    def change(self, column: DocumentColumn, update: Update) -> Callable[[Any], pa.Array]:
        """A function that applies an update to the column's stored value, for changes inside that value.

        It takes the stored text and returns an array of the one new value; it raises DecodeError.
        """

        def changed(stored: Any) -> pa.Array:
            if column.path == () and not stored:
                return column.converter.convert([None]).array  # an unknown document stays unknown
            after = update.apply(self._stored(stored, column))
            return column.converter.convert([None if after is MISSING else after]).array

        return changed

    def derived(self, column: DocumentColumn) -> Callable[[Any], pa.Array]:
        """A function from the stored text of the whole document to the column's value; it raises DecodeError.

        A row may lack the text: it was stored before the table had a column for it, or the document is unknown.
        """

        def derive(document: Any) -> pa.Array:
            if not document and self.document is not None and not self._may_be_null:
                raise DecodeError(f"column {self.document.name!r} does not hold this document yet")
            known = column.pick(parse(document)) if document else None
            return column.converter.convert([known]).array

        return derive

    def beside(self, column: DocumentColumn, update: Update) -> Callable[[Any], pa.Array]:
        """Like `change`, for a row with this text but no document; if both are unknown, the value stays unknown."""
        change = self.change(column, update)

        def changed(stored: Any) -> pa.Array:
            unknown = not stored and self._may_be_null
            return column.converter.convert([None]).array if unknown else change(stored)

        return changed

    def _stored(self, stored: Any, column: DocumentColumn) -> Any:
        """The value of a stored text; text that is not JSON is a string."""
        if stored is None:
            return MISSING
        try:
            return parse(stored)
        except DecodeError:
            if column.path == ():
                raise DecodeError(f"the stored document in column {column.name!r} is not JSON") from None
            return stored


def _holds(column: Column) -> bool:
    return parse_type(column.type).bare.name in TEXT_TYPES


def key_converter(column: Column, policy: Policy, years: Years) -> Converter:
    """The converter of ``_id`` into a column; what is not of the column's kind of keys raises DecodeError.

    Two keys never become one value: a column takes one kind of them, whatever else could be converted. Raises
    TableError for a type of which that is not known.
    """
    kind, exact = parse_type(column.type).bare, replace(policy.values, out_of_range="exact")
    if kind.name == "String":
        # A plain text has one meaning.
        return into(column, exact, years, typed_key_text if policy.documents.keys == "typed" else _plain_key)
    taken, what = (_is_number, "numbers") if integer_bounds(kind) is not None else _KEYS.get(kind.name, (None, ""))
    if taken is None:
        raise TableError(
            f"column {column.name!r}: documents whose _id differs can have one value in a key column of type {kind}",
            hint=f"recreate the table with {column.name} String and set document.keys: typed, or make it UUID or "
            "an integer if all keys are",
        )
    return Prepared(partial(_of_kind, taken, kind, what), into(column, exact, years))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal, NonFinite)) and not isinstance(value, bool)


_KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "UUID": (lambda value: isinstance(value, Binary) and value.uuid is not None, "UUIDs"),
    "FixedString": (lambda value: isinstance(value, ObjectId), "ObjectIds"),
}
"""Type of a key column → which keys it takes, and their name; a String is not here: it takes them as texts."""


def _of_kind(taken: Callable[[Any], bool], kind: ChType, what: str, value: Any) -> Any:
    if taken(value):
        return value
    raise DecodeError(
        f"the document's _id is {canonical_text(value).decode()}, and the key column of type {kind} takes {what} alone",
        hint="set document.keys: typed, make the key column String, and load the collection into a new table",
    )


_ALIKE = "^([0-9a-f]{24}$|[{])"
"""Texts of ObjectIds and documents."""


def _plain_key(value: Any) -> str | bytes | None:
    if value is None or isinstance(value, (ObjectId, dict)):
        return text_of(value)
    if isinstance(value, str):
        if re.match(_ALIKE, value) is None:
            return value
        what, other = f"the text {value!r}", "an ObjectId" if value[0] != "{" else "a document"
    elif isinstance(value, (int, float, Decimal, NonFinite)) and not isinstance(value, bool):
        what, other = f"the number {key_text(value)!s}", "its text"
    else:
        what, other = f"the value {canonical_text(value).decode()}", "a text"
    raise DecodeError(
        f"the document's _id is {what}, which a column of texts would hold as the same key as {other}",
        hint="set document.keys: typed, or give the column the type of all keys (integers, UUIDs), and load the "
        "collection into a new table",
    )


def have_one_meaning(texts: pa.Array, kinds: int) -> bool:
    """Whether these plain texts of keys are all ObjectIds, or all of them strings that are not another key's text.

    ``kinds``: those of the values, as bits. Others are checked one by one.
    """
    kinds &= ~(NOTHING | NIL)
    if kinds == SPECIAL:
        others = pc.match_substring(texts, "-")
    elif kinds == STRING:
        others = pc.match_substring_regex(texts, _ALIKE)
    else:
        return not kinds
    return not pc.any(others, min_count=0).as_py()


def key_column_name(policy: Policy) -> str:
    """The column of the document's ``_id``: the configured key column, the one with that path, else ``_id``."""
    if len(policy.keys.columns) == 1:
        return policy.keys.columns[0]
    return next((name for name, path in policy.documents.columns if path == "_id"), "_id")


class _Key(msgspec.Struct, gc=False):
    id: Any = msgspec.UNSET
    _id: Any = msgspec.UNSET


class _Connector(msgspec.Struct, gc=False):
    connector: str = ""


class _Payload(msgspec.Struct, gc=False):
    source: _Connector | None = None


class _Event(msgspec.Struct, gc=False):
    source: _Connector | None = None
    payload: _Payload | None = None


_events = msgspec.json.Decoder(_Event)


def is_document_event(value: bytes) -> bool:
    """Whether a record's value, with or without schema envelope, is a change of a document."""
    if b"mongodb" not in value:
        return False
    try:
        event = _events.decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    source = event.source if event.payload is None else event.payload.source
    return source is not None and source.connector == "mongodb"


class DocumentKeys:
    """Reads the keys of a document topic into the table's one key column. Raises TableError if it has none."""

    def __init__(self, table: TargetTable, policy: Policy) -> None:
        self.name = key_column_name(policy)
        column = table.column(self.name)
        if column is None or not column.insertable:
            raise TableError(
                f"the documents' key is _id, but {table.qualified} has no column {self.name!r}",
                hint="add a column _id, or name the column that holds it: document.columns: {id: _id}",
            )
        self._converter = key_converter(column, policy, table.years)
        kind, plain = parse_type(column.type).bare.name, policy.documents.keys == "plain"
        self._decoder = msgspec.json.Decoder(_Key)
        native, written = library(), plain and kind == "String"
        self._scanner: KeyScanner | None = None
        if native is not None and (written or not plain or kind not in ("String", "FixedString")):
            self._scanner = KeyScanner(native, self._converter, plain=written)

    def read(self, payloads: list[bytes]) -> pa.Array:
        """The key column of these keys, without their schema envelopes. Raises DecodeError."""
        scanned = self._scanner.read(payloads) if self._scanner is not None else None
        if scanned is not None:
            return scanned
        values = [self._value(payload) for payload in payloads]
        try:
            array = self._converter.convert(values).array
        except DecodeError as error:
            error.args = (f"key column {self.name!r}: {error.message}",)
            error.message = error.args[0]
            raise
        if array.null_count and any(value is None for value in values):
            raise DecodeError("key: the document's _id is null")
        return array

    def _value(self, payload: bytes) -> Any:
        try:
            key = self._decoder.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise DecodeError(f"key: {error}") from error
        found = key.id if key.id is not msgspec.UNSET else key._id
        if found is msgspec.UNSET:
            raise DecodeError('key: a document\'s key is {"id": …}, but this one has no id')
        return parse(found) if isinstance(found, str) else read(found)


class KeyScanner:
    """Reads ``{"id": "<Extended JSON of _id>"}`` into the key column."""

    def __init__(self, native: CDLL, converter: Converter, *, plain: bool) -> None:
        """``plain``: the column holds the values' plain JSON without quotes, and no numbers."""
        self._programs = Programs(native, Members({"id": Keep()}, frozenset(("id",)), None))
        self._converter, self._plain = converter, plain

    def read(self, payloads: Sequence[bytes]) -> pa.Array | None:
        """The keys' column; None if they have to be read one by one."""
        return self._programs.read(payloads, self._column)

    def _column(self, scan: Scan) -> pa.Array:
        slot = scan.program.slots["id",]
        if not scan.only(slot, TEXTS) or scan.kinds(slot) & NULL:
            raise Refused
        texts = written(scan, slot, values=True)
        kinds = int(texts.seen[0])
        if texts.refused.any() or kinds & NIL:
            raise Refused
        if not self._plain:
            values: list[Any] = read(msgspec.json.decode(texts.literals(0)))
            return self._converter.convert(values).array
        found = texts.field(0, self._converter.arrow)
        if not have_one_meaning(found, kinds):
            raise Refused
        return found
