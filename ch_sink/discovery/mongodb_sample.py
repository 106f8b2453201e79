"""The row schema of a document topic from a sample: the key, the columns asked for, and the whole document."""

from collections.abc import Iterable
from typing import Any

import msgspec

from ch_sink.decode.mongodb.columns import key_column_name
from ch_sink.decode.mongodb.texts import field_type, key_type
from ch_sink.decode.mongodb.updates import MISSING, at
from ch_sink.decode.mongodb.values import parse, read
from ch_sink.errors import DecodeError
from ch_sink.model.policy import Policy
from ch_sink.types import DOCUMENT
from ch_sink.types.connect import Field, RowSchema, SourceType

__all__ = ["document_schema"]

_WHOLE = SourceType("string", "io.debezium.data.Json", (DOCUMENT,), optional=False)


class _Source(msgspec.Struct, gc=False):
    connector: str = ""


class _Event(msgspec.Struct, gc=False):
    source: _Source | None = None
    after: Any = None
    before: Any = None


class _Key(msgspec.Struct, gc=False):
    id: Any = None


_events, _keys = msgspec.json.Decoder(_Event), msgspec.json.Decoder(_Key)


def document_schema(values: Iterable[bytes], keys: Iterable[bytes], policy: Policy) -> RowSchema | None:
    """Key, configured columns and document, from payloads without their schema envelopes; None for other topics.

    The types of ``document.columns`` are those of the sampled documents' values.
    """
    documents: list[Any] = []
    found = False
    for payload in values:
        try:
            event = _events.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
        if event.source is not None and event.source.connector == "mongodb":
            found = True
            documents += [document for text in (event.after, event.before) if (document := _document(text)) is not None]
    if not found:
        return None
    name = key_column_name(policy)
    key = Field(name, key_type(_ids(keys)))
    fields = [key]
    for column, path in policy.documents.columns:
        if column != name and path:
            field_values = [value for d in documents if (value := at(d, tuple(path.split(".")))) is not MISSING]
            seen = field_type(field_values)
            fields.append(Field(column, seen or SourceType("string")))
    if policy.documents.column:
        fields.append(Field(policy.documents.column, _WHOLE))
    return RowSchema(tuple(fields), (key,), inferred=True)


def _document(text: Any) -> Any:
    if not isinstance(text, (str, dict)):
        return None
    try:
        return parse(text)
    except (DecodeError, ValueError, RecursionError):
        return None


def _ids(keys: Iterable[bytes]) -> list[Any]:
    out: list[Any] = []
    for payload in keys:
        try:
            found = _keys.decode(payload).id
            out.append(parse(found) if isinstance(found, str) else read(found))
        except (DecodeError, msgspec.DecodeError, ValueError, RecursionError):
            continue
    return out
