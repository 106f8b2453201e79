"""Real Kafka and real ClickHouse behind the ports, for the coordinator and for the tasks. No Spark."""

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from confluent_kafka import Message

from ch_sink.clickhouse import (
    AnyKeyLookup,
    ClickHouseDeadLetters,
    ClickHouseHandover,
    ClickHouseLedger,
    ClickHousePending,
    ClickHouseSettings,
    ClickHouseTableAdmin,
    ClickHouseWriter,
    Client,
    await_earlier_inserts,
    connect,
)
from ch_sink.config import Config
from ch_sink.decode import decoder_for
from ch_sink.decode.source_tables import RecordsOfTable
from ch_sink.errors import DataLoss
from ch_sink.kafka import (
    GroupCommits,
    GroupOffsets,
    KafkaHistory,
    KafkaSettings,
    RangeConsumer,
    TopicWatermarks,
    range_consumer,
    schema_registry,
    slices_of,
)
from ch_sink.model.change import Records
from ch_sink.model.topic import TopicState
from ch_sink.pipeline.chunks import Chunk, cut
from ch_sink.pipeline.fencing import Fencing
from ch_sink.pipeline.partition_sink import PartitionSink
from ch_sink.pipeline.plan import BatchDecoder, Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import ChunkCut, Fence, Pending
from ch_sink.spark.kept import kept_stream
from ch_sink.spark.withheld import WithheldPending
from ch_sink.stream.coordinator import StreamSettings
from ch_sink.stream.error_limits import ErrorLimits
from ch_sink.stream.ports import StreamPorts
from ch_sink.stream.rewind import rewind
from ch_sink.stream.run_task import TaskPorts, run_task, task_name
from ch_sink.stream.tasks import RangeTask, Task, TaskResult, patience, progress_entry
from ch_sink.table.model import TargetTable

__all__ = [
    "SharedTopics",
    "batch_decoder",
    "client_for",
    "concerned_by",
    "rewind_stream",
    "run_configured",
    "stream_ports",
    "stream_settings",
    "task_ports",
]


def stream_settings(config: Config) -> StreamSettings:
    """What the coordinator needs to know of the configuration."""
    return StreamSettings(
        config.stream_name,
        config.kafka.topic,
        config.policy(),
        config.chunk_offsets,
        config.chunk_bytes,
        config.start,
        config.on_data_loss,
        config.topic_recreated,
        ErrorLimits(config.errors.max, config.errors.max_rate),
        config.source_table,
    )


def stream_ports(config: Config, topics: "SharedTopics") -> StreamPorts:
    """The coordinator's ports; connects to ClickHouse. Raises ClickHouseError."""
    client, place = client_for(config), config.clickhouse
    kafka = KafkaSettings(config.kafka.client())
    return StreamPorts(
        ClickHouseLedger(client, config.state_database, config.tables.ledger, config.stream_name),
        ClickHouseTableAdmin(
            client,
            place.database,
            place.table,
            config.policy(),
            place.cluster,
            config.init.types(),
            config.rollup_choices(),
        ),
        _Topics(topics, kafka),
        ClickHousePending(client, config.state_database, config.tables.pending, config.stream_name),
        GroupOffsets(topics.commits(kafka), config.consumer_group),
        lambda topic_id: sum(
            ClickHouseDeadLetters(
                client, config.state_database, config.tables.dead_letters, config.stream_name, topic_id
            )
            .count()
            .values()
        ),
    )


def rewind_stream(config: Config) -> None:
    """Let the stream read its topic again, into the same table. Raises ChSinkError, also if a job has it now."""
    with closing(SharedTopics()) as topics:
        ports = stream_ports(config, topics)
        ports.ledger.claim(f"rewind-{uuid.uuid4().hex[:12]}")
        try:
            rewind(ports.ledger, ports.topics.state(config.kafka.topic))
        finally:
            ports.ledger.release()


@dataclass(slots=True)
class SharedTopics:
    """One client for each broker and its settings, however many streams ask. May be used by several threads."""

    _clients: dict[KafkaSettings, TopicWatermarks] = field(default_factory=dict)
    _commits: dict[KafkaSettings, GroupCommits] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watermarks(self, kafka: KafkaSettings) -> TopicWatermarks:
        """The client for these settings."""
        with self._lock:
            return self._clients.setdefault(kafka, TopicWatermarks(kafka))

    def commits(self, kafka: KafkaSettings) -> GroupCommits:
        """Commits the offsets of consumer groups with these settings."""
        with self._lock:
            return self._commits.setdefault(kafka, GroupCommits(kafka))

    def state(self, kafka: KafkaSettings, topic: str) -> TopicState:
        """Id, partitions and watermarks of a topic. Raises KafkaError."""
        return self.watermarks(kafka).state(topic)

    def close(self) -> None:
        """Leave the brokers; the next question opens a client again."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            for commits in self._commits.values():
                commits.close()


@dataclass(frozen=True, slots=True)
class _Topics:
    shared: SharedTopics
    kafka: KafkaSettings

    def state(self, topic: str) -> TopicState:
        return self.shared.state(self.kafka, topic)


def run_configured(config: str, task: Task, fetched: Sequence[Message] | None = None) -> TaskResult:
    """Carry a task out over real ports.

    Args:
        config: JSON of the stream's Config, secrets included.
        fetched: the records of its range, if they have been read.
    """
    with ExitStack() as stack:

        def open_ports(wanted: Task) -> TaskPorts:
            kept = kept_stream(config)
            decoder = stack.enter_context(
                kept.decoders(lambda table, before: batch_decoder(kept.config, table, before))
            )
            return task_ports(kept.config, wanted, decoder, fetched)

        return run_task(task, open_ports)


def batch_decoder(config: Config, table: TargetTable, before: bool) -> BatchDecoder:
    """A decoder for this table. ``before``: before images are wanted."""
    registry = schema_registry(config.kafka.registry())
    return decoder_for(table, config.policy(), want_before=before, format=config.format, registry=registry)


def task_ports(
    config: Config,
    task: Task,
    decoder: Callable[[TargetTable, bool], BatchDecoder],
    fetched: Sequence[Message] | None = None,
) -> TaskPorts:
    """What a task works with. Raises ClickHouseError.

    Args:
        decoder: for a table, with before images or not.
        fetched: the records of its range, if they have been read.
    """
    client, policy, table = client_for(config), config.policy(), task.table
    own, tables, stream = config.state_database, config.tables, task.stream
    kafka = KafkaSettings(config.kafka.client())
    concerned = concerned_by(config)
    ledger = ClickHouseLedger(client, own, tables.ledger, stream)

    def begin() -> Fence:
        fence = ledger.begin(task.topic_id, task.partition, task.claim, task.work)
        await_earlier_inserts(client, table, fence, cluster=table.cluster or config.clickhouse.cluster)
        return fence

    sink = PartitionSink(
        task_name(task),
        Target.of(table, policy),
        lambda before: decoder(table, before),
        Ports(
            lookup=AnyKeyLookup(client, table),
            handover=ClickHouseHandover(client, own, tables.handover, stream, table),
            history=_History(kafka, task, concerned),
        ),
        ClickHouseWriter(client, table),
        ClickHouseDeadLetters(client, own, tables.dead_letters, stream, task.topic_id),
        _pending(client, config, task, kafka),
        deadline=patience(task, config.handover_deadline),
        progress=lambda done: ledger.put_progress(progress_entry(task, done.end, done.state)),
        releases=ledger,
        cuts=task.cuts if isinstance(task, RangeTask) else (),
        note_cut=lambda offset: ledger.put_cut(ChunkCut(task.topic_id, task.partition, offset)),
        fencing=Fencing(begin),
        changed=task.changed if isinstance(task, RangeTask) else "",
        settled=isinstance(task, RangeTask) and task.settled,
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
    stored = ClickHousePending(client, config.state_database, config.tables.pending, task.stream)
    if not config.policy().columns.hides:
        return stored

    def read(partition: int, offset: int) -> Records | None:
        with range_consumer(kafka) as consumer:
            try:
                return next(iter(consumer.read(task.topic, partition, offset, offset + 1)), None)
            except DataLoss:
                return None

    return WithheldPending(stored, read)


def _read_chunks(
    kafka: KafkaSettings, concerned: Callable[[Records], Records], task: RangeTask, first: int
) -> Iterator[Chunk]:
    """The chunks of a task's range from this offset on. Raises KafkaError."""
    size, most = task.chunk_offsets, task.chunk_bytes
    with range_consumer(kafka) as consumer:
        slices = consumer.read(task.topic, task.partition, first, task.end, max(size // 4, 1), max(most // 4, 1))
        with closing(slices):
            yield from cut(map(concerned, slices), first, task.end, chunk_offsets=size, chunk_bytes=most)


def concerned_by(config: Config) -> Callable[[Records], Records]:
    """The part of a topic's records that the stream applies."""
    if not config.source_table:
        return lambda records: records
    return RecordsOfTable(config.source_table, schema_registry(config.kafka.registry())).among


def client_for(config: Config) -> Client:
    """A client of the configuration's server."""
    return connect(ClickHouseSettings(**config.clickhouse.connection()))


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
