"""The changes of a stream that wait for the values of a row that changed its key: where they are, and their release."""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import cast

from ch_sink.model.counts import Counts
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.stream.open_stream import OpenStream
from ch_sink.stream.rounds import Rounds
from ch_sink.stream.tasks import RangeDone, ReleaseDone, ReleaseTask

log = logging.getLogger("ch_sink")


class Releases:
    """Releases the waiting changes of one open stream, those of former topics of the same name as well."""

    def __init__(self, stream: OpenStream, add: Callable[[Counts], None]) -> None:
        """``add``: is given the figures of what was released."""
        self._stream, self._add = stream, add
        self.look()

    def look(self) -> None:
        """See in the pending table which changes wait, of this topic and of former ones."""
        topic, places = self._stream.topic, self._stream.ports.pending.places()
        self.numbers = {p: n for (t, p), n in places.items() if t == topic.topic_id and n and p in topic.low}
        """Partition → number of changes that wait."""
        self._former = [place for place, n in places.items() if place[0] != topic.topic_id and n]
        # Only tasks of this claim add to them from now on, and say so.
        self._settled = {p for p in topic.low if (topic.topic_id, p) not in places}

    def range_begins(self, partition: int, attempt: int) -> bool:
        """A task is about to read a range; returns whether nothing of its partition is in the pending table."""
        # What an earlier attempt at the range stored, or this one stores before it fails, is looked at again.
        settled = partition in self._settled and not attempt
        self._settled.discard(partition)
        return settled

    def ranges_ended(self, results: Sequence[RangeDone]) -> None:
        """Take up what ranges have left waiting. A partition without a range keeps its waiting changes."""
        self.numbers |= {r.partition: r.waiting for r in results if r.failure is None}
        self.numbers = {p: n for p, n in self.numbers.items() if n}
        self._settled |= {r.partition for r in results if r.settled}

    def release(self, *, caught_up: bool = False) -> Rounds:
        """Apply waiting changes whose values have arrived.

        The table may have lost columns since they began to wait, or may have ignored them until now. Only a stream
        that has caught up gives changes up: after an outage, or if another partition lags far behind, the values may
        not have been read yet.
        """
        yield from self._release_former_topics()
        stream, left, before = self._stream, dict(self.numbers), -1
        lacking: list[Barrier] = []
        while left and (lacking or sum(left.values()) != before):
            before = sum(left.values())
            tasks = [
                self._task(stream.topic.topic_id, p, stream.states.waiting(p), stream.reached.get(p, 0), caught_up)
                for p in sorted(left)
            ]
            results = cast(Sequence[ReleaseDone], (yield tasks))
            stream.raise_failure(results)
            for done in results:
                if done.state is not None:
                    stream.states.released(done.partition, done.state)
                    self._add(done.counts)
            lacking = [done.lacking for done in results if done.lacking is not None]
            stream.add_columns(lacking)
            left = {done.partition: done.waiting for done in results if done.waiting}
        self.numbers = left

    def _release_former_topics(self) -> Rounds:
        """Apply or give up the changes that wait since the topic was another one: what they wait for cannot come."""
        stream = self._stream
        while self._former:
            states = [stream.states.of_former(*place) for place in self._former]
            tasks = [
                self._task(*place, state, sys.maxsize, True, final=True)
                for place, state in zip(self._former, states, strict=True)
            ]
            results = cast(Sequence[ReleaseDone], (yield tasks))
            stream.raise_failure(results)
            for task, done in zip(tasks, results, strict=True):
                self._add(done.counts)
                log.warning(
                    "%s: %d changes of partition %d of the former topic %s no longer wait (dead letters: %d)",
                    *(stream.settings.name, done.counts.kinds["released"], task.partition, task.topic_id),
                    done.counts.dead_letters,
                )
            stream.add_columns([done.lacking for done in results if done.lacking is not None])
            lacking = {(t.topic_id, t.partition) for t, done in zip(tasks, results, strict=True) if done.lacking}
            self._former = [place for place in self._former if place in lacking]

    def _task(
        self, topic_id: str, partition: int, state: State, below: int, caught_up: bool, *, final: bool = False
    ) -> ReleaseTask:
        stream = self._stream
        return ReleaseTask(
            stream.settings.name,
            stream.settings.topic,
            topic_id,
            partition,
            stream.table.now,
            state,
            below=below,
            caught_up=caught_up,
            final=final,
            claim=stream.claim,
        )
