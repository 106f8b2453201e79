"""The streams of a job's files: which topics exist now, and which tables their events are of."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ch_sink.clickhouse import Client
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.config import Config, Expansion, Job, expand
from ch_sink.config.expansion import Look
from ch_sink.config.naming import fields_in
from ch_sink.decode.source_tables import RecordsOfTable, SourceTables
from ch_sink.discovery.wiring import client_of, kafka_settings, topic_offsets
from ch_sink.errors import BrokerUnavailable, ChSinkError, ConfigError
from ch_sink.kafka import KafkaSettings, RangeConsumer, schema_registry
from ch_sink.model.change import Records
from ch_sink.model.values import SourceTable, TopicState, source_table_of

_ENOUGH = 2_000
"""Records of a table that show what its columns are."""


def tables_in(records: Records, tables: SourceTables) -> set[SourceTable]:
    """The source tables that the records state. Raises RegistryError."""
    headers = records.headers or [None] * len(records)
    found = {tables.of(value, stated) for value, stated in zip(records.values, headers, strict=True)}
    return {table for table in found if table is not None}


def records_of_table(config: Config, topic: TopicState) -> Iterator[Records]:
    """The first records of the stream's source table in each partition. Raises KafkaError, RegistryError."""
    mine = RecordsOfTable(config.source_table, schema_registry(config.kafka.registry()), config.policy().events)
    consumer = RangeConsumer(kafka_settings(config), patience=20.0)
    try:
        for partition, low in topic.low.items():
            count = 0
            for records in consumer.read(topic.topic, partition, low, topic.high[partition]):
                some = mine.among(records)
                count += len(some)
                if len(some):
                    yield some
                if count >= _ENOUGH:
                    break
    finally:
        consumer.close()


@dataclass(slots=True)
class TablesOfTopics:
    """The source tables of whole topics: each look reads what has come since the one before."""

    _reached: dict[tuple[str, int], int] = field(default_factory=dict)
    """Topic id and partition → the offset up to which it was read."""
    _found: dict[str, set[SourceTable]] = field(default_factory=dict)
    """By topic id."""

    def __call__(self, config: Config, topic: str) -> set[SourceTable]:
        """See Look. Raises KafkaError, RegistryError."""
        with topic_offsets(config) as offsets:
            state = offsets.state(topic)
        stated = SourceTables(schema_registry(config.kafka.registry()), config.policy().events)
        tables = self._found.setdefault(state.topic_id, set())
        held = False
        consumer = RangeConsumer(kafka_settings(config), patience=20.0)
        try:
            for partition, low in state.low.items():
                high, place = state.high[partition], (state.topic_id, partition)
                held = held or high > low
                for records in consumer.read(topic, partition, max(low, self._reached.get(place, low)), high):
                    tables |= tables_in(records, stated)
                self._reached[place] = high
        finally:
            consumer.close()
        return set(tables) or ({SourceTable()} if held else set())


_SOURCE_TABLES = """\
SELECT stream, argMax(JSONExtractString(fact, 'terms', 'source_table'), (claim_number, written)) AS source_table
FROM $table WHERE entry = 'claim' GROUP BY stream"""
_FEW = 100
"""Tables up to which a query names them, in its URL."""
_SEEN = 2_000
"""Offsets at each end of a partition that are searched for source tables."""


def streams_of(
    jobs: Sequence[Job],
    *,
    taken: Iterable[Config] = (),
    away: Callable[[str], None] | None = None,
    look: Look | None = None,
    known: Callable[[Sequence[Job]], Collection[tuple[str, str]]] | None = None,
    only_topic: str = "",
) -> Expansion:
    """The streams that the files describe now. Files of one topic each are not looked up.

    ``away``: receives the error of brokers that do not answer; the topics are then those in the ledger.
    ``look``: finds the source tables of a topic, if not in its first and last events and in the ledger.
    ``only_topic``: the only topic to look into; empty for all.
    ``known``: the topics and source tables that were read before, if not those of the ledgers; asked if topics are
    refused.

    Raises KafkaError.
    """
    asked: dict[KafkaSettings, Collection[str]] = {}

    def existing(job: Job) -> Collection[str]:
        settings = kafka_settings(job.usual)
        if settings in asked:
            return asked[settings]
        try:
            asked[settings] = existing_topics(job.usual)
        except BrokerUnavailable as error:
            if away is None or fields_in(job.usual.clickhouse.database):
                raise
            away(f"{error}; only streams that have read something are shown")
            asked[settings] = recorded_topics(job.usual)
        return asked[settings]

    read_before = known or ReadBefore()

    def seen(config: Config, topic: str) -> Collection[SourceTable]:
        found = {table.name: table for table in source_names(config, topic)}
        read = {name for of, name in read_before(jobs) if of == topic and name} - found.keys()
        like = next(iter(found.values()), SourceTable())
        if read:
            found.pop("", None)
        return [*found.values(), *(source_table_of(name, like) for name in read)]

    return expand(jobs, existing, look or seen, taken=taken, known=lambda: read_before(jobs), only_topic=only_topic)


class ReadBefore:
    """The topics that ledgers know, each with the source table of a stream that has read it, empty for all.

    Each ledger is read once, and one that cannot be read is tried again next time.

    What a job itself begins to read after that is among its running streams.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, str, str], frozenset[tuple[str, str]]] = {}

    def __call__(self, jobs: Sequence[Job]) -> frozenset[tuple[str, str]]:
        """Those of the ledgers of these files; of a ledger that cannot be read, none."""
        found: set[tuple[str, str]] = set()
        for job in jobs:
            usual = job.usual
            if not fields_in(usual.clickhouse.database):
                place = usual.clickhouse.url, usual.state_database, usual.state_tables.ledger
                if place not in self._of:
                    with suppress(ChSinkError):
                        self._of[place] = _recorded_source_tables(usual)
                found |= self._of.get(place, frozenset())
        return frozenset(found)


def recorded_topics(config: Config) -> frozenset[str]:
    """The topics that the ledger knows; none if it does not exist. Raises ClickHouseError."""
    return _recorded(config, "topic")


def recorded_streams(configs: Iterable[Config]) -> frozenset[str]:
    """The names of all streams that have begun to read, in the ledgers of these. Raises ClickHouseError."""
    ledgers = {(c.clickhouse.url, c.state_database, c.state_tables.ledger): c for c in configs}
    return frozenset(name for config in ledgers.values() for name in _recorded(config, "stream"))


def _recorded_source_tables(config: Config) -> frozenset[tuple[str, str]]:
    """The topics that the ledger knows, each with the source table of a stream. Raises ClickHouseError."""
    if (ledger := _ledger_of(config)) is None:
        return frozenset()
    claims = ledger.rows(_SOURCE_TABLES)
    source_of = {str(row["stream"]): str(row["source_table"]) for row in claims}
    read = ledger.rows("SELECT DISTINCT stream, topic FROM $table WHERE topic != ''")
    return frozenset((str(row["topic"]), source_of.get(str(row["stream"]), "")) for row in read)


def _recorded(config: Config, column: str) -> frozenset[str]:
    if (ledger := _ledger_of(config)) is None:
        return frozenset()
    found = ledger.rows(f"SELECT DISTINCT {column} FROM $table WHERE topic != ''")
    return frozenset(str(row[column]) for row in found)


def _ledger_of(config: Config) -> StateTable | None:
    """None if it does not exist."""
    client = client_of(config)
    if not existing_tables(client, config.state_database, {config.state_tables.ledger}):
        return None
    return StateTable(client, config.state_database, config.state_tables.ledger)


def existing_tables(client: Client, database: str, names: Collection[str]) -> set[str]:
    """Those of the tables that exist. Raises ClickHouseError."""
    few = len(names) <= _FEW
    found = client.rows(
        "SELECT name FROM system.tables WHERE database = {database:String}"
        + (" AND name IN {names:Array(String)}" if few else ""),
        {"database": database, "names": list(names)} if few else {"database": database},
        doing=f"look for the tables of {database}",
    )
    return {str(row["name"]) for row in found}.intersection(names)


def chosen(pattern: str | None) -> Callable[[Config], bool]:
    """Whether a stream is meant by ``--only``: its name, topic or table matches the whole pattern.

    Raises ConfigError if it is not a pattern.
    """
    if pattern is None:
        return lambda _: True
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"--only {pattern!r} is not a pattern: {error}", hint="Write it as --only '.*orders'."
        ) from None

    def matches(config: Config) -> bool:
        place = config.clickhouse
        names = (config.stream_name, config.kafka.topic, place.table, f"{place.database}.{place.table}")
        return any(wanted.fullmatch(name) for name in names)

    return matches


def existing_topics(config: Config) -> frozenset[str]:
    """The names of all topics. Raises KafkaError."""
    with topic_offsets(config) as offsets:
        return offsets.names()


def source_names(config: Config, topic: str) -> set[SourceTable]:
    """The source tables of the first and last events of each partition, a nameless one if events state none.

    Raises KafkaError.
    """
    stated = SourceTables(schema_registry(config.kafka.registry()), config.policy().events)
    consumer = RangeConsumer(kafka_settings(config), patience=20.0)
    found: set[SourceTable] = set()
    try:
        with topic_offsets(config) as offsets:
            state = offsets.state(topic)
        for partition, low in state.low.items():
            high = state.high[partition]
            middle = max(low, high - _SEEN)
            for start, end in ((middle, high), (low, min(middle, low + _SEEN))):
                for records in consumer.read(topic, partition, start, end):
                    found |= tables_in(records, stated)
    finally:
        consumer.close()
    held = any(state.high[p] > low for p, low in state.low.items())
    return found or ({SourceTable()} if held else set())
