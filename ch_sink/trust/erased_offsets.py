"""A topic without the changes of erased keys."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ch_sink.model.values import TopicState
from ch_sink.pipeline.chunks import Chunk
from ch_sink.ports import History, RowsRemoved
from ch_sink.stream.tasks import RangeTask
from ch_sink.trust.topic import TopicReader

__all__ = ["WithoutErased"]


@dataclass(frozen=True, slots=True)
class WithoutErased:
    """The topic, read without these offsets; the history of a partition keeps them, to recognise repeats."""

    inner: TopicReader
    skip: dict[int, tuple[int, ...]]
    """Partition → offsets."""

    @staticmethod
    def of(topic: TopicReader, removed: Sequence[RowsRemoved]) -> TopicReader:
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
