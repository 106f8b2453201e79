"""Recognises by their content the kinds of record that change no row."""

from collections.abc import Collection
from typing import Any

import msgspec

from ch_sink.decode.event_form import skipped_kind
from ch_sink.decode.signal_table import FIELDS, names_signal
from ch_sink.errors import DecodeError
from ch_sink.model.change import Skipped
from ch_sink.types.converter import shown

__all__ = ["changes_no_row", "classify", "classify_document", "row_operations"]

row_operations = frozenset("crudt")
"""Operations that become rows of a ChangeBatch."""


def classify(op: str, payload: bytes) -> Skipped:
    """The kind of a payload whose ``op`` (empty: it has none) is no row change.

    Raises DecodeError if it is of no known kind.
    """
    if op == "m":
        return Skipped.MESSAGE
    if op:
        raise DecodeError(f"unknown operation {shown(op)}", hint="known are c, r, u, d, t and m")
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}") from error
    return classify_document(found)


def changes_no_row(found: Any, columns: Collection[str], prefix: str) -> bool:
    """Whether a payload is of a kind that changes no row, so that its key is not necessarily a row's.

    ``columns``: the table's; records that have no other fields are its rows. ``prefix``: as of ``names_signal``.
    """
    if not isinstance(found, dict) or found.keys() <= set(columns):
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
