"""The rows and keys among sampled records, read without a table."""

from collections.abc import Iterator, Sequence

import msgspec

from ch_sink.decode.avro.events import as_json
from ch_sink.decode.event_form import changes_no_row
from ch_sink.decode.framing import Envelopes, Framed
from ch_sink.decode.key_layouts import as_written
from ch_sink.decode.key_learning import is_struct_text
from ch_sink.decode.unknown_columns import literal_type
from ch_sink.discovery.flattened_sample import enveloped
from ch_sink.errors import DecodeError
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy
from ch_sink.ports import SchemaRegistry
from ch_sink.types.connect import Field, SourceType

__all__ = ["Pair", "framed_payloads", "key_fields", "keys_in_order", "row_events", "row_pairs"]

Pair = tuple[bytes | None, bytes | None]
"""Key and value of a record."""


def row_events(
    chunks: Sequence[Records], policy: Policy, registry: SchemaRegistry | None
) -> tuple[list[tuple[Framed, bytes]], tuple[Field, ...]]:
    """The values of rows, flattened ones as envelopes, each with its framing; and the fields of the topic's key."""
    pairs = row_pairs(chunks, policy, registry)
    values = list(framed_payloads([v for _, v in pairs], registry))
    key = tuple(f for f in key_fields(keys_in_order(pairs), registry) if f.name not in policy.keys.ignored)
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
        except (DecodeError, msgspec.DecodeError, ValueError, RecursionError):
            continue
        row = isinstance(found, dict) and not changes_no_row(found, (), policy.events.fields_prefix)
        rows += row
        if row or found is None:
            kept.append((key, value))
    return kept if rows else pairs


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


def key_fields(keys: Sequence[bytes | None], registry: SchemaRegistry | None) -> tuple[Field, ...]:
    """The fields of the first key that can be read; a single one named ``""`` for a primitive key."""
    for framed, payload in framed_payloads(keys, registry):
        if framed.schema is not None:
            schema = framed.schema
            return as_written(schema.fields, payload) if schema.kind == "struct" else (Field("", schema),)
        try:
            found = msgspec.json.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError):
            if is_struct_text(payload) or not _is_text(payload):
                continue
            return (Field("", SourceType("string")),)  # StringConverter writes a text without quotes
        if isinstance(found, dict):
            return tuple(Field(name, literal_type(value) or SourceType("string")) for name, value in found.items())
        return (Field("", literal_type(found) or SourceType("string")),)
    return ()


def _is_text(payload: bytes) -> bool:
    try:
        return payload.decode().isprintable()
    except UnicodeDecodeError:
        return False
