"""Finds the row schema of a topic from sampled records; ``init`` creates the table from it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import msgspec

from ch_sink.decode.avro.events import as_json
from ch_sink.decode.framing import Envelopes, Framed
from ch_sink.decode.json.layout import row_fields
from ch_sink.decode.mongodb.columns import key_column_name
from ch_sink.decode.mongodb.texts import field_type, key_type
from ch_sink.decode.mongodb.updates import MISSING, at
from ch_sink.decode.mongodb.values import parse, read
from ch_sink.decode.unknown_columns import join_types, literal_type
from ch_sink.discovery.sample_rows import (
    RawImages,
    RowEvent,
    connector_of,
    decoded,
    deletes_announced,
    fields_of_keys,
    framed_payloads,
    keys_in_order,
    row_events,
    row_pairs,
)
from ch_sink.errors import ChSinkError, DecodeError
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy
from ch_sink.ports import SchemaRegistry
from ch_sink.types import DOCUMENT, WIDE, OutOfRange, clickhouse_type, converter
from ch_sink.types.column import DIGITS, ISO, WIDE_YEARS, Column, Years
from ch_sink.types.connect import Field, RowSchema, SourceType

_WHOLE = SourceType("string", "io.debezium.data.Json", (DOCUMENT,), optional=False)


class _Source(msgspec.Struct, gc=False):
    connector: str = ""


class _DocumentEvent(msgspec.Struct, gc=False):
    source: _Source | None = None
    after: Any = None
    before: Any = None


class _Key(msgspec.Struct, gc=False):
    id: Any = None


def document_schema(values: Iterable[bytes], keys: Iterable[bytes], policy: Policy) -> RowSchema | None:
    """Key, configured columns and document, from payloads without their schema envelopes; None for other topics.

    The types of ``document.columns`` are those of the sampled documents' values.
    """
    documents: list[Any] = []
    found = False
    for event in decoded(values, _DocumentEvent):
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
    for key in decoded(keys, _Key):
        with suppress(DecodeError, ValueError, RecursionError):
            out.append(parse(key.id) if isinstance(key.id, str) else read(key.id))
    return out


_TEMPORAL = ("Date32", "DateTime64")
_FRACTION = re.compile(rb"\.(\d{7,9})(?!\d)")


def sample_schema(
    records: Records | Sequence[Records],
    policy: Policy | None = None,
    years: Years = WIDE_YEARS,
    registry: SchemaRegistry | None = None,
    key_names: Sequence[str] = (),
) -> RowSchema | None:
    """Row and key of a topic, from records of one or more of its partitions; None if no record shows it.

    If records carry schema envelopes or are in Avro, the schema of the last record counts; columns that only earlier
    schemas have follow as nullable. Types of schemaless rows are inferred: boolean, integer, float, text, and JSON for
    the rest, all nullable except the key. A date or timestamp column with sampled values beyond the range of
    ClickHouse's types is marked wide (it becomes a String); ``years`` is the range of the server's types.
    ``policy.keys.columns`` names the key if the topic has no Kafka keys, ``key_names`` that of several which records
    show. Fields that flattening adds to rows are not columns.

    Raises RegistryError if the schema registry does not answer.
    """
    chunks = [records] if isinstance(records, Records) else list(records)
    policy = policy or Policy()
    pairs = row_pairs(chunks, policy, registry)
    payloads = [payload for _, payload in framed_payloads([v for _, v in pairs], registry)]
    keys = [payload for _, payload in framed_payloads(keys_in_order(pairs), registry)]
    documents = document_schema(payloads, keys, policy)
    if documents is not None:
        return documents
    values, key = row_events(chunks, policy, registry, key_names)
    connector = connector_of(chunks, registry)
    fields = _declared(values, policy, years, connector)
    inferred = fields is None
    if fields is None:
        fields = _inferred(values, {f.name for f in key} | set(policy.keys.columns))
    if fields is None:
        return None
    by_name = {f.name: f for f in fields}
    if not key:
        key = tuple(by_name[name] for name in key_names or policy.keys.columns if name in by_name)
    # The row's schema may state more about a key column than the key's schema, such as that it is wide.
    key = tuple(by_name.get(f.name, f) if f.name else f for f in key)
    return RowSchema(fields, tuple(Field(f.name, replace(f.type, optional=False)) for f in key), inferred)


def flattened_deletes(
    records: Sequence[Records], policy: Policy, registry: SchemaRegistry | None = None
) -> Literal["", "marked", "nulls", "unseen"]:
    """How flattened events announce deletes: by a field or by null values; empty if no event is flattened.

    Raises RegistryError if the schema registry does not answer.
    """
    pairs = row_pairs(records, policy, registry)
    values = list(framed_payloads([v for _, v in pairs], registry))
    key = {f.name for f in next(fields_of_keys(keys_in_order(pairs), registry), ())}
    keyed = [v for k, v in pairs if k]
    nulls = len(keyed) - sum(1 for _ in framed_payloads(keyed, registry))
    return deletes_announced(values, nulls, key | set(policy.keys.columns), policy.events)


def unreadable(chunks: Sequence[Records], registry: SchemaRegistry | None = None) -> str | None:
    """Why the first unreadable value cannot be read, and the next step; None if all can be read."""
    envelopes = Envelopes(registry)
    for value in (v for chunk in chunks for v in chunk.values if v is not None):
        try:
            as_json(*envelopes.one(value))
        except DecodeError as error:
            return f"{error.message} ({error.hint})" if error.hint else error.message
    return None


def _declared(
    values: list[tuple[Framed, bytes]], policy: Policy, years: Years, connector: str
) -> tuple[Field, ...] | None:
    framings = dict.fromkeys(framed for framed, _ in values)
    distinct = {framed: found for framed in framings if (found := row_fields(framed.schema, connector)) is not None}
    if not distinct:
        return None
    types = dict(next(distinct[framed] for framed, _ in reversed(values) if framed in distinct))
    for schema in distinct.values():
        types.update({n: replace(t, optional=True) for n, t in schema.items() if n not in types})
    payloads = [payload for framed, payload in values if framed.schema is not None]
    for name, digits in _fine_columns(types, payloads).items():
        types[name] = replace(types[name], parameters=(*types[name].parameters, (DIGITS, str(digits))))
    wide = _wide_columns(types, payloads, policy, years)
    return tuple(
        Field(name, replace(t, parameters=(*t.parameters, WIDE)) if name in wide else t) for name, t in types.items()
    )


def _fine_columns(types: dict[str, SourceType], payloads: list[bytes]) -> dict[str, int]:
    """Date-time columns sent as text whose sampled values have more than six sub-second digits, with their number."""
    texts = {name for name, declared in types.items() if declared.name in ISO}
    found: dict[str, int] = {}
    for image in _images(payloads) if texts else ():
        for name in texts & image.keys():
            fraction = _FRACTION.search(bytes(image[name]))
            if fraction is not None:
                found[name] = max(found.get(name, 0), len(fraction[1]))
    return found


def _images(payloads: list[bytes]) -> Iterator[dict[str, msgspec.Raw]]:
    """The row images of the payloads that can be read."""
    for event in decoded(payloads, RawImages):
        yield from (image for image in (event.after, event.before) if image)


def _wide_columns(types: dict[str, SourceType], payloads: list[bytes], policy: Policy, years: Years) -> set[str]:
    """Names of the temporal columns with a sampled value that their column type cannot hold."""
    strict = replace(policy.values, out_of_range="fail")
    found: set[str] = set()
    temporal = {}
    for name, declared in types.items():
        chosen = clickhouse_type(replace(declared, optional=False))
        if chosen.startswith(_TEMPORAL):
            temporal[name] = converter(declared, Column(name, chosen), encoding="json", policy=strict, years=years)
    for image in _images(payloads) if temporal else ():
        for name, raw in image.items():
            if name in temporal and name not in found and bytes(raw) != b"null":
                try:
                    temporal[name].convert([msgspec.json.decode(raw, type=temporal[name].wire)])
                except OutOfRange:
                    found.add(name)
                except (ChSinkError, msgspec.DecodeError, ValueError):
                    continue
    return found


def _inferred(values: list[tuple[Framed, bytes]], key: set[str]) -> tuple[Field, ...] | None:
    types: dict[str, SourceType | None] = {}
    for event in decoded((payload for _, payload in values), RowEvent):
        if event.op in ("c", "r", "u") and event.after is not None:
            for name, value in event.after.items():
                types[name] = join_types(types.get(name), literal_type(value))
    if not types:
        return None
    return tuple(
        Field(name, replace(found or SourceType("string"), optional=name not in key)) for name, found in types.items()
    )
