"""The form of a record: a change-event envelope, a flattened row, or one of the kinds that change no row."""

from collections.abc import Collection
from enum import Enum
from typing import Any

import msgspec

from ch_sink.decode.parts import UNREADABLE
from ch_sink.errors import DecodeError
from ch_sink.model.change import Skipped
from ch_sink.model.policy import EventPolicy
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import shown


class OtherForm(Exception):
    """Some payloads of a group do not have the expected form."""


class Form(Enum):
    """Forms of a value."""

    ENVELOPE = "envelope"
    """Also every value that is not a row: the reader of envelopes skips it or reports what is wrong."""
    FLATTENED = "flattened"


_TIMES = frozenset(("ts_ms", "ts_us", "ts_ns"))
_BOUNDARY = frozenset(("status", "id", "event_count", "data_collections"))
_SCHEMA_CHANGES = (frozenset(("source", "ddl")), frozenset(("source", "tableChanges")))
_NOTIFICATION = frozenset(("id", "type", "aggregate_type", "additional_data"))
_IMAGES = frozenset(("before", "after", "source"))
DELETED = "__deleted"
"""The mark of a deleted row: this name never has a prefix."""
_names = msgspec.json.Decoder(dict[str, msgspec.Raw])


def skipped_kind(names: Collection[str]) -> Skipped | None:
    """The kind of record that has exactly these fields at its top level, if that kind changes no row."""
    found = frozenset(names)
    if found and found <= _TIMES:
        return Skipped.HEARTBEAT
    if found >= _BOUNDARY and found <= _BOUNDARY | _TIMES:
        return Skipped.TRANSACTION
    if any(found >= kind for kind in _SCHEMA_CHANGES):
        return Skipped.SCHEMA_CHANGE
    if found >= _NOTIFICATION and "op" not in found:
        return Skipped.NOTIFICATION
    return None


def _has(columns: Collection[str], names: Collection[str]) -> bool:
    """Whether a table has all of these. If they name a schema change, three quarters: it may lack a new column."""
    lacking = {*names}.difference(columns)
    return len(lacking) * 4 <= len(names) if skipped_kind(names) is Skipped.SCHEMA_CHANGE else not lacking


class Forms:
    """Determines the form of values meant for one table."""

    def __init__(self, columns: Collection[str], policy: EventPolicy) -> None:
        """``columns``: the source columns of the table; empty if there is no table yet."""
        self._columns = frozenset(columns)
        self._pinned = policy.form
        self._prefix = policy.fields_prefix

    def of_names(self, names: Collection[str]) -> Form:
        """By the names at the object's top level."""
        found = frozenset(names)
        if self._pinned == "envelope" or (skipped_kind(names) is not None and not self._are_columns(found)):
            return Form.ENVELOPE
        if self._pinned == "flattened":
            return Form.FLATTENED
        if "op" in found and not found.isdisjoint(_IMAGES):
            return Form.ENVELOPE
        if DELETED in found:
            return Form.FLATTENED
        # If few fields match the table's columns, the record is a row of another table or not a row.
        row = {n for n in found if not (self._prefix and n.startswith(self._prefix))} | (found & self._columns)
        shared = len(row & self._columns)
        alike = shared * 2 > min(len(row), len(self._columns))
        return Form.FLATTENED if alike else Form.ENVELOPE

    def _are_columns(self, names: frozenset[str]) -> bool:
        """Whether a record is a row of the table although a kind that changes no row has the same fields."""
        row = names if not self._prefix else {n for n in names if n in self._columns or not n.startswith(self._prefix)}
        return _has(self._columns, row) and not row <= _TIMES

    def of_schema(self, schema: SourceType) -> Form:
        """By a schema envelope's schema."""
        return self.of_names([f.name for f in schema.fields]) if schema.kind == "struct" else Form.ENVELOPE

    def of_payload(self, payload: bytes) -> Form:
        """By a schemaless object's text; the reader of envelopes reports text that cannot be read."""
        try:
            return self.of_names(_names.decode(payload))
        except UNREADABLE:
            return Form.ENVELOPE


row_operations = frozenset("crudt")
"""Operations that become rows of a ChangeBatch."""


def classify(op: str, payload: bytes) -> Skipped:
    """The kind of a payload whose ``op`` (empty: it has none) is not a row change.

    Raises DecodeError if it is of no known kind.
    """
    if op == "m":
        return Skipped.MESSAGE
    if op:
        raise DecodeError(f"unknown operation {shown(op)}", hint="known are c, r, u, d, t and m")
    try:
        found = msgspec.json.decode(payload)
    except UNREADABLE as error:
        raise DecodeError(f"not JSON: {error}") from error
    return classify_document(found)


def changes_no_row(found: Any, columns: Collection[str], prefix: str) -> bool:
    """Whether a payload is of a kind that changes no row, so that its key is not necessarily a row's.

    ``columns``: the table's; records of no other fields are its rows, see `_has`. ``prefix``: as of ``names_signal``.
    """
    if not isinstance(found, dict) or _has(columns, found):
        return False
    if skipped_kind(found.keys()) is not None or _is_message(found):
        return True
    return not set(columns) >= FIELDS and names_signal(found, prefix)


def _is_message(found: dict[str, Any]) -> bool:
    """Whether an object is a logical message; a flattened row may have a column ``op`` that holds "m"."""
    return found.get("op") == "m" and isinstance(found.get("message"), dict) and isinstance(found.get("source"), dict)


def classify_document(found: Any) -> Skipped:
    """The kind of a document that has no ``op``. Raises DecodeError like :func:`classify`."""
    if not isinstance(found, dict):
        raise DecodeError(f"expected a change event, found {shown(found)}")
    names = found.keys()
    kind = skipped_kind(names)
    if kind is not None:
        return kind
    # Only some of the kind's fields, which is enough for a record that is not a row of the table.
    if found.get("status") in ("BEGIN", "END") and "id" in names:
        return Skipped.TRANSACTION
    if "ddl" in names or "tableChanges" in names:
        return Skipped.SCHEMA_CHANGE
    if names == FIELDS and names_signal(found, ""):
        return Skipped.WATERMARK
    listed = ", ".join(repr(n) for n in list(names)[:8])
    raise DecodeError(
        f"not a change event: its fields ({listed}) do not include 'op'",
        hint="the topic holds neither Debezium envelopes nor flattened rows of this table "
        "(events: flattened reads every object as a row)",
    )


FIELDS = frozenset(("id", "type", "data"))
"""Columns of every signal table."""
WINDOW = b"snapshot-window-"
SIGNALS = frozenset(
    """
    snapshot-window-open snapshot-window-close execute-snapshot stop-snapshot pause-snapshot resume-snapshot log
    schema-changes set-binlog-position
    """.split()
)


def is_signal(payload: bytes, prefix: str) -> bool:
    """Whether an envelope or a flattened row is a signal: the window of an incremental snapshot opens, …

    ``prefix``: the prefix of fields that flattening adds to a row.
    """
    try:
        return names_signal(msgspec.json.decode(payload), prefix)
    except UNREADABLE:
        return False


def names_signal(found: Any, prefix: str) -> bool:
    """:func:`is_signal` of a decoded payload."""
    if not isinstance(found, dict):
        return False
    image = found.get("after") or found.get("before") or found
    if not isinstance(image, dict):
        return False
    names = {n for n in image if n != DELETED and not (prefix and n.startswith(prefix))}
    return names == FIELDS and isinstance(image["type"], str) and image["type"] in SIGNALS


class _Connector(msgspec.Struct, gc=False):
    connector: str = ""


class _Source(msgspec.Struct, gc=False):
    source: _Connector | None = None


_sources = msgspec.json.Decoder(_Source)


def connector_in(payload: bytes) -> str:
    """``source.connector`` of a payload; empty if it has none."""
    try:
        found = _sources.decode(payload).source
    except UNREADABLE:
        return ""
    return found.connector if found is not None else ""
