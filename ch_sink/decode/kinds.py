"""Kinds of record that are no row change, told by their content."""

from typing import Any

import msgspec

from ch_sink.change import Aside
from ch_sink.decode.forms import aside_kind
from ch_sink.decode.signals import FIELDS, SIGNALS
from ch_sink.decode.types.base import shown
from ch_sink.errors import DecodeError

__all__ = ["classify", "classify_document", "row_operations"]

row_operations = frozenset("crudt")
"""Operations that become rows of a ChangeBatch."""


def classify(op: str, payload: bytes) -> Aside:
    """The kind of a payload whose ``op`` (empty: it has none) is no row change.

    Raises DecodeError where it is none of the kinds that may be set aside.
    """
    if op == "m":
        return Aside.MESSAGE
    if op:
        raise DecodeError(f"unknown operation {shown(op)}", hint="known are c, r, u, d, t and m")
    return classify_document(msgspec.json.decode(payload))


def classify_document(found: Any) -> Aside:
    """The kind of a document that has no ``op``. Raises DecodeError like :func:`classify`."""
    if not isinstance(found, dict):
        raise DecodeError(f"expected a change event, found {shown(found)}")
    names = found.keys()
    kind = aside_kind(names)
    if kind is not None:
        return kind
    # Less than the whole kind: enough for what is no row of the table.
    if found.get("status") in ("BEGIN", "END") and "id" in names:
        return Aside.TRANSACTION
    if "ddl" in names or "tableChanges" in names:
        return Aside.SCHEMA_CHANGE
    if names == FIELDS and found["type"] in SIGNALS:
        return Aside.WATERMARK
    listed = ", ".join(repr(n) for n in list(names)[:8])
    raise DecodeError(
        f"no change event: there is no 'op' among its fields ({listed})",
        hint="the topic holds neither Debezium envelopes nor flattened rows of this table "
        "(events: flattened takes every object for a row)",
    )
