"""Real Kafka and real ClickHouse behind the ports of a task."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from confluent_kafka import Message

from ch_sink.clickhouse import (
    AnyKeyLookup,
    ClickHousePending,
    ClickHouseWriter,
    Client,
    await_earlier_inserts,
)
from ch_sink.config import Config
from ch_sink.decode import decoder_for
from ch_sink.decode.source_tables import RecordsOfTable
from ch_sink.discovery.wiring import client_of, dead_letters_of, handover_of, kafka_settings, ledger_of, pending_of
from ch_sink.errors import DataLoss, StreamFailed
from ch_sink.kafka import KafkaHistory, KafkaSettings, RangeConsumer, range_consumer, schema_registry, slices_of
from ch_sink.model.change import Records
from ch_sink.pipeline.chunks import Chunk, cut
from ch_sink.pipeline.guards import Fencing
from ch_sink.pipeline.partition_sink import Attempt, Stores, open_sink
from ch_sink.pipeline.plans import BatchDecoder, Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import Fence, Pending, PendingRecord
from ch_sink.stream.run_task import TaskPorts, task_name
from ch_sink.stream.tasks import RangeTask, Task, patience, progress_entry
from ch_sink.table.model import TargetTable

_WITHHELD = b""
"""In place of a value; null would be a delete, and no change has an empty one."""


def batch_decoder(config: Config, table: TargetTable, before: bool) -> BatchDecoder:
    """A decoder for this table. ``before``: before images are wanted."""
    registry = schema_registry(config.kafka.registry())
    return decoder_for(table, config.policy(), want_before=before, format=config.format, registry=registry)


def task_ports(
    config: Config,
    task: Task,
    decoder: Callable[[TargetTable, bool], BatchDecoder],
    fetched: Sequence[Message] | None = None,
    *,
    letters: str = "",
) -> TaskPorts:
    """The ports of a task. Raises ClickHouseError.

    Args:
        decoder: for a table, with before images or not.
        fetched: the records of its range, if they have been read.
        letters: the topic's identity in dead letters, if it is another one.
    """
    client, policy, table = client_of(config), config.policy(), task.table
    kafka = kafka_settings(config)
    concerned = concerned_by(config, table)
    ledger = ledger_of(config, client)

    def begin() -> Fence:
        fence = ledger.begin(task.topic_id, task.partition, task.claim, task.work)
        await_earlier_inserts(client, table, fence, cluster=table.cluster or config.clickhouse.cluster)
        return fence

    sink = open_sink(
        task_name(task),
        Target.of(table, policy),
        lambda before: decoder(table, before),
        Ports(
            lookup=AnyKeyLookup(client, table),
            handover=handover_of(config, client, table),
            history=_History(kafka, task, concerned) if config.kafka.bootstrap else NoHistory(task.partition),
        ),
        Stores(
            ClickHouseWriter(client, table),
            dead_letters_of(config, client, letters or task.topic_id),
            _pending(client, config, task, kafka),
            ledger,
            lambda done: ledger.put_progress(progress_entry(task, done.end, done.state)),
        ),
        Attempt(
            Fencing(begin),
            task.changed,
            settled=isinstance(task, RangeTask) and task.settled,
            first=isinstance(task, RangeTask) and task.first,
            grouped=isinstance(task, RangeTask) and task.short,
            deadline=patience(task, config.handover_deadline),
        ),
    )

    def chunks(first: int) -> Iterator[Chunk]:
        assert isinstance(task, RangeTask)
        if fetched is None:
            return _read_chunks(kafka, concerned, task, first)
        size, most = task.chunk_offsets, task.chunk_bytes
        read = slices_of(fetched, task.topic, task.partition, first, max(size // 4, 1), max(most // 4, 1))
        return cut(map(concerned, read), first, task.end, chunk_offsets=size, chunk_bytes=most)

    return TaskPorts(sink, chunks, ledger)


def _pending(client: Client, config: Config, task: Task, kafka: KafkaSettings) -> Pending:
    if not config.policy().columns.hides:
        return pending_of(config, client)
    return WithheldPending(
        client,
        config.state_database,
        config.state_tables.pending,
        config.stream_name,
        lambda partition, offset: _record_at(kafka, task.topic, partition, offset),
    )


def _record_at(kafka: KafkaSettings, topic: str, partition: int, offset: int) -> Records | None:
    """The record at an offset, None if the topic does not hold it. Raises KafkaError."""
    with range_consumer(kafka) as consumer:
        try:
            return next(iter(consumer.read(topic, partition, offset, offset + 1)), None)
        except DataLoss:
            return None


def _read_chunks(
    kafka: KafkaSettings, concerned: Callable[[Records], Records], task: RangeTask, first: int
) -> Iterator[Chunk]:
    """The chunks of a task's range from this offset on. Raises KafkaError."""
    size, most = task.chunk_offsets, task.chunk_bytes
    with range_consumer(kafka) as consumer:
        slices = consumer.read(task.topic, task.partition, first, task.end, max(size // 4, 1), max(most // 4, 1))
        with closing(slices):
            yield from cut(map(concerned, slices), first, task.end, chunk_offsets=size, chunk_bytes=most)


def concerned_by(config: Config, table: TargetTable) -> Callable[[Records], Records]:
    """The part of a topic's records that the stream applies. ``table``: its columns tell what a row is."""
    if not config.source_table:
        return lambda records: records
    columns = [column.name for column in table.source_columns]
    registry, events = schema_registry(config.kafka.registry()), config.policy().events
    return RecordsOfTable(config.source_table, registry, events, columns).among


@dataclass(frozen=True, slots=True)
class _History:
    """Earlier records of a partition, by a consumer that is opened when a position first steps back."""

    kafka: KafkaSettings
    task: Task
    concerned: Callable[[Records], Records]

    def before(self, offset: int, limit: int) -> Records:
        consumer = RangeConsumer(self.kafka)
        try:
            earlier = KafkaHistory(consumer, self.task.topic, self.task.partition).before(offset, limit)
            return self.concerned(earlier)
        finally:
            consumer.close()


@dataclass(frozen=True, slots=True)
class NoHistory:
    """Of a stream without brokers: what only earlier records tell is refused, since a guess may be wrong."""

    partition: int

    def before(self, offset: int, limit: int) -> Records:
        """Raises StreamFailed, unless the topic cannot have any."""
        if not offset or not limit:
            nothing = np.zeros(0, dtype=np.int64)
            return Records("", self.partition, nothing, nothing, [], [])
        raise StreamFailed(
            f"partition {self.partition}: whether records from offset {offset} on were sent before "
            "is visible from earlier ones only, and no broker is configured to read those",
            hint="Name the brokers (kafka.bootstrap.servers): up to redelivery_scan records are read from them then.",
        )


@dataclass(slots=True)
class WithheldPending(ClickHousePending):
    """Keeps neither values nor headers."""

    read: Callable[[int, int], Records | None]
    """The record at an offset of a partition, None if the topic does not hold it."""

    def put(
        self,
        topic_id: str,
        partition: int,
        records: Sequence[PendingRecord],
        token: str,
        *,
        fence: Fence | None = None,
    ) -> None:
        bare = [r if r.value is None else replace(r, value=_WITHHELD, headers=()) for r in records]
        ClickHousePending.put(self, topic_id, partition, bare, token, fence=fence)

    def open(self, topic_id: str, partition: int) -> list[PendingRecord]:
        """See Pending. Raises DataLoss if Kafka does not hold a record that waits."""
        found = ClickHousePending.open(self, topic_id, partition)
        return [self._whole(partition, r) if r.swap is None and r.value == _WITHHELD else r for r in found]

    def _whole(self, partition: int, record: PendingRecord) -> PendingRecord:
        found = self.read(partition, record.offset)
        if (
            found is None
            or not len(found)
            or (found.keys[0], int(found.timestamps[0])) != (record.key, record.timestamp)
        ):
            raise DataLoss(
                f"the change at offset {record.offset} of partition {partition} waits for values of another row, and "
                "the topic no longer holds it; since columns are masked or excluded, it was not stored",
                hint="Fill the table again: `ch_sink resync CONFIG --apply`.",
            )
        headers = found.headers[0] if found.headers is not None else None
        return replace(record, value=found.values[0], headers=headers or ())
