"""From a configuration to the parts that commands work with."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ch_sink.change import Headers, Records
from ch_sink.clickhouse import ClickHouseLedger, ClickHouseSettings, Client, connect
from ch_sink.config import Config
from ch_sink.decode.schema import RowSchema
from ch_sink.errors import DecodeError
from ch_sink.kafka import KafkaSettings, RangeConsumer, TopicOffsets, TopicState
from ch_sink.table.model import TargetTable
from ch_sink.table.spec import EngineChoice, TableSpec

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
    return ClickHouseLedger(client, config.state_database, config.tables.ledger, config.stream_name)


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


def sample(config: Config, topic: TopicState) -> Sampled:
    """Read the starts and ends of all partitions and find the row type that the newest events declare.

    Raises BrokerUnavailable, and KafkaError where the topic cannot be read.
    """
    from ch_sink.decode import sample_schema

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
    records = _joined(topic.topic, heads + tails)
    if not len(records):
        return Sampled(None, 0, f"topic {topic.topic} holds no record")
    try:
        schema = sample_schema(records)
    except DecodeError as error:
        return Sampled(None, len(records), str(error))
    why = "" if schema else f"none of the {len(records)} records looked at in topic {topic.topic} is a change event"
    return Sampled(schema, len(records), why)


def _joined(topic: str, parts: list[Records]) -> Records:
    """All records in one: a sample has no order to keep but "starts before ends"."""
    headers: list[Headers | None] = [h for p in parts for h in (p.headers or [None] * len(p))]
    return Records(
        topic,
        0,
        np.arange(sum(len(p) for p in parts), dtype=np.int64),
        np.concatenate([np.zeros(0, dtype=np.int64), *(p.timestamps for p in parts)]),
        [key for p in parts for key in p.keys],
        [value for p in parts for value in p.values],
        headers if any(headers) else None,
    )


def key_columns(config: Config, schema: RowSchema | None, table: TargetTable | None = None) -> tuple[str, ...]:
    """Names of the key's columns: the topic's, else the configured ones; a primitive key has the table's one name."""
    if schema is not None and schema.key and all(f.name for f in schema.key):
        return tuple(f.name for f in schema.key)
    if config.key_columns:
        return config.key_columns
    primitive = schema is None or bool(schema.key)
    if primitive and table is not None and len(table.sorting_key) == 1:
        return table.sorting_key
    return ()


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
