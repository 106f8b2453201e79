"""Verifying and repairing tables that a Feed has filled: its topic in memory, its ledger, the real engine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ch_sink.clickhouse import ClickHouseDeadLetters, ClickHouseHandover, ClickHousePending, Client
from ch_sink.decode import Decoder
from ch_sink.model.change import Records
from ch_sink.model.values import TopicState
from ch_sink.pipeline.chunks import Chunk, cut
from ch_sink.ports import DeadLetters, Handover, Pending
from ch_sink.stream.tasks import RangeTask
from ch_sink.trust.subject import Subject
from tests.support.fixtures import registry, topic_of
from tests.support.memory_stream import MemoryStreamStates, MemoryTopic
from tests.support.recorded import KEYLESS, POLICY
from tests.support.stream import Feed, make_table, schema_of, typed_stream


@dataclass(frozen=True, slots=True)
class TopicInMemory:
    """A topic as `verify` reads it."""

    topic: MemoryTopic

    def state(self, topic: str) -> TopicState:
        return self.topic.state(topic)

    def chunks(self, task: RangeTask, first: int) -> Iterator[Chunk]:
        records: Records = self.topic.read(task.partition, first, task.end)
        parts = iter([records]) if len(records) else iter(())
        return cut(parts, first, task.end, chunk_offsets=task.chunk_offsets, chunk_bytes=task.chunk_bytes)

    def history(self, partition: int) -> object:
        return self.topic.history(partition)


def subject_of(client: Client, database: str, feed: Feed, stream: str, key: tuple[str, ...]) -> Subject:
    """The feed's stream and table, as a command would find them."""
    known, table = registry(stream), feed.admin.table
    return Subject(
        client,
        feed.runner.settings,
        table,
        key,
        tuple(table.source_columns),
        database,
        TopicInMemory(MemoryTopic(feed.topic, feed.records)),  # type: ignore[arg-type]
        lambda now, want: Decoder(now, feed.policy, want_before=want, registry=known),
        feed.book,
        MemoryStreamStates(),
        rollups=table.rollups,
        failed=lambda topic_id: _not_applied(feed, topic_id),
    )


def stores_of(subject: Subject) -> tuple[Pending, Handover, Callable[[str], DeadLetters]]:
    """The stream's own stores, as a `Refill` takes them."""
    client, database, stream = subject.client, subject.database, subject.settings.name
    return (
        ClickHousePending(client, database, "ch_sink_pending", stream),
        ClickHouseHandover(client, database, "ch_sink_handover", stream, subject.table),
        lambda topic_id: ClickHouseDeadLetters(client, database, "ch_sink_dead_letters", stream, topic_id),
    )


def _not_applied(feed: Feed, topic_id: str) -> set[tuple[int, int]]:
    """Partition and offset of the records that are dead letters, or wait for values of another partition."""
    pending = feed.runner.ports.pending
    waiting = {(p, r.offset) for own, p in pending.places() if own == topic_id for r in pending.open(topic_id, p)}
    return waiting | feed.letters_of.places()


def recorded_subject(client: Client, database: str, stream: str, table: str, engine: str = "") -> Subject:
    """A recorded stream that was read into its table."""
    schema = schema_of(typed_stream(stream, table), table)
    engine = engine or ("append" if table in KEYLESS else "replacing")
    target = make_table(client, database, table, schema, engine=engine, policy=POLICY)
    feed = Feed(client, database, target, stream, topic_of(stream, table), POLICY)
    feed.run()
    return subject_of(client, database, feed, stream, tuple(f.name for f in schema.key))
