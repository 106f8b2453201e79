"""Reads many small ranges with one assignment: a broker answers for all of them at once.

Range by range, each costs an assignment, one or two metadata requests and two fetches, of which the second waits at the
end of the partition and makes the next range wait.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Message, TopicPartition

__all__ = ["Span", "read_together"]

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
