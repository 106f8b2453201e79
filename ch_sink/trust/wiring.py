"""What a comparison needs, from a stream's configuration."""

from collections.abc import Callable
from functools import cache

from ch_sink.clickhouse import (
    ClickHouseDeadLetters,
    ClickHouseHandover,
    ClickHousePending,
    Client,
    detect,
    server_facts,
)
from ch_sink.config import Config
from ch_sink.decode import decoder_for
from ch_sink.discovery.job_topics import source_names
from ch_sink.discovery.look import look_into, schema_for
from ch_sink.discovery.wiring import client_of, kafka_settings, key_columns, ledger_of, topic_offsets
from ch_sink.kafka import schema_registry
from ch_sink.ports import Handover
from ch_sink.snapshot import open_source
from ch_sink.table.model import TargetTable
from ch_sink.trust.source_address import source_address
from ch_sink.trust.stoppable import Check, StoppableTopic, never_stops
from ch_sink.trust.subject import Subject
from ch_sink.trust.topic import KafkaTopic
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema
from ch_sink.types.defaults import is_constant
from ch_sink.types.sql import quote
from ch_sink.wiring.streams import stream_settings
from ch_sink.wiring.tasks import concerned_by

__all__ = ["filled_columns", "handover_of", "subject_of"]


def subject_of(config: Config, check: Check = never_stops) -> Subject:
    """The stream's table and topic; ``check`` ends what reads them. Raises ChSinkError if one of them is missing."""
    client, place, policy = client_of(config), config.clickhouse, config.policy()
    table = detect(client, place.database, place.table, policy)
    with topic_offsets(config) as offsets:
        topic = offsets.state(config.kafka.topic)
    seen = look_into(config, topic, server_facts(client).years)
    schema = schema_for(seen, table)
    tables = cache(lambda: source_names(config, config.kafka.topic))
    return Subject(
        client,
        stream_settings(config),
        table,
        key_columns(config, schema, table),
        filled_columns(table, schema),
        config.state_database,
        StoppableTopic(KafkaTopic(kafka_settings(config), config.kafka.topic, concerned_by(config)), check),
        lambda now, before: decoder_for(
            now,
            policy,
            want_before=before,
            format=config.format,
            registry=schema_registry(config.kafka.registry()),
        ),
        ledger_of(config, client),
        schema,
        (lambda: open_source(source_address(config, tables))) if config.source is not None else None,
        " AND ".join(f"{quote(name)} = {sql}" for name, sql in policy.columns.add if name in policy.columns.source),
        check,
        handover_of(config, client),
        lambda topic_id: _unresolved(config, client, topic_id),
    )


def _unresolved(config: Config, client: Client, topic_id: str) -> set[tuple[int, int]]:
    """Partition and offset of the records whose values the stream did not know, or waits for."""
    place, tables, name = config.state_database, config.tables, config.stream_name
    pending = ClickHousePending(client, place, tables.pending, name)
    waiting = {(p, r.offset) for own, p in pending.places() if own == topic_id for r in pending.open(topic_id, p)}
    return waiting | ClickHouseDeadLetters(client, place, tables.dead_letters, name, topic_id).places("unresolved")


def handover_of(config: Config, client: Client) -> Callable[[TargetTable], Handover]:
    """What the stream has kept of rows that changed their key, as a table's columns hold it."""
    name = config.tables.handover
    return lambda table: ClickHouseHandover(client, config.state_database, name, config.stream_name, table)


def filled_columns(table: TargetTable, schema: RowSchema | None) -> tuple[Column, ...]:
    """Columns that events fill. One that the topic never states, and whose default varies, is the user's own."""
    stated = {f.name for f in (*schema.fields, *schema.key)} if schema is not None else set()
    names = [c.name for c in table.columns]
    return tuple(
        c
        for c in table.stored_columns
        if c.name in stated or not c.default_expression or is_constant(c.default_expression, names)
    )
