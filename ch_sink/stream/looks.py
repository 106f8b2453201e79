"""Questions for the watermarks of streams' topics, one at a time for each Kafka cluster, beside the job's loop.

A broker that is away may keep a question waiting for many seconds. That holds up only what has nothing else to do: the
loop goes on, streams of other clusters are asked for by questions of their own, and a stream that already knows of
something to read does not wait for the answer for longer than `PATIENCE`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.model.values import TopicState
from ch_sink.stream.job_stream import JobStream, Watermarks
from ch_sink.stream.job_work import Ended
from ch_sink.stream.lanes import Lanes
from ch_sink.stream.rounds import as_failure

__all__ = ["PATIENCE", "Looked", "Looks"]

PATIENCE = 1.0
"""Seconds after which a stream goes on with what it knows there is to read."""

Looked = Sequence[tuple[JobStream, TopicState | ChSinkError]]
"""Streams with the states of their topics, or why these are not known."""


@dataclass(frozen=True, slots=True)
class _Question:
    began: float
    streams: Sequence[tuple[JobStream, int]]
    """Each with its turn when the question began: an answer says nothing about a later one."""


class Looks:
    """The questions that are under way. Used by the job's thread only."""

    def __init__(self, lanes: Lanes[Ended]) -> None:
        self._lanes = lanes
        self._open: dict[int, _Question] = {}

    def ask(self, due: Sequence[JobStream]) -> Looked:
        """Begin to ask for these streams' topics; returns those that are planned by what they know."""
        clusters: dict[int, list[JobStream]] = {}
        for stream in due:
            clusters.setdefault(id(stream.watermarks), []).append(stream)
        known: list[tuple[JobStream, TopicState]] = []
        for cluster, streams in clusters.items():
            question = self._open.get(cluster)
            if question is None:
                if self._lanes.free("look"):
                    self._open[cluster] = _Question(self._lanes.now(), [(s, s.turn) for s in streams])
                    self._lanes.start("look", partial(_look, cluster, list(streams)))
            elif self._lanes.now() - question.began >= PATIENCE:
                known += [(s, s.known) for s in streams if s.backlog and s.known is not None]
        return known

    def answered(self, ended: Ended) -> Looked:
        """The streams of a question for which its answer still holds."""
        question = self._open.pop(ended.cluster)
        missing = StreamFailed("the broker gave no answer for this topic")
        return [
            (stream, ended.topics.get(stream.topic, missing))
            for stream, turn in question.streams
            if stream.turn == turn and stream.state == "running" and not stream.busy
        ]

    def wait(self, stream: JobStream) -> float:
        """Until when the stream waits for an answer: infinite if it knows of nothing else to read."""
        if stream.opened is not None:
            return -math.inf
        question = self._open.get(id(stream.watermarks))
        if question is None:
            return -math.inf if self._lanes.free("look") else math.inf
        return question.began + PATIENCE if stream.backlog and stream.known is not None else math.inf


def _look(cluster: int, streams: Sequence[JobStream], report: Callable[[Ended], None]) -> None:
    """Ask one cluster for the topics of these streams, in a lane."""
    answers = _states(streams[0].watermarks, streams)
    report(Ended(None, "look", cluster=cluster, topics=answers))


def _states(watermarks: Watermarks, streams: Sequence[JobStream]) -> Mapping[str, TopicState | ChSinkError]:
    try:
        return watermarks.states(list(dict.fromkeys(s.topic for s in streams)))
    except Exception as error:  # noqa: BLE001 (the failure of all of them, whatever it is)
        return {s.topic: as_failure(s.name, error) for s in streams}
