"""Kafka keys of documents: ``{"id": "<Extended JSON of _id>"}``."""

from typing import Any

import msgspec
import pyarrow as pa

from ch_sink.decode.mongodb.columns import key_column_name
from ch_sink.decode.mongodb.targets import into
from ch_sink.decode.mongodb.texts import key_text
from ch_sink.decode.mongodb.values import parse, read
from ch_sink.errors import DecodeError, TableError
from ch_sink.model.policy import Policy
from ch_sink.table.model import TargetTable

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


class DocumentKeys:
    """Reads the keys of a document topic into the table's one key column. Raises TableError where it has none."""

    def __init__(self, table: TargetTable, policy: Policy) -> None:
        self.name = key_column_name(policy)
        column = table.column(self.name)
        if column is None or not column.insertable:
            raise TableError(
                f"the documents' key is _id, and {table.qualified} has no column {self.name!r}",
                hint="add a column _id, or name the column that holds it: document.columns: {id: _id}",
            )
        self._converter = into(column, policy.values, table.years, key_text)
        self._decoder = msgspec.json.Decoder(_Key)

    def read(self, payloads: list[bytes]) -> pa.Array:
        """The key column of these keys, without their schema envelopes. Raises DecodeError."""
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
            raise DecodeError('key: a document\'s key is {"id": …}, and this one has no id')
        return parse(found) if isinstance(found, str) else read(found)
