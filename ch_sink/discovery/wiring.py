"""From a configuration to the parts that commands work with."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ch_sink.clickhouse import ClickHouseLedger, ClickHouseSettings, Client, connect
from ch_sink.config import Config
from ch_sink.discovery.connector import connector_of
from ch_sink.discovery.sample import flattened_deletes, sample_schema, unreadable
from ch_sink.errors import DecodeError
from ch_sink.kafka import KafkaSettings, RangeConsumer, TopicOffsets, schema_registry
from ch_sink.model.change import Records
from ch_sink.model.topic import TopicState
from ch_sink.table.model import TargetTable
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.types.column import WIDE_YEARS, Years
from ch_sink.types.connect import RowSchema

__all__ = [
    "Sampled",
    "client_of",
    "kafka_settings",
    "key_columns",
    "ledger_of",
    "sample",
    "table_spec",
    "topic_offsets",
]

_HEAD, _TAIL = 500, 1_500
"""Offsets looked at per partition for a sample: from its start, and before its end."""


def client_of(config: Config) -> Client:
    """The ClickHouse client. Raises ClickHouseUnavailable, AccessDenied."""
    return connect(ClickHouseSettings(**config.clickhouse.connection()))


def ledger_of(config: Config, client: Client) -> ClickHouseLedger:
    """The stream's ledger."""
    return ClickHouseLedger(
        client, config.state_database, config.tables.ledger, config.stream_name, config.clickhouse.cluster
    )


def kafka_settings(config: Config) -> KafkaSettings:
    """The user's librdkafka properties."""
    return KafkaSettings(config.kafka.client())


@contextmanager
def topic_offsets(config: Config) -> Iterator[TopicOffsets]:
    """A view of the topic's ids and watermarks, closed at the end."""
    offsets = TopicOffsets(kafka_settings(config))
    try:
        yield offsets
    finally:
        offsets.close()


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a look into the topic told."""

    schema: RowSchema | None
    """Row type and key; None where no change event was found."""
    records: int
    why: str = ""
    """Why there is no schema."""
    connector: str = ""
    """``source.connector`` of the newest change event; empty where it is not told."""
    flattened: str = ""
    """How flattened events tell of deletes: marked, nulls, untold; empty where events are envelopes."""


def sample(config: Config, topic: TopicState, years: Years = WIDE_YEARS) -> Sampled:
    """Read the starts and ends of all partitions and find the row type that the newest events declare.

    ``years``: what the server's types hold; columns with sampled values beyond are marked.

    Raises BrokerUnavailable, KafkaError where the topic cannot be read, RegistryError.
    """
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
    parts = heads + sorted(tails, key=lambda part: int(part.timestamps[-1]))
    count = sum(len(part) for part in parts)
    if not count:
        return Sampled(None, 0, f"topic {topic.topic} holds no record")
    try:
        registry = schema_registry(config.kafka.registry())
        schema = sample_schema(parts, config.policy(), years, registry)
    except DecodeError as error:
        return Sampled(None, count, str(error))
    why = ""
    if schema is None:
        why = f"none of the {count} records looked at in topic {topic.topic} is a change event"
        reason = unreadable(parts, registry)
        why += f": {reason}" if reason else ""
    deletes = flattened_deletes(parts, config.policy(), registry)
    return Sampled(schema, count, why, connector_of(parts, registry), deletes)


def key_columns(config: Config, schema: RowSchema | None, table: TargetTable | None = None) -> tuple[str, ...]:
    """Names of the key's columns: the topic's, else the configured ones.

    A primitive key has the table's one sorting column; while the topic is not known, so has the key the table's.
    """
    if schema is not None and schema.key and all(f.name for f in schema.key):
        return tuple(f.name for f in schema.key)
    if config.key_columns:
        return config.key_columns
    if table is None or (schema is not None and not schema.key):
        return ()
    names = {c.name for c in table.columns}
    assumed = tuple(name for name in table.sorting_key if name in names)
    return assumed if schema is None or len(assumed) == 1 else ()


def table_spec(config: Config, *, engine: str | None = None, roles: tuple[str, ...] = ()) -> TableSpec:
    """The table that ``init`` makes. Raises ConfigError for an unknown engine."""
    wanted = config.init
    return TableSpec(
        database=config.clickhouse.database,
        table=config.clickhouse.table,
        engine=EngineChoice.parse(engine or wanted.engine),
        order_by=wanted.order_by,
        partition_by=wanted.partition_by,
        ttl=wanted.ttl,
        cluster=config.clickhouse.cluster,
        replication=wanted.replication,
        key_columns=config.key_columns,
        allow_nullable_key=wanted.allow_nullable_key,
        low_cardinality=wanted.low_cardinality,
        document_type=wanted.document_type,
        row_policy_roles=roles or wanted.row_policy_roles,
        row_policy_except=(config.clickhouse.username,),
        settings=tuple(sorted(wanted.settings.items())),
        state_tables={
            "ledger": config.tables.ledger,
            "dead_letters": config.tables.dead_letters,
            "handover": config.tables.handover,
            "pending": config.tables.pending,
        },
    )
