"""Slices of records as consumers return them, and many small ranges that are read by one assignment.

A broker answers for all of these at once. Range by range, each costs an assignment, one or two metadata requests and
two fetches, of which the second waits at the end of the partition and makes the next range wait.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from confluent_kafka import Consumer, Message, TopicPartition

from ch_sink.model.change import Headers, Records
from ch_sink.model.values import Enclosed, Values, concatenated, enclosed

_GRAINS = 64
"""A slice that grows past its bytes is cut at multiples of this fraction of ``max_records``."""


class Slices:
    """Gathers the messages of one topic-partition, in offset order, into slices.

    A slice ends before each offset that is a multiple of ``max_records``; once its keys and values have ``max_bytes``,
    before the next multiple of a 64th of ``max_records``; and at twice the bytes at any offset.
    """

    def __init__(self, topic: str, partition: int, max_records: int, max_bytes: int) -> None:
        self._topic = topic
        self._partition = partition
        self._max_records = max(1, max_records)
        self._grain = max(1, self._max_records // _GRAINS)
        self._max_bytes = max_bytes
        self._head = b""
        self._begin()

    def _begin(self) -> None:
        self._columns = _Columns()
        self._bytes = 0
        self._last = -1
        self._bound = 0

    def add(self, batch: list[Message]) -> Iterator[Records]:
        """Add a batch of messages without errors; yields the slices that it completes."""
        columns = _Columns.of(batch, self._head)
        if isinstance(values := columns.values[0], Enclosed):
            self._head = values.heads[-1]
        if self._last < 0:
            self._bound = self._next_bound(columns.offsets[0])
        # The length of a message is that of its value; one join counts the keys' bytes in half the time of a sum.
        size = sum(map(len, batch)) + len(b"".join(filter(None, columns.keys)))
        if columns.offsets[-1] < self._bound and self._bytes + size < self._max_bytes:
            self._columns.extend(columns)
            self._bytes += size
            self._last = columns.offsets[-1]
            return
        first = 0
        for index, offset in enumerate(columns.offsets):
            if self._last >= 0 and self._cut_before(offset):
                self._columns.extend(columns.part(first, index))
                first = index
                yield from self.rest()
            if self._last < 0:
                self._bound = self._next_bound(offset)
            self._bytes += len(batch[index]) + len(columns.keys[index] or b"")
            self._last = offset
        self._columns.extend(columns.part(first, len(batch)))

    def rest(self) -> Iterator[Records]:
        """Yield the slice gathered so far, if it has any record, and begin a new one."""
        columns = self._columns
        self._begin()
        if columns.offsets:
            yield columns.records(self._topic, self._partition)

    def _next_bound(self, offset: int) -> int:
        return (offset // self._max_records + 1) * self._max_records

    def _cut_before(self, offset: int) -> bool:
        if offset >= self._bound or self._bytes >= 2 * self._max_bytes:
            return True
        return self._bytes >= self._max_bytes and offset // self._grain != self._last // self._grain


def slices_of(
    messages: Sequence[Message], topic: str, partition: int, start: int, max_records: int, max_bytes: int
) -> Iterator[Records]:
    """The slices of records without errors, from the offset ``start`` on."""
    slices = Slices(topic, partition, max_records, max_bytes)
    wanted = [message for message in messages if (message.offset() or 0) >= start]
    if wanted:
        yield from slices.add(wanted)
    yield from slices.rest()


class _Columns:
    """Fields of messages, copied at once so that the client's message objects are freed before the next batch."""

    __slots__ = ("headers", "keys", "offsets", "timestamps", "values")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[Values] = []
        """In parts."""
        self.headers: list[Headers | None] | None = None

    @classmethod
    def of(cls, batch: list[Message], head: bytes) -> "_Columns":
        # map over the C methods: half the time of a comprehension that looks each of them up.
        columns = cls()
        columns.offsets = list(map(Message.offset, batch))  # type: ignore[arg-type]
        columns.timestamps = [timestamp for _, timestamp in map(Message.timestamp, batch)]
        columns.keys = list(map(Message.key, batch))
        values = list(map(Message.value, batch))
        first = next(filter(None, values), b"")
        columns.values = [enclosed(values, head) if first.startswith(b'{"schema":') else values]
        headers = list(map(Message.headers, batch))
        columns.headers = _shared(headers) if any(headers) else None  # type: ignore[arg-type]
        return columns

    def part(self, first: int, stop: int) -> "_Columns":
        columns = _Columns()
        columns.offsets = self.offsets[first:stop]
        columns.timestamps = self.timestamps[first:stop]
        columns.keys = self.keys[first:stop]
        columns.values = [concatenated(self.values)[first:stop]]
        headers = None if self.headers is None else self.headers[first:stop]
        columns.headers = headers if headers and any(headers) else None
        return columns

    def extend(self, other: "_Columns") -> None:
        if other.headers is not None or self.headers is not None:
            if self.headers is None:
                self.headers = _none(len(self.offsets))
            self.headers.extend(_none(len(other.offsets)) if other.headers is None else other.headers)
        self.offsets.extend(other.offsets)
        self.timestamps.extend(other.timestamps)
        self.keys.extend(other.keys)
        self.values.extend(other.values)

    def records(self, topic: str, partition: int) -> Records:
        offsets = np.array(self.offsets, dtype=np.int64)
        timestamps = np.array(self.timestamps, dtype=np.int64)
        return Records(topic, partition, offsets, timestamps, self.keys, concatenated(self.values), self.headers)


def _none(count: int) -> list[Headers | None]:
    return [None] * count


def _shared(headers: list[Headers | None]) -> list[Headers | None]:
    """The same headers with runs of equal ones as one object.

    Debezium writes the same four headers on every record of a run. As separate objects they would cost most of the
    consumer's time in garbage collection.
    """
    last: Headers | None = None
    for index, found in enumerate(headers):
        if found == last:
            headers[index] = last
        else:
            last = found
    return headers


_BATCH = 1000
"""Records per call."""
_WAIT_SECONDS = 0.05
"""Longest wait of one call."""
_PATIENCE = 0.3
"""Seconds without a record after which the ranges that are not whole are left."""


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets [start, end) of a topic-partition."""

    topic: str
    partition: int
    start: int
    end: int


def read_together(consumer: Consumer, spans: Sequence[Span], most_bytes: int) -> dict[Span, list[Message]]:
    """The records of the spans that could be read whole, in offset order; a span may have none.

    Spans are of different partitions. Those that meet an error, that wait for a broker, or for which ``most_bytes`` do
    not suffice are left out: whoever reads them alone learns why. Raises KafkaException if nothing can be read at all.
    """
    open_ones = {(span.topic, span.partition): _Open(span) for span in spans}
    whole: dict[Span, list[Message]] = {}
    size, moved = 0, time.monotonic()
    consumer.assign([TopicPartition(span.topic, span.partition, span.start) for span in spans])
    try:
        while open_ones and size < most_bytes and time.monotonic() - moved < _PATIENCE:
            left = sum(one.left for one in open_ones.values())
            batch = consumer.consume(min(_BATCH, left), _WAIT_SECONDS)
            touched: dict[tuple[str, int], _Open] = {}
            for message in batch:
                place = message.topic() or "", _number(message.partition())
                if (one := open_ones.get(place)) is None:
                    continue
                touched[place] = one
                if one.take(message):
                    size += len(message)
            if batch:
                moved = time.monotonic()
            else:
                # Markers and gaps yield no record.
                touched = dict(open_ones)
                for found in consumer.position([TopicPartition(topic, p) for topic, p in open_ones]):
                    one = open_ones[found.topic, found.partition]
                    one.reached = max(one.reached, int(found.offset))
            for place, one in touched.items():
                if one.failed or one.left <= 0:
                    del open_ones[place]
                    if not one.failed:
                        whole[one.span] = one.messages
    finally:
        consumer.unassign()
    return whole


@dataclass(slots=True)
class _Open:
    """A span that is not read whole."""

    span: Span
    reached: int = -1
    failed: bool = False
    messages: list[Message] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.span.end - max(self.reached, self.span.start)

    def take(self, message: Message) -> bool:
        """Keep a record of the span; note what else comes."""
        error, offset = message.error(), _number(message.offset())
        if error is not None:
            if error.code() == error._PARTITION_EOF:
                self.reached = max(self.reached, offset)
            else:
                self.failed = True
            return False
        self.reached = max(self.reached, offset + 1)
        inside = self.span.start <= offset < self.span.end
        if inside:
            self.messages.append(message)
        return inside


def _number(value: int | None) -> int:
    return -1 if value is None else value
