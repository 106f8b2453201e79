"""One stream of a job: its life, and what the job's loop knows of it.

    WAITING ◀──outage── OPENING ──opened──▶ LIVE ──all is read, of a job that ends then──▶ DONE
       │  ▲                ▲                 │
       │  └────────────────┼─────outage──────┤
       └──pause is over────┘                 │
                           │                 │
                        resumed        from these three, each by one of:
                           │                 ├── an operator pauses it ──────────────▶ PAUSED
                           │                 ├── an error that waiting does not fix ─▶ STOPPED
                           │                 ├── the same, before it was ever open ──▶ REFUSED
                           │                 └── another job has it ─────────────────▶ TAKEN
                           └──────────────── from these four

    From each but DONE: its topic was deleted ──▶ LEFT

What operators ask for and what is recorded is kept by the roster, which knows no more than running, waiting, stopped
and paused. `JobStream.next_phase` is the one place that decides what follows from it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Protocol

from ch_sink.errors import ChSinkError, LedgerConflict
from ch_sink.model.values import TopicState
from ch_sink.observe.stream import Standing, StateName, StreamSummary
from ch_sink.ports import Claim
from ch_sink.stream.batch_plan import OffsetRange, plan_ranges
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.pace import Flush
from ch_sink.stream.ports import StreamSettings
from ch_sink.stream.rounds import Rounds


class Phase(Enum):
    """The state of a stream: see the drawing above."""

    OPENING = auto()
    """It is opened as soon as a thread is free."""
    LIVE = auto()
    """It is open, and reads what comes."""
    WAITING = auto()
    """A server is unavailable: it is opened again after a pause."""
    PAUSED = auto()
    STOPPED = auto()
    REFUSED = auto()
    """It never opened: another job tries again by itself."""
    TAKEN = auto()
    """Another job has it."""
    DONE = auto()
    LEFT = auto()


ACTIVE = frozenset({Phase.OPENING, Phase.LIVE, Phase.WAITING})
"""The job has the stream."""
HELD = frozenset({Phase.PAUSED, Phase.STOPPED, Phase.REFUSED, Phase.TAKEN})
"""It does not, until somebody resumes the stream."""
_FOLLOWS: Mapping[Phase, frozenset[Phase]] = {
    Phase.OPENING: HELD | {Phase.LIVE, Phase.WAITING, Phase.LEFT},
    Phase.LIVE: HELD | {Phase.WAITING, Phase.DONE, Phase.LEFT},
    Phase.WAITING: HELD | {Phase.OPENING, Phase.LEFT},
    **dict.fromkeys(HELD, frozenset({Phase.OPENING, Phase.LEFT})),
    Phase.DONE: frozenset(),
    Phase.LEFT: frozenset(),
}


class Watermarks(Protocol):
    """Asks one Kafka cluster about many topics at once."""

    def states(self, topics: Sequence[str]) -> Mapping[str, TopicState | ChSinkError]:
        """Id, partitions and watermarks of each topic, or why they are not known. Never raises ChSinkError."""
        ...


@dataclass(slots=True)
class Pace:
    """The times at which a stream looks for new events, in seconds of the job's clock."""

    interval: float = 1.0
    """Between two looks while there is no backlog."""
    flush: Flush = field(default_factory=Flush)
    """The time at which a few new events are read."""
    due: float = -math.inf
    """The time of its next look."""
    clear_at: float = -math.inf
    """The last time at which nothing waited to be read, or a batch began: what waits now came after that."""
    held_until: float | None = None
    """Until when a few new events wait for more."""
    active_at: float = -math.inf
    """The time at which its last batch began."""

    def holds(self, events: int, now: float, active: int) -> bool:
        """Whether so many new events wait for more of them; notes until when."""
        if not self.flush.waits(events, now - self.clear_at, active):
            return False
        self.held_until = self.clear_at + self.flush.longest(active)
        return True


@dataclass(slots=True)
class Reading:
    """The job's knowledge of the topic's end and of how far it has read."""

    topic: TopicState | None = field(default=None, repr=False)
    """The state of the topic that was last planned by; None if the stream has been opened since."""
    all_read: bool = False
    """Nothing of it is left."""
    counted: TopicState | None = field(default=None, repr=False)
    """The state of the topic in which the stream's lag was counted; None if it was never open."""
    left: int = 0
    """Offsets that the running batch leaves."""
    at_opening: tuple[TopicState, Sequence[OffsetRange]] | None = field(default=None, repr=False)
    """The topic and what there was to read when the stream was opened, until its first batch."""
    end: TopicState | None = field(default=None, repr=False)
    """Nothing beyond this state of the topic is read; None if there is no such end."""
    backlog: bool = False
    """The running batch leaves something to be read that is there now."""
    fresh: bool = True
    """No batch of this job has ended: changes may wait since an earlier job."""
    turn: int = 0
    """Counts batches and openings."""


class JobStream:
    """A stream, what it is doing, and when it looks for new events next. Only the job's own thread changes it."""

    def __init__(
        self,
        settings: StreamSettings,
        connect: Callable[[], Coordinator],
        watermarks: Watermarks,
        pace: Pace | None = None,
        limit: int | None = None,
        *,
        comes_and_goes: bool = False,
        table: str = "",
        server: str = "",
    ) -> None:
        """
        Args:
            connect: connects to the stream's external systems, each time it is opened. Raises ChSinkError.
            limit: the most offsets that one batch may read.
            comes_and_goes: its topic was found by a pattern: if it is deleted, the stream leaves the job.
            table: its table as the configuration names it.
            server: the ClickHouse server of its table. It shares no batch with streams of others.
        """
        self.settings, self.connect, self.watermarks = settings, connect, watermarks
        self.pace, self.reading, self.limit = pace or Pace(), Reading(), limit
        self.comes_and_goes, self.server = comes_and_goes, server
        self.summary = StreamSummary(settings.name, settings.topic, table)
        """The figures of this job alone."""
        self.phase = Phase.OPENING
        self.busy = False
        """Work of this stream is running."""
        self.leaving = False
        """Its topic was deleted."""
        self.alone = False
        """It shares no call of the executor with others, as the last such call failed."""
        self.strikes = 0
        """Calls of the executor in succession that failed."""
        self._coordinator: Coordinator | None = None
        self._claim: Claim | None = None

    @property
    def name(self) -> str:
        """The stream's name in the ledger."""
        return self.settings.name

    @property
    def topic(self) -> str:
        """The topic that it reads."""
        return self.settings.topic

    @property
    def active(self) -> bool:
        """Whether it goes on by itself."""
        return self.phase in ACTIVE

    @property
    def hopeless(self) -> bool:
        """Whether it cannot go on in this job by itself, nor is anybody asked to resume it."""
        return self.phase in (Phase.REFUSED, Phase.TAKEN)

    @property
    def coordinator(self) -> Coordinator:
        """Works on the stream once it is open."""
        assert self._coordinator is not None
        return self._coordinator

    # Its life

    def next_phase(self, standing: StateName, failure: ChSinkError | None = None) -> Phase:
        """The phase that its standing asks for.

        Args:
            standing: its state in the roster.
            failure: what it failed with just now, if it did.
        """
        if self.leaving:
            return Phase.LEFT
        if standing in ("running", "waiting"):
            return Phase.WAITING if failure is not None else self.phase if self.active else Phase.OPENING
        if not self.active:
            return self.phase
        if standing == "paused":
            return Phase.PAUSED
        if isinstance(failure, LedgerConflict):
            return Phase.TAKEN
        return Phase.REFUSED if failure is not None and not self.summary.opened else Phase.STOPPED

    def become(self, phase: Phase) -> None:
        """Enter the phase; what belonged to the one before is over."""
        assert phase in _FOLLOWS[self.phase], f"{self.name}: {self.phase} cannot become {phase}"
        self.phase = phase
        if phase is Phase.TAKEN:
            self.summary.lag = None  # the other job's
        if phase in HELD | {Phase.WAITING, Phase.OPENING}:
            self.reading.at_opening, self.reading.all_read = None, False
            self.pace.due = -math.inf

    def begin_opening(self) -> None:
        """It is being opened."""
        if self.phase is Phase.WAITING:
            self.become(Phase.OPENING)
        self.busy, self.reading.topic = True, None
        self.reading.turn += 1

    def opened(self, topic: TopicState, unread: Sequence[OffsetRange]) -> None:
        """It is open, and has so much to read."""
        self.become(Phase.LIVE)
        self._worked()
        self.pace.due, self.reading.at_opening = -math.inf, (topic, unread)
        self.reading.counted, self.summary.lag = topic, sum(r.end - r.start for r in unread) + self.withheld

    def begin(self, now: float, topic: TopicState, offsets: int, ranges: Sequence[OffsetRange]) -> None:
        """A batch of these ranges begins. ``offsets``: all that may be read now in this state of the topic."""
        pace, reading, offsets = self.pace, self.reading, offsets + self.withheld
        self.busy, pace.held_until, pace.active_at, pace.clear_at = True, None, now, now
        reading.topic, reading.all_read, reading.counted, self.summary.lag = topic, True, topic, offsets
        reading.turn += 1
        reading.left = offsets - sum(r.end - r.start for r in ranges)
        reading.backlog = reading.left > 0 or any(r.chunk_offsets for r in ranges)  # what was begun is not all there is

    def ended(self, due: float) -> None:
        """Its batch has ended well. ``due``: when it looks again if it has read all there is."""
        self._worked()
        self.reading.fresh, self.summary.lag = False, max(self.reading.left, self.withheld)
        self.reading.all_read = not self.reading.backlog and not self.withheld
        self.pace.due = -math.inf if self.reading.backlog else due

    @property
    def withheld(self) -> int:
        """Offsets that its last plan has left to later ones."""
        return self._coordinator.withheld if self._coordinator is not None else 0

    def rest(self, now: float, topic: TopicState) -> None:
        """There is nothing to read in this state of the topic, or only what the next look may read."""
        self.reading.topic, self.reading.all_read, self.reading.counted = topic, not self.withheld, topic
        self.summary.lag, self.pace.clear_at = self.withheld, now

    @property
    def unattended(self) -> bool:
        """Whether its topic grows without being read."""
        held = self.phase in (Phase.WAITING, Phase.PAUSED, Phase.STOPPED)
        return held and not self.busy and self.reading.counted is not None

    def grew(self, topic: TopicState) -> None:
        """Nothing is read of its topic, which is in this state now."""
        before = self.reading.counted
        known = before.high if before is not None and before.topic_id == topic.topic_id else {}
        more = (high - known.get(p, topic.low.get(p, 0)) for p, high in topic.high.items())
        self.summary.lag = (self.summary.lag or 0) + sum(max(0, number) for number in more)
        self.reading.counted = topic

    def strike(self, now: float, *, executor: bool) -> None:
        """Its last call ended without an answer: it plans again, in a call of its own. ``executor``: that failed."""
        self.strikes, self.alone = self.strikes + executor, True
        self.pace.due, self.reading.all_read = now + max(self.strikes, 1), False
        self.summary.retries += 1

    def _worked(self) -> None:
        self.busy, self.strikes, self.alone = False, 0, False

    def shown(self, standing: Standing) -> Standing:
        """Its standing as others see it."""
        opening = standing.state == "running" and self.phase in (Phase.OPENING, Phase.WAITING)
        return replace(standing, state="opening") if opening else standing

    # Its work, in lanes

    def open(self) -> TopicState:
        """Connect, and find where the stream left off; returns its topic. Raises ChSinkError."""
        self.close()
        self._coordinator = made = self.connect()
        self.settings = made.settings
        made.summary = self.summary
        made.open(self._claim)
        self.summary.opened = True
        return made.topic

    def close(self) -> None:
        """Release what `open` took."""
        made, self._coordinator = self._coordinator, None
        if made is not None:
            self._claim = made.claim or self._claim
            made.close()

    def rounds(self, ranges: Sequence[OffsetRange]) -> Rounds:
        """The rounds of the next batch, which may have no ranges."""
        if self.reading.fresh or not ranges:
            yield from self.coordinator.release(caught_up=not ranges and not self.withheld)
        yield from self.coordinator.batch(ranges)

    # What it reads

    def unread(self, topic: TopicState, *, once: bool) -> Sequence[OffsetRange]:
        """All that there is to read; if ``once``, nothing beyond what was there at first. Raises ChSinkError."""
        reading = self.reading
        if once and (reading.end is None or reading.end.topic_id != topic.topic_id):
            reading.end = topic
        return self.coordinator.plan(topic, None, reading.end.high if reading.end is not None else None)

    def look(self, topic: TopicState, *, once: bool) -> Sequence[OffsetRange]:
        """As `unread`, but it asks the ledger only if the topic has changed."""
        if self.reading.at_opening is not None:
            found, self.reading.at_opening = self.reading.at_opening[1], None
            return found
        same = self.reading.all_read and topic == self.reading.topic
        return () if same else self.unread(topic, once=once)

    def cut(self, unread: Sequence[OffsetRange], limit: int | None) -> Sequence[OffsetRange]:
        """A batch of at most so many offsets. What an earlier batch has begun is read again whole."""
        if limit is None or sum(r.end - r.start for r in unread) <= limit or any(r.chunk_offsets for r in unread):
            return unread
        ends = plan_ranges(
            {r.partition: r.start for r in unread},
            {r.partition: r.end for r in unread},
            limit,
            self.settings.chunk_offsets,
        )
        # A range whose first offsets were lost is kept, as it says how many.
        cut = [replace(r, end=max(ends[r.partition], r.start + bool(r.lost))) for r in unread]
        return [r for r in cut if r.start < r.end]
