"""Rows, keys and the connector of sampled records, read without a table; flattened rows as envelopes."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import msgspec

from ch_sink.decode.avro.events import as_json
from ch_sink.decode.event_form import DELETED, Form, Forms, changes_no_row, skipped_kind
from ch_sink.decode.framing import Envelopes, Framed
from ch_sink.decode.json.flat_layout import Added, flat_connector
from ch_sink.decode.key_layouts import as_written, is_struct_text
from ch_sink.decode.unknown_columns import literal_type
from ch_sink.errors import DecodeError
from ch_sink.model.change import Records
from ch_sink.model.policy import EventPolicy, Policy
from ch_sink.ports import SchemaRegistry
from ch_sink.types.connect import Field, SourceType, of_system


def enveloped(
    values: Sequence[tuple[Framed, bytes]], key: Collection[str], policy: EventPolicy
) -> list[tuple[Framed, bytes]]:
    """The values, each flattened row as the after image of a snapshot event.

    A value is a flattened row if it is not an envelope and has a key field (names in ``key``), an added field, or a
    schema that Debezium names as a row's. Added fields are dropped, except those in ``policy.meta_columns``.
    """
    forms, added = Forms(key, policy), Added(policy.fields_prefix)
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
    forms, added = Forms(key, policy), Added(policy.fields_prefix)
    rows = [row for framed, payload in values if (row := _row(framed, payload, forms, added, frozenset(key), policy))]
    if not rows:
        return ""
    if DELETED in rows[-1]:
        return "marked"
    return "nulls" if nulls else "unseen"


def _row(
    framed: Framed, payload: bytes, forms: Forms, added: Added, key: frozenset[str], policy: EventPolicy
) -> dict[str, msgspec.Raw] | None:
    if (found := next(decoded([payload], dict[str, msgspec.Raw]), None)) is None:
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


Pair = tuple[bytes | None, bytes | None]
"""Key and value of a record."""
_BROKEN = (DecodeError, msgspec.DecodeError, ValueError, RecursionError)
"""Errors of reading a payload that is not the expected JSON."""
_T = TypeVar("_T")


class RowEvent(msgspec.Struct, gc=False):
    """A change event with plain values."""

    op: str = ""
    after: dict[str, Any] | None = None
    before: dict[str, Any] | None = None


class RawImages(msgspec.Struct, gc=False):
    """The images of a change event, values as they are written."""

    after: dict[str, msgspec.Raw] | None = None
    before: dict[str, msgspec.Raw] | None = None


def decoded(payloads: Iterable[bytes], kind: type[_T]) -> Iterator[_T]:
    """The payloads that are JSON of this kind."""
    decoder = msgspec.json.Decoder(kind)
    for payload in payloads:
        try:
            found = decoder.decode(payload)
        except _BROKEN:
            continue
        yield found


def row_events(
    chunks: Sequence[Records], policy: Policy, registry: SchemaRegistry | None, wanted: Sequence[str] = ()
) -> tuple[list[tuple[Framed, bytes]], tuple[Field, ...]]:
    """The values of rows, flattened ones as envelopes, each with its framing; and the fields of the topic's key.

    ``wanted``: the names that these fields have; empty for those of the first key that can be read.
    """
    pairs = row_pairs(chunks, policy, registry)
    values = list(framed_payloads([v for _, v in pairs], registry))
    keys = fields_of_keys(keys_in_order(pairs), registry)
    own = (tuple(f for f in key if f.name not in policy.keys.ignored) for key in keys)
    key = next((key for key in own if not wanted or {f.name for f in key} == {*wanted}), ())
    return enveloped(values, {f.name for f in key} | set(policy.keys.columns), policy.events), key


def row_pairs(chunks: Sequence[Records], policy: Policy, registry: SchemaRegistry | None) -> list[Pair]:
    """Keys and values of the records, without those that change no row; all of them if there is no row."""
    pairs = [pair for chunk in chunks for pair in zip(chunk.keys, chunk.values, strict=True)]
    envelopes = Envelopes(registry)
    kept: list[Pair] = []
    rows = 0
    for key, value in pairs:
        try:
            found = msgspec.json.decode(as_json(*envelopes.one(value))) if value is not None else None
        except _BROKEN:
            continue
        row = _changes_row(found, policy)
        rows += row
        if row or found is None:
            kept.append((key, value))
    return kept if rows else pairs


def is_row(value: bytes, policy: Policy, envelopes: Envelopes) -> bool:
    """Whether a value can be read, and is not of a kind that changes no row. Raises RegistryError."""
    try:
        return _changes_row(msgspec.json.decode(as_json(*envelopes.one(value))), policy)
    except _BROKEN:
        return False


def _changes_row(found: Any, policy: Policy) -> bool:
    return isinstance(found, dict) and not changes_no_row(found, (), policy.events.fields_prefix)


def keys_in_order(pairs: Sequence[Pair]) -> list[bytes | None]:
    """The keys, those of rows first: the key of a null value may not be a row's."""
    return [k for k, v in pairs if v is not None] + [k for k, v in pairs if v is None]


def framed_payloads(values: Sequence[bytes | None], registry: SchemaRegistry | None) -> Iterator[tuple[Framed, bytes]]:
    """The framing and payload of each readable value; Avro payloads as JSON."""
    envelopes = Envelopes(registry)
    for value in values:
        if value is not None:
            try:
                framed, payload = envelopes.one(value)
                payload = as_json(framed, payload)
            except DecodeError:
                continue
            if payload != b"null":
                yield framed, payload


def fields_of_keys(keys: Sequence[bytes | None], registry: SchemaRegistry | None) -> Iterator[tuple[Field, ...]]:
    """The fields of each key that can be read; a single one named ``""`` for a primitive key."""
    for framed, payload in framed_payloads(keys, registry):
        if framed.schema is not None:
            schema = framed.schema
            yield as_written(schema.fields, payload) if schema.kind == "struct" else (Field("", schema),)
            continue
        try:
            found = msgspec.json.decode(payload)
        except _BROKEN:
            if is_struct_text(payload) or not _is_text(payload):
                continue
            yield (Field("", SourceType("string")),)  # StringConverter writes a text without quotes
            continue
        if isinstance(found, dict):
            yield tuple(Field(name, literal_type(value) or SourceType("string")) for name, value in found.items())
        else:
            yield (Field("", literal_type(found) or SourceType("string")),)


def _is_text(payload: bytes) -> bool:
    try:
        return payload.decode().isprintable()
    except UnicodeDecodeError:
        return False


class _Source(msgspec.Struct, gc=False):
    connector: str = ""


class _Event(msgspec.Struct, gc=False):
    source: _Source | None = None


_decoder = msgspec.json.Decoder(_Event)


def connector_of(parts: Sequence[Records], registry: SchemaRegistry | None = None) -> str:
    """The connector's name, from the last record that states it; empty if none does. Raises RegistryError."""
    envelopes = Envelopes(registry)
    for part in reversed(parts):
        for value in reversed(part.values):
            try:
                found = _decoder.decode(as_json(*envelopes.one(value))).source if value else None
            except _BROKEN:
                continue
            if found is not None and found.connector:
                return found.connector
    return ""
