"""Puts sampled flattened rows back into envelopes, so that the rest of discovery only has to read envelopes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from ch_sink.decode.event_form import DELETED, Form, Forms, skipped_kind
from ch_sink.decode.flattened.layout import Added, flat_connector
from ch_sink.decode.framing import Framed
from ch_sink.model.policy import EventPolicy
from ch_sink.types.connect import Field, SourceType, of_system

__all__ = ["deletes_announced", "enveloped"]

_names = msgspec.json.Decoder(dict[str, msgspec.Raw])


def enveloped(
    values: Sequence[tuple[Framed, bytes]], key: Collection[str], policy: EventPolicy
) -> list[tuple[Framed, bytes]]:
    """The values, each flattened row as the after image of a snapshot event.

    A value is a flattened row if it is not an envelope and has a key field (names in ``key``), an added field, or a
    schema that Debezium names as a row's. Added fields are dropped, except those in ``policy.meta_columns``.
    """
    forms, added = Forms(key, policy), Added(policy.fields_prefix, policy.meta_columns)
    framings: dict[Framed, Framed] = {}
    out: list[tuple[Framed, bytes]] = []
    for framed, payload in values:
        row = _row(framed, payload, forms, added, frozenset(key), policy)
        if row is None:
            out.append((framed, payload))
            continue
        if framed not in framings:
            framings[framed] = _framing(framed, row, added, policy)
        kept = {n: v for n, v in row.items() if n in policy.meta_columns or not added.is_added(n)}
        out.append((framings[framed], b'{"op":"r","after":' + msgspec.json.encode(kept) + b"}"))
    return out


def deletes_announced(
    values: Sequence[tuple[Framed, bytes]], nulls: int, key: Collection[str], policy: EventPolicy
) -> Literal["", "marked", "nulls", "unseen"]:
    """How flattened events announce deletes: by a field of the rows or by null values; empty if there are no rows.

    ``nulls``: how many records have a key and no value.
    """
    forms, added = Forms(key, policy), Added(policy.fields_prefix, policy.meta_columns)
    rows = [row for framed, payload in values if (row := _row(framed, payload, forms, added, frozenset(key), policy))]
    if not rows:
        return ""
    if DELETED in rows[-1]:
        return "marked"
    return "nulls" if nulls else "unseen"


def _row(
    framed: Framed, payload: bytes, forms: Forms, added: Added, key: frozenset[str], policy: EventPolicy
) -> dict[str, msgspec.Raw] | None:
    try:
        found = _names.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if forms.of_names(found) is Form.FLATTENED:
        return found
    if policy.form == "envelope" or skipped_kind(found) is not None or ("op" in found and "source" in found):
        return None
    named = framed.schema is not None and (framed.schema.name or "").endswith(".Value")
    recognised = not key.isdisjoint(found) or any(added.is_added(name) for name in found)
    return found if named or recognised else None


def _framing(framed: Framed, row: Mapping[str, msgspec.Raw], added: Added, policy: EventPolicy) -> Framed:
    if framed.schema is None:
        return framed
    roles = added.roles(row)
    stated = bytes(row[roles["connector"]]).strip(b'"').decode() if "connector" in roles else ""
    kept = {f.name: f.type for f in framed.schema.fields if f.name in policy.meta_columns or not added.is_added(f.name)}
    types = of_system(kept, flat_connector(roles, stated if stated != "null" else ""))
    image = Field("after", replace(framed.schema, fields=tuple(Field(name, kind) for name, kind in types.items())))
    return Framed(framed.prefix, SourceType("struct", fields=(image,)), framed.avro)
