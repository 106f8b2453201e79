"""Earlier records of a partition, read backwards from an offset."""

import numpy as np

from ch_sink.kafka.consumer import RangeConsumer
from ch_sink.model.change import Records

__all__ = ["KafkaHistory"]


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
        joined = _join(self._topic, self._partition, found)
        return joined.take(np.arange(max(0, count - limit), count))


def _join(topic: str, partition: int, parts: list[Records]) -> Records:
    nothing = np.empty(0, dtype=np.int64)
    headers = None
    if any(part.headers is not None for part in parts):
        headers = [entry for part in parts for entry in (part.headers or [None] * len(part))]
    return Records(
        topic,
        partition,
        np.concatenate([nothing, *(part.offsets for part in parts)]),
        np.concatenate([nothing, *(part.timestamps for part in parts)]),
        [key for part in parts for key in part.keys],
        [value for part in parts for value in part.values],
        headers,
    )
