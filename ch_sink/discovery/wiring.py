"""Builds what commands need from a configuration: client, ledger, Kafka settings, table specification."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ch_sink.clickhouse import (
    ClickHouseDeadLetters,
    ClickHouseHandover,
    ClickHouseLedger,
    ClickHousePending,
    ClickHouseSettings,
    ClickHouseStreamStates,
    Client,
    connect,
)
from ch_sink.config import Config
from ch_sink.kafka import KafkaSettings, TopicOffsets
from ch_sink.table.model import Family, TargetTable
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.types.connect import RowSchema


def client_of(config: Config) -> Client:
    """The ClickHouse client. Raises ClickHouseUnavailable, AccessDenied."""
    return connect(ClickHouseSettings(**config.clickhouse.connection()))


def ledger_of(config: Config, client: Client) -> ClickHouseLedger:
    """The stream's ledger."""
    return ClickHouseLedger(client, config.state_database, config.state_tables.ledger, config.stream_name)


def dead_letters_of(config: Config, client: Client, topic_id: str) -> ClickHouseDeadLetters:
    """The stream's dead letters of one topic."""
    place = config.state_database, config.state_tables.dead_letters, config.stream_name
    return ClickHouseDeadLetters(client, *place, topic_id)


def open_letters(config: Config, client: Client) -> dict[str, int]:
    """How many of the stream's dead letters are open, of all its topics, by kind. Raises ClickHouseError."""
    return dead_letters_of(config, client, "").count()


def pending_of(config: Config, client: Client) -> ClickHousePending:
    """The stream's waiting changes."""
    return ClickHousePending(client, config.state_database, config.state_tables.pending, config.stream_name)


def handover_of(config: Config, client: Client, table: TargetTable) -> ClickHouseHandover:
    """The values that the stream keeps of rows that changed their key, as this table's columns hold it."""
    return ClickHouseHandover(client, config.state_database, config.state_tables.handover, config.stream_name, table)


def states_of(config: Config, settings: ClickHouseSettings) -> ClickHouseStreamStates:
    """The states of all streams of the configuration's ledger. Connects to nothing yet."""
    return ClickHouseStreamStates(settings, config.state_database, config.state_tables.ledger)


def states_by_ledger(configs: Sequence[Config]) -> list[tuple[ClickHouseStreamStates, list[Config]]]:
    """The configurations that share a ledger, with the states of their streams. Raises ClickHouseUnavailable, …"""
    groups: dict[ClickHouseStreamStates, list[Config]] = {}
    for config in configs:
        groups.setdefault(states_of(config, client_of(config).settings), []).append(config)
    return list(groups.items())


def kafka_settings(config: Config) -> KafkaSettings:
    """The user's librdkafka properties."""
    return KafkaSettings(config.kafka.client())


@contextmanager
def topic_offsets(config: Config) -> Iterator[TopicOffsets]:
    """Access to topic ids and watermarks, closed on exit."""
    offsets = TopicOffsets(kafka_settings(config))
    try:
        yield offsets
    finally:
        offsets.close()


def key_columns(config: Config, schema: RowSchema | None, table: TargetTable | None = None) -> tuple[str, ...]:
    """Names of the key's columns: the topic's, else the configured ones.

    A primitive key is the table's only sorting column. If nothing is known about the topic, the table's sorting
    columns are the key, but for the sink's own: a VersionedCollapsingMergeTree has its version in the sorting key.
    """
    if schema is not None and schema.key and all(f.name for f in schema.key):
        return tuple(f.name for f in schema.key)
    if config.key_columns:
        return _named(config)
    if table is None or (schema is not None and not schema.key):
        return ()
    names = {c.name for c in table.columns} - table.system_columns
    assumed = tuple(name for name in table.sorting_key if name in names)
    return assumed if schema is None or len(assumed) == 1 else ()


def views_key(
    config: Config, schema: RowSchema | None, table: TargetTable, recorded: Sequence[str]
) -> tuple[str, ...] | None:
    """The key by which the views of a history show its rows, () if it has none; None while nothing says it.

    A history may be sorted by anything, so its sorting columns say nothing of its key. ``recorded``: the key by which
    the stream has read the topic, if any.
    """
    if schema is not None or table.engine.family is not Family.MERGE_TREE:
        return key_columns(config, schema, table)
    chosen = config.policy().columns
    return chosen.shown_key(config.key_columns or recorded) or None


VIEWS_LATER = "Run `ch_sink init CONFIG --apply` again once the topic holds change events, or set key_columns before"
"""The steps that create a history's views."""


def _named(config: Config) -> tuple[str, ...]:
    """The configured key's columns under the table's names."""
    return tuple(config.policy().columns.target(name) for name in config.key_columns)


def table_spec(config: Config) -> TableSpec:
    """The table that ``init`` creates. Raises ConfigError for an unknown engine."""
    wanted = config.init
    return TableSpec(
        database=config.clickhouse.database,
        table=config.clickhouse.table,
        engine=EngineChoice.parse(config.engine or "replacing"),
        order_by=wanted.order_by,
        partition_by=wanted.partition_by,
        ttl=wanted.ttl,
        cluster=config.clickhouse.cluster,
        replication=wanted.replication,
        key_columns=_named(config),
        allow_nullable_key=wanted.allow_nullable_key,
        added_fields=config.flattened.columns,
        types=wanted.types(),
        row_policy_roles=wanted.row_policy_roles,
        row_policy_except=(config.clickhouse.username,),
        settings=tuple(sorted(wanted.settings.items())),
        state_tables={
            "ledger": config.state_tables.ledger,
            "dead_letters": config.state_tables.dead_letters,
            "handover": config.state_tables.handover,
            "pending": config.state_tables.pending,
            "columns": config.state_tables.columns,
        },
    )
