"""What a JSON object on a topic is: a change-event envelope, a flattened row, or neither."""

from collections.abc import Collection
from enum import Enum

import msgspec

from ch_sink.model.change import Skipped
from ch_sink.model.policy import EventPolicy
from ch_sink.types.connect import SourceType

__all__ = ["Form", "Forms", "OtherForm", "skipped_kind"]


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
_DELETED = "__deleted"
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
        if _DELETED in found:
            return Form.FLATTENED
        # If few fields match the table's columns, the record is a row of another table or not a row.
        row = {n for n in found if not (self._prefix and n.startswith(self._prefix))} | (found & self._columns)
        shared = len(row & self._columns)
        alike = shared * 2 > min(len(row), len(self._columns))
        return Form.FLATTENED if alike else Form.ENVELOPE

    def _are_columns(self, names: frozenset[str]) -> bool:
        """Whether a record is a row of the table although a kind that changes no row has the same fields."""
        row = names if not self._prefix else {n for n in names if n in self._columns or not n.startswith(self._prefix)}
        return row <= self._columns and not row <= _TIMES

    def of_schema(self, schema: SourceType) -> Form:
        """By a schema envelope's schema."""
        return self.of_names([f.name for f in schema.fields]) if schema.kind == "struct" else Form.ENVELOPE

    def of_payload(self, payload: bytes) -> Form:
        """By a schemaless object's text; the reader of envelopes reports text that cannot be read."""
        try:
            return self.of_names(_names.decode(payload))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return Form.ENVELOPE
