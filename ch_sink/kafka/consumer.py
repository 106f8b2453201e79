"""Reads exactly the offsets of a range, in slices.

The consumer's *position* decides when a range ends, never "the last record": the end may be a transaction marker or
an offset that compaction removed.
"""

import gc
import logging
import math
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import confluent_kafka
import numpy as np
from confluent_kafka import Consumer, Message, TopicPartition

from ch_sink.errors import READ_AGAIN, DataLoss, KafkaError, TopicNotFound
from ch_sink.kafka.settings import (
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    KafkaSettings,
    client_log,
    creating,
    is_denied,
    translate,
    unavailable,
)
from ch_sink.kafka.slices import Slices, Span, read_together
from ch_sink.model.change import Records
from ch_sink.pipeline.chunks import join_records

_log = logging.getLogger("ch_sink.kafka")
_BATCH = 250
"""Records per call: ``consume`` reaches its full speed at some hundreds, and of more the cache forgets the first."""
_WAIT_SECONDS = 0.05
"""Longest wait of one ``consume`` call: it waits for the full number of records even if a gap hides some of them."""
_LEARNED_SECONDS = 300.0
"""Seconds for which the client surely remembers a topic's leaders; it forgets topics that nobody reads after 900."""
_LOOK_SECONDS = 2.0
"""Seconds without progress after which a read checks that its topic exists."""
_EOF = confluent_kafka.KafkaError._PARTITION_EOF
_OUT_OF_RANGE = confluent_kafka.KafkaError._AUTO_OFFSET_RESET


class RangeConsumer:
    """A consumer of offset ranges, one range at a time; not for use by two threads at once.

    ``patience``: seconds without progress after which a read fails. Close it, or use ``range_consumer``.
    """

    def __init__(self, settings: Mapping[str, object], *, patience: float = 60.0) -> None:
        self.settings = settings if isinstance(settings, KafkaSettings) else KafkaSettings(settings)
        self.patience = patience
        self._refused: confluent_kafka.KafkaError | None = None
        self._last_error = "no answer"
        self._learned: dict[str, float] = {}
        """The time at which the leaders of each topic were asked for."""
        with creating(self.settings):
            self._consumer = Consumer({**self.settings.for_consumer(), "error_cb": self._note}, logger=client_log)

    def close(self) -> None:
        """Disconnect from the broker."""
        self._consumer.close()

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """Lowest offset and the offset after the last one, as of now.

        Raises BrokerUnavailable, TopicNotFound.
        """
        try:
            return self._consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=min(10.0, self.patience), cached=False
            )
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() == UNKNOWN_PARTITION:
                self._expect_place(TopicPartition(topic, partition))
            raise translate(error.args[0], self.settings, topic) from error

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        max_records: int = 50_000,
        max_bytes: int = 64 * 1024 * 1024,
    ) -> Generator[Records, None, None]:
        """Yield the records at offsets ``start`` ≤ offset < ``end``, in offset order, in slices.

        A slice ends before each offset that is a multiple of ``max_records``, and, once its keys and values have
        ``max_bytes``, before the next multiple of a 64th of that; a single 64th that has twice the bytes is cut
        at that offset. So the cuts depend on the range and its records only, not on how they arrived. Empty slices
        are not yielded: a range without records yields nothing.

        Raises DataLoss when offsets of the range are gone, TopicNotFound, BrokerUnavailable when nothing moves for
        ``patience`` seconds.
        """
        if start >= end:
            return
        place = TopicPartition(topic, partition, start)
        self._refused = None
        self._learn(topic)
        self._consumer.assign([place])
        try:
            slices = Slices(topic, partition, max_records, max_bytes)
            batches = self._batches(place, start, end)
            while True:
                with _no_collection():
                    batch = next(batches, None)
                    if batch is None:
                        break
                    full = list(slices.add(batch))
                    del batch  # its memory serves the next one
                yield from full
            yield from slices.rest()
        finally:
            self._consumer.unassign()

    def together(self, spans: Sequence[Span], most_bytes: int) -> dict[Span, list[Message]]:
        """The records of small spans of different partitions, by one assignment; `read` serves those left out.

        Those that cannot be read at once, or that do not fit into ``most_bytes`` together, are left out. Never raises.
        """
        try:
            self._learn_all(spans)
            with _no_collection():
                return read_together(self._consumer, spans, most_bytes)
        except confluent_kafka.KafkaException as error:
            _log.debug("ranges are read one by one: %s", error)
            return {}

    def _learn_all(self, spans: Sequence[Span]) -> None:
        """Look up the leaders that the client does not know yet, with one request."""
        now = time.monotonic()
        new = [span for span in spans if now - self._learned.get(span.topic, -math.inf) >= _LEARNED_SECONDS]
        if new:
            places = [TopicPartition(span.topic, span.partition, span.start) for span in new]
            # Asks for the leaders of all that it does not know; the offsets are by the way.
            self._consumer.offsets_for_times(places, timeout=min(10.0, self.patience))
            self._learned |= {span.topic: now for span in new}

    def _learn(self, topic: str) -> None:
        """Ask for the topic's leaders, unless the client knows them.

        The client itself looks for leaders of a new topic once a second: a worker that serves many topics would wait
        for most of a second at each.
        """
        now = time.monotonic()
        if now - self._learned.get(topic, -math.inf) < _LEARNED_SECONDS:
            return
        with suppress(confluent_kafka.KafkaException):  # the read that follows waits for the broker, or fails
            self._consumer.list_topics(topic, timeout=min(10.0, self.patience))
            self._learned[topic] = now

    def _batches(self, place: TopicPartition, start: int, end: int) -> Iterator[list[Message]]:
        position = start
        moved = time.monotonic()
        looked = False
        while position < end:
            # Never past the end: except for gaps the records exist, so the call returns before its timeout.
            batch = self._consumer.consume(min(_BATCH, end - position), _WAIT_SECONDS)
            reached = position
            if any(map(Message.error, batch)):
                batch, reached = self._split_errors(batch, place, position)
            if batch:
                reached = max(reached, _offset(batch[-1]) + 1)
                if reached > end:
                    batch = [message for message in batch if _offset(message) < end]
            else:
                reached = max(reached, self._position(place))
            if batch:
                yield batch
                batch.clear()  # so that its memory serves the next one
                # Time that the caller spends on the slices does not count.
                moved = time.monotonic()
            if reached > position:
                position = reached
                moved = time.monotonic()
            elif time.monotonic() - moved > self.patience or self._refused is not None:
                raise self._stuck(place, position, end)
            elif not looked and time.monotonic() - moved > _LOOK_SECONDS:
                looked = True
                self._expect_place(place)

    def _split_errors(self, batch: list[Message], place: TopicPartition, position: int) -> tuple[list[Message], int]:
        """The records of a batch with errors or an end-of-partition event, and the position after it."""
        records = []
        for message in batch:
            error = message.error()
            if error is None:
                records.append(message)
                position = _offset(message) + 1
            elif error.code() == _EOF:
                position = max(position, _offset(message))
            elif error.code() == _OUT_OF_RANGE:
                raise self._data_loss(place, position)
            elif error.retriable() and not is_denied(error):
                self._last_error = error.str()
            else:
                if error.code() == UNKNOWN_PARTITION:
                    self._expect_place(place)
                raise translate(error, self.settings, place.topic)
        return records, position

    def _expect_place(self, place: TopicPartition) -> None:
        """Raise TopicNotFound if the topic or partition does not exist: the consumer itself would wait silently."""
        try:
            found = self._consumer.list_topics(place.topic, timeout=min(10.0, self.patience)).topics[place.topic]
        except confluent_kafka.KafkaException:
            return
        if found.error is not None and found.error.code() in UNKNOWN_TOPIC:
            raise translate(found.error, self.settings, place.topic)
        if found.error is None and place.partition not in found.partitions:
            raise TopicNotFound(
                f"topic {place.topic} has {len(found.partitions)} partitions, none is {place.partition}"
            )

    def _position(self, place: TopicPartition) -> int:
        """The consumer's position: it also passes markers and gaps, which yield no record."""
        [found] = self._consumer.position([TopicPartition(place.topic, place.partition)])
        return int(found.offset)

    def _data_loss(self, place: TopicPartition, position: int) -> KafkaError:
        low, high = self.watermarks(place.topic, place.partition)
        return DataLoss(
            f"topic {place.topic} partition {place.partition}: offset {position} is the next to be read, "
            f"but the topic holds {low} to {high - 1}",
            hint=READ_AGAIN,
        )

    def _stuck(self, place: TopicPartition, position: int, end: int) -> KafkaError:
        if self._refused is not None:
            return _as_kafka_error(translate(self._refused, self.settings, place.topic))
        try:
            low, high = self.watermarks(place.topic, place.partition)
        except KafkaError as error:
            return error
        if position < low or position > high or end > high:
            return self._data_loss(place, position if position < low else end - 1)
        return unavailable(
            self.settings,
            f"{place.topic} partition {place.partition} made no progress at offset {position} of {end} for "
            f"{self.patience:g} seconds ({self._last_error})",
        )

    def _note(self, error: confluent_kafka.KafkaError) -> None:
        self._last_error = error.str()
        if is_denied(error):
            self._refused = error
        _log.debug("client: %s", error.str())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch garbage collection off: a batch makes thousands of objects and no cycle (saves a third of the time)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _offset(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset


def _as_kafka_error(error: Exception) -> KafkaError:
    return error if isinstance(error, KafkaError) else KafkaError(str(error))


_idle: dict[tuple[KafkaSettings, int], list[RangeConsumer]] = {}
_lock = threading.Lock()


@contextmanager
def range_consumer(settings: Mapping[str, object]) -> Iterator[RangeConsumer]:
    """A consumer with these settings that nobody else uses now; kept open from one range to the next."""
    # The process id is part of the key: a client does not survive a fork.
    key = (settings if isinstance(settings, KafkaSettings) else KafkaSettings(settings), os.getpid())
    with _lock:
        idle = _idle.setdefault(key, [])
        consumer = idle.pop() if idle else None
    consumer = consumer or RangeConsumer(key[0])
    try:
        yield consumer
    finally:
        with _lock:
            idle.append(consumer)


class KafkaHistory:
    """``ports.History`` over the consumer of ranges."""

    def __init__(self, consumer: RangeConsumer, topic: str, partition: int) -> None:
        self._consumer = consumer
        self._topic = topic
        self._partition = partition

    def before(self, offset: int, limit: int) -> Records:
        """Up to ``limit`` records at offsets below ``offset``, the nearest ones, in offset order.

        Fewer only if the topic has no more. Raises BrokerUnavailable, TopicNotFound.
        """
        low, high = self._consumer.watermarks(self._topic, self._partition)
        end = min(offset, high)
        found: list[Records] = []
        count, window = 0, max(limit, 1)
        # Offsets without a record (markers, compaction) leave the window short; the one before it is then read too.
        while count < limit and end > low:
            start = max(low, end - window)
            read = list(self._consumer.read(self._topic, self._partition, start, end, max_records=2**62))
            found = read + found
            count += sum(map(len, read))
            end, window = start, window * 4
        nothing = np.empty(0, dtype=np.int64)
        joined = join_records([Records(self._topic, self._partition, nothing, nothing, [], []), *found])
        return joined.take(np.arange(max(0, count - limit), count))
