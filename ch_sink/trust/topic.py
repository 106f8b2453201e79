"""The topic as a fold reads it: from Kafka, or without the changes of erased keys.

A signal ends the reading between two chunks of a topic, or two batches of a source's rows: a command looks there, and
while it waits, whether it is to stop; then what it has made beside the table is removed as after an error. A step that
must not be left half done reads nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from ch_sink.kafka import KafkaHistory, KafkaSettings, RangeConsumer, TopicOffsets, range_consumer
from ch_sink.model.change import Records
from ch_sink.model.values import TopicState
from ch_sink.pipeline.chunks import Chunk, cut
from ch_sink.ports import History, Ledger, RowsEdited
from ch_sink.stream.tasks import RangeTask


class TopicReader(Protocol):
    """One topic. Methods raise KafkaError."""

    def state(self, topic: str) -> TopicState:
        """Id, partitions and watermarks."""
        ...

    def chunks(self, task: RangeTask, first: int) -> Iterator[Chunk]:
        """The records of the task's range from this offset on, cut into chunks."""
        ...

    def history(self, partition: int) -> History | None:
        """Earlier records of a partition."""
        ...


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """One topic of a broker. ``concerned``: the part of its records that the stream applies, all by default."""

    settings: KafkaSettings
    topic: str
    concerned: Callable[[Records], Records] = lambda records: records

    def state(self, topic: str) -> TopicState:
        offsets = TopicOffsets(self.settings)
        try:
            return offsets.state(topic)
        finally:
            offsets.close()

    def chunks(self, task: RangeTask, first: int) -> Iterator[Chunk]:
        size, most = task.chunk_offsets, task.chunk_bytes
        with range_consumer(self.settings) as consumer:
            slices = consumer.read(task.topic, task.partition, first, task.end, max(size // 4, 1), max(most // 4, 1))
            with closing(slices):
                yield from cut(map(self.concerned, slices), first, task.end, chunk_offsets=size, chunk_bytes=most)

    def history(self, partition: int) -> History | None:
        return _Earlier(self, partition)


@dataclass(frozen=True, slots=True)
class _Earlier:
    """Earlier records of a partition, by a consumer that is opened when they are first asked for."""

    whole: KafkaTopic
    partition: int

    def before(self, offset: int, limit: int) -> Records:
        consumer = RangeConsumer(self.whole.settings)
        try:
            earlier = KafkaHistory(consumer, self.whole.topic, self.partition).before(offset, limit)
            return self.whole.concerned(earlier)
        finally:
            consumer.close()


@dataclass(frozen=True, slots=True)
class Reached:
    """The progress of a stream, by partition."""

    applied: dict[int, int]
    """Everything below these offsets is in the table."""
    touched: dict[int, int]
    """Nothing from these offsets on is in the table; between both, anything may be."""


def offsets_behind(at: Mapping[int, int], high: Mapping[int, int]) -> int:
    """How many offsets below these ends have not been reached, of all partitions together."""
    return sum(max(0, end - at.get(partition, 0)) for partition, end in high.items())


def reached(ledger: Ledger, topic_id: str) -> Reached:
    """The progress of the stream in a topic, by its ledger."""
    # Intents first: one that is finished in between is in the progress.
    intents = ledger.open_intents(topic_id)
    applied = ledger.progress(topic_id)
    touched = dict(applied)
    for intent in intents:
        touched[intent.partition] = max(intent.end, touched.get(intent.partition, 0))
    return Reached({partition: applied.get(partition, 0) for partition in touched}, touched)


@dataclass(frozen=True, slots=True)
class WithoutErased:
    """The topic, read without these offsets; the history of a partition keeps them, to recognise repeats."""

    inner: TopicReader
    skip: dict[int, tuple[int, ...]]
    """Partition → offsets."""

    @staticmethod
    def of(topic: TopicReader, removed: Sequence[RowsEdited]) -> TopicReader:
        """The topic without the changes that these erasures name; itself if they name none."""
        skip: dict[int, tuple[int, ...]] = {}
        for one in removed:
            if one.skip:
                skip[one.partition] = (*skip.get(one.partition, ()), *one.skip)
        return WithoutErased(topic, skip) if skip else topic

    def state(self, topic: str) -> TopicState:
        """See TopicReader."""
        return self.inner.state(topic)

    def chunks(self, task: RangeTask, first: int) -> Iterator[Chunk]:
        """See TopicReader."""
        gone = self.skip.get(task.partition, ())
        for chunk in self.inner.chunks(task, first):
            kept = np.flatnonzero(~np.isin(chunk.records.offsets, gone)) if gone else ()
            yield replace(chunk, records=chunk.records.take(np.asarray(kept))) if gone else chunk

    def history(self, partition: int) -> History | None:
        """See TopicReader."""
        return self.inner.history(partition)


T = TypeVar("T")

Check = Callable[[], None]
"""Raises what ends the command, if it is to stop."""


def never_stops() -> None:
    """The check of a command that no signal reaches."""


def until_stopped(batches: Iterable[T], check: Check) -> Iterator[T]:
    """The batches, with a look before each."""
    for batch in batches:
        check()
        yield batch


@dataclass(frozen=True, slots=True)
class StoppableTopic:
    """A topic that is read until the command is to stop; see TopicReader."""

    inner: TopicReader
    check: Check

    def state(self, topic: str) -> TopicState:
        self.check()
        return self.inner.state(topic)

    def chunks(self, task: RangeTask, first: int) -> Iterator[Chunk]:
        return until_stopped(self.inner.chunks(task, first), self.check)

    def history(self, partition: int) -> History | None:
        return self.inner.history(partition)
