"""Builds the parts of comparisons and fillings from a stream's configuration."""

from functools import cache, partial

from ch_sink.clickhouse import (
    ClickHouseStreamStates,
    Client,
    detect,
    planned_rollups,
    server_facts,
)
from ch_sink.config import Config
from ch_sink.decode import decoder_for
from ch_sink.discovery.job_topics import source_names
from ch_sink.discovery.look import look_into, schema_for
from ch_sink.discovery.wiring import (
    client_of,
    dead_letters_of,
    handover_of,
    kafka_settings,
    key_columns,
    ledger_of,
    pending_of,
    table_spec,
    topic_offsets,
)
from ch_sink.kafka import schema_registry
from ch_sink.snapshot import open_source
from ch_sink.trust.refill import Refill
from ch_sink.trust.shape import Wanted
from ch_sink.trust.source_address import source_address
from ch_sink.trust.subject import Subject, filled_columns
from ch_sink.trust.topic import Check, KafkaTopic, StoppableTopic, never_stops
from ch_sink.types.sql import quote
from ch_sink.wiring.streams import stream_settings
from ch_sink.wiring.tasks import concerned_by


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
        partial(handover_of, config, client),
        lambda topic_id: _unresolved(config, client, topic_id),
        planned_rollups(client, table, config.rollup_choices(), policy.columns),
    )


def _unresolved(config: Config, client: Client, topic_id: str) -> set[tuple[int, int]]:
    """Partition and offset of the records whose values the stream did not know, or waits for."""
    pending = pending_of(config, client)
    waiting = {(p, r.offset) for own, p in pending.places() if own == topic_id for r in pending.open(topic_id, p)}
    return waiting | dead_letters_of(config, client, topic_id).places("unresolved")


def refill_of(config: Config, patience: float, check: Check = never_stops) -> Refill:
    """The stream's table, topic and source. Raises ChSinkError if one of them is missing."""
    subject = subject_of(config, check)
    client, tables, place = subject.client, config.tables, config.clickhouse
    return Refill(
        subject,
        ClickHouseStreamStates(client, config.state_database, tables.ledger),
        pending_of(config, client),
        handover_of(config, client, subject.table),
        f"{quote(place.database)}.{quote(subject.settings.policy.table.notes)}",
        place.cluster,
        Wanted(table_spec(config), _stated(config)),
        patience,
    )


def _stated(config: Config) -> frozenset[str]:
    """The section ``init`` as the file states it."""
    return frozenset(config.init.model_fields_set) | ({"engine"} if config.engine is not None else set())
