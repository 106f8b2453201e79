"""A turn of a job: what each stream that is due reads next, and in which batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ch_sink.model.values import TopicState
from ch_sink.stream.flush import ACTIVE
from ch_sink.stream.job_stream import JobStream
from ch_sink.stream.job_work import Ended
from ch_sink.stream.looks import Looked
from ch_sink.stream.offset_ranges import OffsetRange
from ch_sink.stream.rounds import as_failure
from ch_sink.stream.shares import LONG, fair_shares, in_turn

__all__ = ["TOGETHER", "Batch", "Turn", "unread"]

Batch = dict[JobStream, Sequence[OffsetRange]]
"""What each of its streams reads."""
TOGETHER = 100
"""Streams that begin a batch in one turn at most: in a batch of hundreds the first ones would wait for the last."""


@dataclass(frozen=True, slots=True)
class _Planned:
    stream: JobStream
    state: TopicState
    unread: Sequence[OffsetRange]
    """All that is there now."""

    @property
    def offsets(self) -> int:
        return sum(r.end - r.start for r in self.unread)


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
    failed: list[Ended] = field(default_factory=list)
    _active: int | None = None

    def plan(self, looked: Looked) -> None:
        """Plan the batches of these streams. Those that do not come now are due again."""
        planned = self._next(looked)
        long = {p.stream for p in planned if p.offsets > LONG}
        shares = self._shares([p for p in planned if p.stream not in long], [p for p in planned if p.stream in long])
        batch: Batch = {}
        for found in planned:
            stream = found.stream
            batch[stream] = ranges = stream.cut(found.unread, shares[stream.name])
            stream.begin(self.now, found.state, found.offsets, ranges)
        short = {stream: ranges for stream, ranges in batch.items() if not stream.alone and stream not in long}
        rest = {stream: ranges for stream, ranges in batch.items() if not stream.alone and stream in long}
        alone = [{stream: ranges} for stream, ranges in batch.items() if stream.alone]
        self.batches += [group for group in (short, rest, *alone) if group]

    def _next(self, looked: Looked) -> list[_Planned]:
        """What these streams read; those whose last batch is the longest ago come first, and some may not come."""
        planned: list[_Planned] = []
        for stream, state in sorted(looked, key=lambda found: found[0].active_at):
            if not isinstance(state, TopicState):
                self.failed.append(Ended(stream, "look", state))
            elif len(planned) < TOGETHER and (found := self._planned(stream, state)) is not None:
                planned.append(found)
        return planned

    def _planned(self, stream: JobStream, state: TopicState) -> _Planned | None:
        """All that the stream has to read; None if that is nothing, or waits."""
        found: Sequence[OffsetRange] = ()
        if stream.opened is not None:
            found, stream.opened = stream.opened[1], None
        elif state != stream.seen:
            try:
                found = unread(stream, state, self.once)
            except Exception as error:  # noqa: BLE001 (the stream's failure, whatever it is)
                self.failed.append(Ended(stream, "look", as_failure(stream.name, error)))
                return None
        if found and self._may_wait(stream, found):
            self.held.append(stream)
        elif found or (stream.fresh and stream.coordinator.waiting):
            return _Planned(stream, state, found)
        else:
            stream.seen, stream.summary.lag, stream.clear_at = state, 0, self.now
            self.rested.append(stream)
        return None

    def _may_wait(self, stream: JobStream, found: Sequence[OffsetRange]) -> bool:
        """Whether the events wait for more of them."""
        # What was begun, and the first look behind records that were lost, is never held.
        if self.once or stream.fresh or any(r.chunk_offsets or r.lost for r in found):
            return False
        if self._active is None:
            self._active = sum(self.now - s.active_at < ACTIVE for s in self.streams)
        events = sum(r.end - r.start for r in found)
        waits = stream.flush.waits(events, self.now - stream.clear_at, self._active)
        if waits:
            stream.summary.lag, stream.held_until = events, stream.clear_at + stream.flush.longest(self._active)
        return waits

    def _shares(self, short: Sequence[_Planned], long: Sequence[_Planned]) -> dict[str, int | None]:
        """How many offsets each stream may read. ``long``: those with a long backlog."""
        others = {p.stream for p in long}
        recent = (s for s in self.streams if s.state == "running" and self.now - s.active_at < ACTIVE)
        live = short or any(not s.backlog for s in recent if s not in others)
        limits = {p.stream.name: in_turn(p.stream.limit) if live else p.stream.limit for p in long}
        return {
            **fair_shares({p.stream.name: p.offsets for p in short}, {p.stream.name: p.stream.limit for p in short}),
            **fair_shares({p.stream.name: p.offsets for p in long}, limits),
        }


def unread(stream: JobStream, state: TopicState, once: bool) -> Sequence[OffsetRange]:
    """All that the stream has to read; if ``once``, nothing beyond what was there at first. Raises ChSinkError."""
    if once and (stream.end is None or stream.end.topic_id != state.topic_id):
        stream.end = state
    return stream.unread(state)
