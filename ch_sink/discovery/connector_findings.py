"""Findings of ``check`` about the connector, its converter and its events, and which topics cannot be replicated."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from ch_sink.config import Config
from ch_sink.decode.key_layouts import REMEDY, is_struct_text, reason
from ch_sink.decode.source_tables import SourceTables
from ch_sink.discovery.job_topics import tables_in
from ch_sink.discovery.sample_rows import RowEvent, decoded, framed_payloads, row_events, row_pairs
from ch_sink.errors import ChSinkError
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy
from ch_sink.model.values import is_part
from ch_sink.pipeline.target import Target
from ch_sink.ports import SchemaRegistry
from ch_sink.sources import Other, RefusedConnector, refusal, refusal_of_cells, source_for
from ch_sink.table.checks import Finding
from ch_sink.table.model import TargetTable
from ch_sink.types.connect import RowSchema

_ANNOUNCED = {
    "marked": "deleted rows are marked by __deleted",
    "nulls": "null values are deletes",
    "unseen": "none of the sampled records is a delete",
}


def flattened_finding(deletes: str, config: Config) -> Finding:
    """``deletes``: how the events announce deletes (see `flattened_deletes`)."""
    order = "source_position" if config.version.strategy == "source_position" else "kafka_offset"
    text = f"{_ANNOUNCED[deletes]}; changes are ordered by {order}"
    if order == "kafka_offset":
        text += ", which loses a row if one statement swaps two keys (a deferrable constraint): see docs/formats.md"
    if deletes == "nulls" and config.tombstones == "ignore":
        return Finding(
            "warn",
            "flattened events",
            "null values are skipped (tombstones: ignore), and no row is marked as deleted: deleted rows stay",
            "Leave tombstones out, or set delete.tombstone.handling.mode: rewrite in ExtractNewRecordState.",
        )
    if deletes == "unseen":
        return Finding(
            "warn",
            "flattened events",
            text,
            "With delete.tombstone.handling.mode=drop the connector never sends deletes: set tombstone or rewrite.",
        )
    return Finding("ok", "flattened events", text)


_UUID = re.compile(rb'"?[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}"?')


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a topic cannot be served, and the next step."""

    title: str
    """Subject of the finding: key, source, outbox, partitions."""
    reason: str
    remedy: str


def obstacle(
    parts: Sequence[Records], topic: str, connector: str, policy: Policy, registry: SchemaRegistry | None = None
) -> Obstacle | None:
    """The first obstacle to replicating a topic; None if there is none. Raises RegistryError."""
    refused = refusal(connector) or _refusal_of_cells(parts, connector, policy, registry)
    if refused is not None:
        return Obstacle("source", refused.message, refused.hint or "")
    key = _struct_key(parts, policy, registry)
    if key is not None:
        return Obstacle("key", reason(topic, key), REMEDY)
    if _is_outbox(parts, policy, registry):
        return Obstacle(
            "outbox",
            f"topic {topic} holds messages of the outbox event router: each record is a separate event, its id is in "
            "the header 'id' and its key is the aggregate's, so a table with that key would keep only one event of "
            "each aggregate",
            "Let the connector write the outbox table itself to a topic, without the EventRouter transformation: its "
            "rows have the event's id as key. If the messages are whole rows and the newest one of each key is what "
            "you want, set events: flattened and key_columns.",
        )
    if policy.events.form != "flattened" and _are_cloud_events(parts, registry):
        return Obstacle(
            "CloudEvents",
            f"topic {topic} holds CloudEvents: rows are inside their data, and a table of them would hold the envelope",
            "Let the connector write its events with the JsonConverter or the AvroConverter.",
        )
    return None


def _are_cloud_events(parts: Sequence[Records], registry: SchemaRegistry | None) -> bool:
    """Whether every value is one of Debezium's CloudEventsConverter."""
    seen = 0
    for _, value, _ in _records(parts):
        for _, payload in framed_payloads([value], registry) if value is not None else ():
            found = next(decoded([payload], dict[str, msgspec.Raw]), {})
            if "specversion" not in found or not any(name.startswith("iodebezium") for name in found):
                return False
            seen += 1
    return seen > 0


def _refusal_of_cells(
    parts: Sequence[Records], connector: str, policy: Policy, registry: SchemaRegistry | None
) -> RefusedConnector | None:
    events = decoded((payload for _, payload in row_events(parts, policy, registry)[0]), RowEvent)
    first = next((event for event in events if event.after or event.before), None)
    return refusal_of_cells(connector, first.after or first.before) if first is not None else None


def _struct_key(parts: Sequence[Records], policy: Policy, registry: SchemaRegistry | None) -> bytes | None:
    for key, value in row_pairs(parts, policy, registry):
        if key is not None and value is not None and key[:1] != b"\0":
            return key if is_struct_text(key) else None
    return None


def _is_outbox(parts: Sequence[Records], policy: Policy, registry: SchemaRegistry | None) -> bool:
    """Whether every record has an event's id in the header ``id``, a primitive key, and no envelope as its value."""
    if policy.events.form == "envelope" or (policy.events.form == "flattened" and policy.keys.columns):
        return False
    seen = 0
    for key, value, headers in _records(parts):
        if value is None:
            continue
        ids = [content for name, content in headers if name == "id"]
        if len(ids) != 1 or ids[0] is None or _UUID.fullmatch(ids[0]) is None or not _is_primitive(key, registry):
            return False
        if any(_is_envelope(payload) for _, payload in framed_payloads([value], registry)):
            return False
        seen += 1
    return seen > 0


def _records(
    parts: Sequence[Records],
) -> Iterator[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]]:
    for part in parts:
        for place, (key, value) in enumerate(zip(part.keys, part.values, strict=True)):
            yield key, value, (part.headers[place] or []) if part.headers is not None else []


def _is_primitive(key: bytes | None, registry: SchemaRegistry | None) -> bool:
    for framed, payload in framed_payloads([key], registry):
        return framed.schema.kind != "struct" if framed.schema is not None else payload[:1] != b"{"
    return key is not None


def _is_envelope(payload: bytes) -> bool:
    found = next(decoded([payload], dict[str, msgspec.Raw]), {})
    return "op" in found and ("after" in found or "before" in found)


_POSTGRES = "postgresql"
_SECOND = {
    "io.debezium.time.Timestamp": 10**3,
    "org.apache.kafka.connect.data.Timestamp": 10**3,
    "io.debezium.time.MicroTimestamp": 10**6,
    "io.debezium.time.NanoTimestamp": 10**9,
}
_ROUNDING = ("mysql", "mariadb")
"""Connectors that read FLOAT as text in snapshots, which has six digits, and from the log as it is."""
_GREGORIAN = -12_219_292_800
"""1582-10-15 in seconds since 1970."""
_ZONED = "io.debezium.time.ZonedTimestamp"


@dataclass(frozen=True, slots=True)
class Marks:
    """Signs in sampled events that the connector or the converter alters values."""

    old_keys: tuple[str, ...] = ()
    """Columns of the key with times before 1582-10-15, which PostgreSQL's connector changes in snapshots."""
    defaults: tuple[str, ...] = ()
    """Columns that can be null and hold their default, while no such column is ever null."""
    only_snapshot: bool = False
    """All events are PostgreSQL's, and of a snapshot."""
    mixed: tuple[str, ...] = ()
    """The source tables of the events, if there are several and no field of the key tells their rows apart."""


def marks_of(
    parts: Sequence[Records], schema: RowSchema, connector: str, policy: Policy, registry: SchemaRegistry | None
) -> Marks:
    """The signs in a topic's events. Raises RegistryError."""
    events = list(decoded((payload for _, payload in row_events(parts, policy, registry)[0]), RowEvent))
    rows = [event.after for event in events if event.after is not None]
    of_postgres = connector == _POSTGRES
    return Marks(
        _old_keys(rows, schema) if of_postgres else (),
        _defaults(rows, schema) if not schema.inferred else (),
        of_postgres and bool(rows) and all(event.op == "r" for event in events),
        _mixed(parts, schema, policy, registry) if {f.name for f in schema.key} <= {*chain(*rows)} else (),
    )


def _mixed(
    parts: Sequence[Records], schema: RowSchema, policy: Policy, registry: SchemaRegistry | None
) -> tuple[str, ...]:
    """Where a field of the key is ignored, the operator has said that keys are unique without it."""
    if not schema.key or policy.keys.ignored:
        return ()
    tables = SourceTables(registry, policy.events)
    names = sorted({table.name for part in parts for table in tables_in(part, tables)})
    whole = tuple(name for name in names if not any(is_part(name, other) for other in names if other != name))
    return whole if len(whole) > 1 else ()


def _old_keys(rows: Sequence[Mapping[str, Any]], schema: RowSchema) -> tuple[str, ...]:
    found = []
    for field in schema.key:
        values = [row.get(field.name) for row in rows]
        ticks = _SECOND.get(field.type.name or "")
        old = any(isinstance(v, int) and v < _GREGORIAN * ticks for v in values) if ticks else False
        if field.type.name == _ZONED:
            old = any(isinstance(v, str) and v < "1582-10-15" for v in values)
        found += [field.name] if old else []
    return tuple(found)


def _defaults(rows: Sequence[Mapping[str, Any]], schema: RowSchema) -> tuple[str, ...]:
    some = [f for f in schema.fields if f.type.optional and f.type.has_default and f.type.default is not None]
    if any(f.name in row and row[f.name] is None for row in rows for f in some):
        return ()
    return tuple(f.name for f in some if any(row.get(f.name) == f.type.default for row in rows))


def change_findings(marks: Marks) -> Iterator[Finding]:
    """Warnings of values that are not the source's any more when they arrive."""
    if marks.old_keys:
        yield Finding(
            "warn",
            "old times",
            f"the key's {', '.join(marks.old_keys)} has times before 1582-10-15: in snapshots PostgreSQL's connector "
            "sends them some days off, in streamed changes as they are, so changes of such rows make new rows",
            "Once the stream has caught up: ch_sink repair CONFIG --against source --apply. See docs/types.md.",
        )
    if marks.defaults:
        yield Finding(
            "warn",
            "defaults",
            f"{', '.join(marks.defaults)}: no sampled row has NULL in a column with a default. Converters write the "
            "default instead unless configured otherwise, and the source's NULL is lost",
            "Set value.converter.replace.null.with.default=false at the connector. See docs/formats.md.",
        )
    if marks.mixed:
        shown = ", ".join(marks.mixed[:3]) + (", …" if marks.mixed[3:] else "")
        yield Finding(
            "warn",
            "source tables",
            f"the topic carries events of {len(marks.mixed)} source tables ({shown}), and keys do not say of which: "
            "rows of two tables with one key become one row",
            "Unless keys are unique over these tables, name one by source_table, or the topic in kafka.topics with "
            "split: true; or let the router add a field to keys (key.enforce.uniqueness).",
        )


def partition_finding(marks: Marks, topic: str, topics: Collection[str]) -> Iterator[Finding]:
    """A warning if a topic may be a partition's, whose changes go to the topic of its partitioned table."""
    roots = [other for other in topics if topic.startswith(other + "_") and other.count(".") == topic.count(".")]
    if marks.only_snapshot and roots:
        root = max(roots, key=len)
        yield Finding(
            "warn",
            "partition",
            f"all sampled events are of a snapshot, and there is the topic {root}: if this is a partition of that "
            "table and the connector has publish.via.partition.root=true, all later changes go there, and this table "
            "goes stale",
            f"tables:\n  - match: {re.escape(topic)}\n    skip: true",
        )


def source_finding(connector: str) -> Finding:
    """The order of this connector's changes; a warning if only Kafka's order is available."""
    source = source_for(connector)
    if isinstance(source, Other):
        return Finding(
            "warn",
            "source",
            f"connector {connector!r} is not known to ch_sink: changes are ordered by Kafka offset, and "
            "re-delivered events are applied again",
            "The table is exact once the stream has caught up, if each row keeps its Kafka key; in append mode a "
            "re-delivered change is stored twice. See docs/sources/other.md.",
        )
    return Finding("ok", "source", f"{connector}, ordered by {source.default_strategy}")


def rounded_findings(
    connector: str, table: TargetTable, key: Collection[str], schema: RowSchema | None
) -> Iterator[Finding]:
    """A failure if rows would be found again by a column that the connector rounds in snapshots only."""
    if connector not in _ROUNDING or not table.finds_by_all(key):
        return
    told = {f.name: f.type.kind for f in schema.fields} if schema is not None and not schema.inferred else {}
    kinds = {c.name: told.get(c.name, c.stated.kind if c.stated is not None else "") for c in table.source_columns}
    if names := [name for name, kind in kinds.items() if kind == "float32"]:
        yield Finding(
            "fail",
            "key",
            f"rows without a key are found again by all of their values, and {connector}'s connector rounds "
            f"{', '.join(names)} to six digits in snapshots only: changes and deletes would miss such rows",
            "Set key_columns, give the source's column another type (DOUBLE, DECIMAL), or leave it out by "
            "columns.exclude before the table is created.",
        )


def order_findings(connector: str, table: TargetTable, policy: Policy) -> Iterator[Finding]:
    """Findings about a table or configuration that cannot keep the order of this connector's changes."""
    source = source_for(connector)
    try:
        target = Target.of(table, policy)
        strategy, swaps = target.strategy(source), target.tells_swaps(source)
    except ChSinkError as error:
        yield Finding("fail", "order", str(error), error.hint)
        return
    if source.deferrable and not swaps:
        yield Finding(
            "warn",
            "order",
            f"ordered by {strategy}, transactions cannot be recognised: if one statement swaps two keys (a deferrable "
            "constraint), one of the rows is lost",
            "If that can happen, use envelopes, no tombstones: delete, and a version column UInt128, UInt256, "
            "UInt64 or Int64.",
        )
