"""A turn of a job: asking what there is to read, and planning what each stream that is due reads next.

Clusters are asked for the watermarks of streams' topics one question at a time, beside the job's loop. A broker that is
unavailable may keep a question waiting for many seconds. That holds up only what has nothing else to do: the loop goes
on, streams of other clusters are asked for by questions of their own, and a stream that already knows of something to
read does not wait for the answer for longer than `PATIENCE`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.model.values import TopicState
from ch_sink.stream.batch_plan import OffsetRange
from ch_sink.stream.job_stream import JobStream, Phase, Watermarks
from ch_sink.stream.lanes import Answered, Batch, Failed, Lanes, Report
from ch_sink.stream.pace import ACTIVE_SECONDS, FEW, GIVE_UP_SECONDS, LONG, fair_shares, in_turn
from ch_sink.stream.rounds import as_failure

PATIENCE = 1.0
"""Seconds after which a stream goes on with what it knows there is to read."""
TOGETHER = 100
"""Streams that begin a batch in one turn at most: in a batch of hundreds the first ones would wait for the last."""

Looked = Sequence[tuple[JobStream, TopicState | ChSinkError]]
"""Streams with the states of their topics, or why these are not known."""


@dataclass(frozen=True, slots=True)
class _Question:
    began: float
    streams: Sequence[tuple[JobStream, int]]
    """Each with its turn when the question began: an answer says nothing about a later one."""


class Looks:
    """The questions that are under way. Used by the job's thread only."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._open: dict[int, _Question] = {}

    def ask(self, due: Sequence[JobStream], unattended: Sequence[JobStream] = ()) -> Looked:
        """Begin to ask for these streams' topics; returns those due that are planned by what they know.

        Of streams that are unattended only the lag is counted.
        """
        clusters: dict[int, list[JobStream]] = {}
        for stream in (*due, *unattended):
            clusters.setdefault(id(stream.watermarks), []).append(stream)
        known: list[tuple[JobStream, TopicState]] = []
        for cluster, streams in clusters.items():
            question = self._open.get(cluster)
            if question is None:
                if self._lanes.free("look"):
                    self._open[cluster] = _Question(self._lanes.now(), [(s, s.reading.turn) for s in streams])
                    self._lanes.start("look", partial(_look, cluster, list(streams)))
            elif self._lanes.now() - question.began >= PATIENCE:
                waiting = (s for s in streams if s.phase is Phase.LIVE and s.reading.backlog)
                known += [(s, s.reading.topic) for s in waiting if s.reading.topic is not None]
        return known

    def answered(self, answer: Answered) -> Looked:
        """The live streams of a question for which its answer still holds; counts the lags of the others."""
        question = self._open.pop(answer.cluster)
        missing = StreamFailed(
            "the broker gave no answer for this topic",
            hint="Check that the topic exists, then run `ch_sink resume CONFIG`.",
        )
        holds = [s for s, turn in question.streams if s.reading.turn == turn and not s.busy]
        for stream in holds:
            if stream.unattended and isinstance(topic := answer.topics.get(stream.topic), TopicState):
                stream.grew(topic)
        return [(s, answer.topics.get(s.topic, missing)) for s in holds if s.phase is Phase.LIVE]

    def wait(self, stream: JobStream) -> float:
        """Until when the stream waits for an answer: infinite if it knows of nothing else to read."""
        if stream.reading.at_opening is not None:
            return -math.inf
        question = self._open.get(id(stream.watermarks))
        if question is None:
            return -math.inf if self._lanes.free("look") else math.inf
        knows = stream.reading.backlog and stream.reading.topic is not None
        return question.began + PATIENCE if knows else math.inf


def _look(cluster: int, streams: Sequence[JobStream], report: Callable[[Report], None]) -> None:
    """Ask one cluster for the topics of these streams, in a lane."""
    report(Answered(cluster, _states(streams[0].watermarks, streams)))


def _states(watermarks: Watermarks, streams: Sequence[JobStream]) -> Mapping[str, TopicState | ChSinkError]:
    try:
        return watermarks.states(list(dict.fromkeys(s.topic for s in streams)))
    except Exception as error:  # noqa: BLE001 (the failure of all of them, whatever it is)
        return {s.topic: as_failure(s.name, error) for s in streams}


@dataclass(frozen=True, slots=True)
class _Planned:
    stream: JobStream
    topic: TopicState
    unread: Sequence[OffsetRange]
    """All that is there now."""

    @property
    def offsets(self) -> int:
        return sum(r.end - r.start for r in self.unread)

    @property
    def partly_live(self) -> bool:
        """Whether some partition has few new events, or none now: what comes there waits until the batch has ended."""
        unread = {r.partition: r.end - r.start for r in self.unread}
        filled = (p for p, high in self.topic.high.items() if high > self.topic.low.get(p, 0))
        return any(unread.get(p, 0) <= FEW for p in filled)


@dataclass
class Turn:
    """One look at the streams of a job; `plan` fills it."""

    streams: Sequence[JobStream]
    """All of the job, of which some may be live without being due."""
    now: float
    once: bool = False
    batches: list[Batch] = field(default_factory=list)
    """The tasks of a batch share calls of the executor."""
    rested: list[JobStream] = field(default_factory=list)
    """Streams that have read all there is."""
    held: list[JobStream] = field(default_factory=list)
    """Streams whose few new events wait for more."""
    failed: list[Failed] = field(default_factory=list)

    def plan(self, looked: Looked) -> None:
        """Plan the batches of these streams. Those that do not come now are due again."""
        planned = self._next(looked)
        long = {p.stream for p in planned if p.offsets > LONG}
        shares = self._shares([p for p in planned if p.stream not in long], [p for p in planned if p.stream in long])
        batch: Batch = {}
        for found in planned:
            stream = found.stream
            batch[stream] = ranges = stream.cut(found.unread, shares[stream.name])
            stream.begin(self.now, found.topic, found.offsets, ranges)
        groups: dict[tuple[str, bool, str], Batch] = {}
        for stream, ranges in sorted(batch.items(), key=lambda item: item[0] in long):
            shared = stream.name if stream.alone else "", stream in long, stream.server
            groups.setdefault(shared, {})[stream] = ranges
        self.batches += groups.values()

    def _next(self, looked: Looked) -> list[_Planned]:
        """The ranges of these streams, those first whose last batch is the longest ago; some may have to wait."""
        active = sum(self._is_active(s) for s in self.streams)
        planned: list[_Planned] = []
        for stream, topic in sorted(looked, key=lambda found: found[0].pace.active_at):
            if not isinstance(topic, TopicState):
                self.failed.append(Failed(stream, topic))
            elif len(planned) < TOGETHER and (found := self._planned(stream, topic, active)) is not None:
                planned.append(found)
        return planned

    def _planned(self, stream: JobStream, topic: TopicState, active: int) -> _Planned | None:
        """All that the stream has to read; None if that is nothing, or waits."""
        try:
            found = stream.look(topic, once=self.once)
        except Exception as error:  # noqa: BLE001 (the stream's failure, whatever it is)
            self.failed.append(Failed(stream, as_failure(stream.name, error)))
            return None
        if found and self._may_wait(stream, found, active):
            self.held.append(stream)
        elif found or self._releases(stream):
            return _Planned(stream, topic, found)
        else:
            stream.rest(self.now, topic)
            self.rested.append(stream)
        return None

    def _releases(self, stream: JobStream) -> bool:
        """Whether a batch without records applies, or gives up, changes that wait."""
        long_ago = self.now - stream.pace.active_at >= GIVE_UP_SECONDS
        return bool(stream.coordinator.waiting) and (stream.reading.fresh or long_ago)

    def _may_wait(self, stream: JobStream, found: Sequence[OffsetRange], active: int) -> bool:
        """Whether the events wait for more of them."""
        # What was begun, and the first look behind records that were lost, is never held.
        if self.once or stream.reading.fresh or any(r.chunk_offsets or r.lost for r in found):
            return False
        events = sum(r.end - r.start for r in found)
        if waits := stream.pace.holds(events, self.now, active):
            stream.summary.lag = events
        return waits

    def _is_active(self, stream: JobStream) -> bool:
        return self.now - stream.pace.active_at < ACTIVE_SECONDS

    def _shares(self, short: Sequence[_Planned], long: Sequence[_Planned]) -> dict[str, int | None]:
        """How many offsets each stream may read. ``long``: those with a long backlog."""
        others = {p.stream for p in long}
        recent = (s for s in self.streams if s.phase is Phase.LIVE and self._is_active(s))
        live = short or any(not s.reading.backlog for s in recent if s not in others)
        limits = {
            p.stream.name: in_turn(p.stream.limit) if live or (p.partly_live and not self.once) else p.stream.limit
            for p in long
        }
        return {
            **fair_shares({p.stream.name: p.offsets for p in short}, {p.stream.name: p.stream.limit for p in short}),
            **fair_shares({p.stream.name: p.offsets for p in long}, limits),
        }
