"""Topics that carry several source tables, as a router makes them: which tables, and the records of one of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ch_sink.config import Config, SourceNames
from ch_sink.decode.source_tables import RecordsOfTable, SourceTables
from ch_sink.discovery.wiring import kafka_settings, topic_offsets
from ch_sink.kafka import RangeConsumer, schema_registry
from ch_sink.model.change import Records
from ch_sink.model.values import TopicState
from ch_sink.ports import SchemaRegistry

__all__ = ["TablesOfTopics", "records_of_table", "tables_in"]

_ENOUGH = 2_000
"""Records of a table that show what its columns are."""


def tables_in(records: Records, registry: SchemaRegistry | None = None) -> set[SourceNames]:
    """The source tables that the records state. Raises RegistryError."""
    tables = SourceTables(registry)
    found = {tables.of(value) for value in records.values}
    return {SourceNames(t.database, t.schema, t.table) for t in found if t is not None}


def records_of_table(config: Config, topic: TopicState) -> Iterator[Records]:
    """The first records of the stream's source table in each partition. Raises KafkaError, RegistryError."""
    mine = RecordsOfTable(config.source_table, schema_registry(config.kafka.registry()))
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
    _found: dict[str, set[SourceNames]] = field(default_factory=dict)
    """By topic id."""

    def __call__(self, config: Config, topic: str) -> set[SourceNames]:
        """See Look. Raises KafkaError, RegistryError."""
        with topic_offsets(config) as offsets:
            state = offsets.state(topic)
        registry = schema_registry(config.kafka.registry())
        tables = self._found.setdefault(state.topic_id, set())
        held = False
        consumer = RangeConsumer(kafka_settings(config), patience=20.0)
        try:
            for partition, low in state.low.items():
                high, place = state.high[partition], (state.topic_id, partition)
                held = held or high > low
                for records in consumer.read(topic, partition, max(low, self._reached.get(place, low)), high):
                    tables |= tables_in(records, registry)
                self._reached[place] = high
        finally:
            consumer.close()
        return set(tables) or ({SourceNames()} if held else set())
