"""Samples a topic: its row type, key and connector, and whatever prevents replicating it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ch_sink.config import Config
from ch_sink.decode.avro.columns import columns_of
from ch_sink.decode.mongodb.events import is_document_source
from ch_sink.discovery.connector_findings import Marks, Obstacle, marks_of, obstacle
from ch_sink.discovery.job_topics import records_of_table
from ch_sink.discovery.sample import flattened_deletes, sample_schema, unreadable
from ch_sink.discovery.sample_rows import connector_of, row_pairs
from ch_sink.discovery.stream_key import KeyRule, key_obstacle, shown_keys
from ch_sink.discovery.value_findings import Literals, sampled_literals
from ch_sink.discovery.wiring import kafka_settings
from ch_sink.errors import DecodeError, TableError
from ch_sink.kafka import RangeConsumer, schema_registry
from ch_sink.model.change import Records
from ch_sink.model.policy import ColumnPolicy, Policy
from ch_sink.model.values import TopicState
from ch_sink.pipeline.one_partition import without_keys
from ch_sink.ports import SchemaRegistry
from ch_sink.sources import refusal, source_for
from ch_sink.table.model import TargetTable
from ch_sink.table.spec import chosen_schema
from ch_sink.types.column import WIDE_YEARS, Years
from ch_sink.types.connect import Field, RowSchema

_PLAIN = re.compile(r"[\W_]+")
"""Characters of names that do not count in a comparison: a connector may have adjusted them for Avro."""
_HEAD, _TAIL = 500, 1_500
"""Offsets read per partition: from its start, and before its end."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Facts about a topic from sampled records."""

    schema: RowSchema | None
    """Row type and key; None if no change event was found."""
    records: int
    why: str = ""
    """Why there is no schema."""
    connector: str = ""
    """``source.connector`` of the newest change event; empty if no event states it."""
    flattened: str = ""
    """How flattened events announce deletes: marked, nulls, unseen; empty for envelopes."""
    obstacle: Obstacle | None = None
    """Why no table of this topic can equal its source."""
    avro: bool = False
    """The schema's names are valid in Avro, so they may differ from the source's."""
    literals: Literals = field(default_factory=dict)
    """Values by column, if the events do not declare their types."""
    marks: Marks = field(default_factory=Marks)
    """Signs that the connector or the converter alters values."""
    recorded: tuple[str, ...] = ()
    """The key by which the stream has read the topic; empty if it is still to learn it."""
    misnamed: tuple[str, ...] = ()
    """Columns of the user's choice that no event has, each with the one that may be meant, in words."""


def look_into(config: Config, topic: TopicState, years: Years = WIDE_YEARS, recorded: tuple[str, ...] = ()) -> Sampled:
    """Read the start and the end of every partition and examine them. ``years``: those that the server's types hold.

    ``recorded``: the key by which the stream has read the topic. Raises BrokerUnavailable, KafkaError if the topic
    cannot be read, RegistryError.
    """
    parts = _sample(config, topic)
    registry, rule = schema_registry(config.kafka.registry()), KeyRule(recorded, latest=config.start == "latest")
    seen = examine(parts, topic.topic, config.policy(), years, registry, len(topic.low), rule)
    return replace(seen, recorded=recorded)


def _sample(config: Config, topic: TopicState) -> list[Records]:
    """Records of the start and the end of every partition, by time."""
    if config.source_table:
        return sorted(records_of_table(config, topic), key=lambda part: int(part.timestamps[-1]))
    consumer = RangeConsumer(kafka_settings(config), patience=20.0)
    heads: list[Records] = []
    tails: list[Records] = []
    try:
        for partition, low in topic.low.items():
            high = topic.high[partition]
            cut = max(low, high - _TAIL)
            tails.extend(consumer.read(topic.topic, partition, cut, high))
            heads.extend(consumer.read(topic.topic, partition, low, min(cut, low + _HEAD)))
    finally:
        consumer.close()
    return heads + sorted(tails, key=lambda part: int(part.timestamps[-1]))


def examine(
    parts: Sequence[Records],
    topic: str,
    policy: Policy,
    years: Years = WIDE_YEARS,
    registry: SchemaRegistry | None = None,
    partitions: int = 1,
    rule: KeyRule = KeyRule(),  # noqa: B008 (immutable)
) -> Sampled:
    """The facts that sampled records of a topic show. ``parts`` are ordered by time. Raises RegistryError."""
    count = sum(len(part) for part in parts)
    if not count:
        return Sampled(None, 0, f"topic {topic} holds no record")
    connector = connector_of(parts, registry)
    found = obstacle(parts, topic, connector, policy, registry)
    keys = shown_keys(parts, policy, registry) if connector != "mongodb" else []
    try:
        schema = sample_schema(parts, policy, years, registry, rule.key_of(keys))
    except DecodeError as error:
        return Sampled(None, count, str(error), connector, obstacle=found)
    if found is None and schema is not None:
        found = key_obstacle(keys, topic, policy, rule)
    if found is None and schema is not None and partitions > 1:
        found = _lacking_keys(parts, topic, policy, registry)
    why = ""
    if schema is None:
        why = f"none of the {count} records sampled from topic {topic} is a change event"
        reason = unreadable(parts, registry)
        why += f": {reason}" if reason else ""
        why += ". If they are rows, set events: flattened" if policy.events.form == "auto" else ""
    deletes = flattened_deletes(parts, policy, registry)
    literals = sampled_literals(parts, policy, registry) if schema is not None and schema.inferred else {}
    avro = any(value[:1] == b"\0" for part in parts for value in part.values if value)
    marks = marks_of(parts, schema, connector, policy, registry) if schema is not None else Marks()
    return _chosen(Sampled(schema, count, why, connector, deletes, found, avro, literals, marks), policy)


def _lacking_keys(
    parts: Sequence[Records], topic: str, policy: Policy, registry: SchemaRegistry | None
) -> Obstacle | None:
    """The obstacle in a topic of several partitions whose records have no keys."""
    if any(key is not None for key, _ in row_pairs(parts, policy, registry)):
        return None
    refused = without_keys(topic)
    return Obstacle("partitions", refused.message, refused.hint or "")


def _chosen(seen: Sampled, policy: Policy) -> Sampled:
    """The sample under the table's names, with the columns that the user chose."""
    chosen = policy.columns
    if seen.schema is None or chosen == ColumnPolicy():
        return seen
    hidden = {*chosen.exclude, *dict(chosen.mask)}
    known = seen.connector and refusal(seen.connector) is None
    if known and is_document_source(source_for(seen.connector)) and (hidden or chosen.rename):
        return replace(seen, obstacle=seen.obstacle or _DOCUMENTS)
    try:
        schema = chosen_schema(seen.schema, chosen, policy.keys.columns)
    except TableError as error:
        return replace(seen, obstacle=seen.obstacle or Obstacle("columns", error.message, error.hint or ""))
    literals = {chosen.target(name): values for name, values in seen.literals.items() if name not in hidden}
    return replace(seen, schema=schema, literals=literals, misnamed=tuple(_misnamed(chosen, seen.schema)))


def _misnamed(chosen: ColumnPolicy, schema: RowSchema) -> Iterator[str]:
    """The names that events write otherwise: in other letter cases, or adjusted for Avro.

    Others may be meant for another topic of the file.
    """
    there = {_PLAIN.sub("", f.name.casefold()): f.name for f in schema.fields}
    for key, names in (("exclude", chosen.exclude), ("rename", dict(chosen.rename)), ("mask", dict(chosen.mask))):
        for name in names:
            own = there.get(_PLAIN.sub("", name.casefold()))
            if own is not None and schema.field(name) is None:
                yield f"columns.{key} names {name}, which no sampled event has; they have {own}"


_DOCUMENTS = Obstacle(
    "columns",
    "columns.exclude, rename and mask apply to rows, and this topic holds documents",
    "Choose document fields with document.columns, and set document.column to '' so that the whole document is "
    "not stored.",
)


def schema_for(seen: Sampled, table: TargetTable) -> RowSchema | None:
    """The row type with the names of the table's columns, which may hold characters that Avro does not allow.

    Records from before Avro may have them, too: of two fields that are one column, the later one counts.
    """
    schema = seen.schema
    if schema is None or not seen.avro:
        return schema
    there = [c.name for c in table.columns]
    adjusted = columns_of([f.name for f in (*schema.fields, *schema.key) if f.name not in there], there)

    def named(found: Sequence[Field]) -> dict[str, Field]:
        columns = (replace(f, name=adjusted.get(f.name, f.name)) for f in found)
        return {f.name: f for f in columns}

    fields, key = named(schema.fields), named(schema.key)
    for name in fields.keys() & key.keys():  # a field that some records have under another name looks optional
        kind = replace(fields[name].type, optional=key[name].type.optional)
        fields[name] = replace(fields[name], type=kind)
    return replace(schema, fields=tuple(fields.values()), key=tuple(key.values()))
