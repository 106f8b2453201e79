"""Kafka keys of documents: ``{"id": "<Extended JSON of _id>"}``."""

import re
from typing import Any, Literal

import msgspec
import pyarrow as pa

from ch_sink.decode.mongodb.columns import key_column_name, key_writer
from ch_sink.decode.mongodb.scanned_keys import KeyScanner
from ch_sink.decode.mongodb.special import Decimal, Int64
from ch_sink.decode.mongodb.targets import into
from ch_sink.decode.mongodb.texts import key_text
from ch_sink.decode.mongodb.values import parse, read
from ch_sink.decode.native.library import library
from ch_sink.errors import DecodeError, TableError
from ch_sink.model.policy import Policy
from ch_sink.table.model import TargetTable
from ch_sink.types.chtype import parse_type

__all__ = ["DocumentKeys", "is_document_event"]


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


_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*[1-9])?")
"""Texts that a number may have as well."""
_DIGIT = re.compile(rb'(?<!o)id[^0-9a-zA-Z$]*(?:\$number|-?[0-9])|^\0.{5,6}(?:"?-?[0-9]|\{ ?"\$number)', re.DOTALL)
"""Keys that may be a number or such a text, in JSON or Avro; the digits of an ObjectId, in ``$oid``, are none."""
IdKind = Literal["", "number", "text"]


def _kind(value: Any) -> IdKind:
    if isinstance(value, str):
        return "text" if _NUMBER.fullmatch(value) else ""
    return "number" if isinstance(value, (int, float, Int64, Decimal)) and not isinstance(value, bool) else ""


class DocumentKeys:
    """Reads the keys of a document topic into the table's one key column. Raises TableError if it has none."""

    def __init__(self, table: TargetTable, policy: Policy, id_kind: str = "") -> None:
        """``id_kind``: see `TopicProfile`."""
        self.name = key_column_name(policy)
        column = table.column(self.name)
        if column is None or not column.insertable:
            raise TableError(
                f"the documents' key is _id, but {table.qualified} has no column {self.name!r}",
                hint="add a column _id, or name the column that holds it: document.columns: {id: _id}",
            )
        self._converter = into(column, policy.values, table.years, key_writer(policy))
        kind, plain = parse_type(column.type).bare.name, policy.documents.keys == "plain"
        self._ambiguous = plain and kind in ("String", "FixedString")
        """Whether a number and its text would be the same key."""
        self._id_kind = id_kind
        self._decoder = msgspec.json.Decoder(_Key)
        native, written = library(), plain and kind == "String"
        self._scanner: KeyScanner | None = None
        if native is not None and (written or not (self._ambiguous and id_kind)):
            self._scanner = KeyScanner(native, self._converter, plain=written, id_kind=id_kind)

    def read(self, payloads: list[bytes]) -> pa.Array:
        """The key column of these keys, without their schema envelopes. Raises DecodeError."""
        scanned = self._scanner.read(payloads) if self._scanner is not None else None
        if scanned is not None:
            return scanned
        values = [self._value(payload) for payload in payloads]
        if self._ambiguous and self._id_kind:
            for value in values:
                self._refuse_other_kind(value)
        try:
            array = self._converter.convert(values).array
        except DecodeError as error:
            error.args = (f"key column {self.name!r}: {error.message}",)
            error.message = error.args[0]
            raise
        if array.null_count and any(value is None for value in values):
            raise DecodeError("key: the document's _id is null")
        return array

    def id_kind(self, payload: bytes) -> IdKind:
        """The kind of a key that is a number or looks like one; empty for any other. Raises DecodeError."""
        return _kind(self._value(payload))

    def may_be_number(self, key: bytes) -> bool:
        """Whether the kind of a key, given with its framing, must be determined."""
        return self._ambiguous and _DIGIT.search(key) is not None

    def _refuse_other_kind(self, value: Any) -> None:
        kind, text = _kind(value), key_text(value)
        if kind and kind != self._id_kind and isinstance(text, str):
            raise DecodeError(
                f"key: the document's _id is the {kind} {text}, earlier ones of this partition are "
                f"{self._id_kind}s: column {self.name!r} would hold the number 1 and the text 1 as one key (set "
                "document.keys: typed, and load the collection into a new table)"
            )

    def _value(self, payload: bytes) -> Any:
        try:
            key = self._decoder.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise DecodeError(f"key: {error}") from error
        found = key.id if key.id is not msgspec.UNSET else key._id
        if found is msgspec.UNSET:
            raise DecodeError('key: a document\'s key is {"id": …}, but this one has no id')
        return parse(found) if isinstance(found, str) else read(found)
