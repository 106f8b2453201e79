"""One stream of a job, as the job's loop sees it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from ch_sink.errors import ChSinkError
from ch_sink.model.values import TopicState
from ch_sink.observe import StreamState, StreamSummary
from ch_sink.observe.picture import StreamPicture
from ch_sink.ports import Claim
from ch_sink.stream.coordinator import Coordinator, StreamSettings
from ch_sink.stream.flush import Flush
from ch_sink.stream.offset_ranges import OffsetRange, plan_ranges
from ch_sink.stream.rounds import Rounds

__all__ = ["JobStream", "Watermarks"]


class Watermarks(Protocol):
    """Asks one Kafka cluster about many topics at once."""

    def states(self, topics: Sequence[str]) -> Mapping[str, TopicState | ChSinkError]:
        """Id, partitions and watermarks of each topic, or why they are not known. Never raises ChSinkError."""
        ...


@dataclass(eq=False)
class JobStream:
    """A stream, what it is doing, and when it looks for new events next. Only the job's own thread changes it."""

    settings: StreamSettings
    connect: Callable[[], Coordinator]
    """Connects to the stream's external systems, each time it is opened. Raises ChSinkError."""
    watermarks: Watermarks
    interval: float = 1.0
    """Seconds between two looks for new events while there is no backlog."""
    limit: int | None = None
    """The most offsets that one batch may read."""
    flush: Flush = field(default_factory=Flush)
    """When a few new events are read."""
    state: Literal["opening", "running", "paused", "stopped", "done"] = "opening"
    error: ChSinkError | None = None
    """What stopped it."""
    comes_and_goes: bool = False
    """Its topic was found by a pattern: if it is deleted, the stream leaves the job."""
    table: str = ""
    """Its table as the configuration names it."""
    leaving: bool = False
    """Its topic was deleted."""
    hopeless: bool = False
    """It cannot go on in this job by itself: it never opened, or another job has it."""
    busy: bool = False
    """Work of this stream is running."""
    due: float = -math.inf
    """When it looks for new events next."""
    alone: bool = False
    """It shares no call of the executor with others, as the last such call failed."""
    strikes: int = 0
    """Calls of the executor in succession that failed."""
    seen: TopicState | None = field(default=None, repr=False)
    """A state of the topic of which everything has been read."""
    known: TopicState | None = field(default=None, repr=False)
    """The state of the topic by which the last batch was planned; None if the stream has been opened since."""
    turn: int = 0
    """Counts batches and openings."""
    end: TopicState | None = field(default=None, repr=False)
    """Nothing beyond this state of the topic is read; None if there is no such end."""
    backlog: bool = False
    """The running batch leaves something to be read that is there now."""
    summary: StreamSummary = field(init=False)
    """What this job has done of it."""
    opened: tuple[TopicState, Sequence[OffsetRange]] | None = field(default=None, repr=False)
    """The topic and what there was to read when it was opened, until its first batch."""
    clear_at: float = -math.inf
    """When it was last seen that nothing waits to be read, or a batch began: what waits now came after that."""
    held_until: float | None = None
    """Until when a few new events wait for more."""
    active_at: float = -math.inf
    """When its last batch began."""
    fresh: bool = True
    """No batch of this job has ended: changes may wait since an earlier job."""

    def __post_init__(self) -> None:
        self.summary = StreamSummary(self.settings.name, self.settings.topic, "")
        self._coordinator: Coordinator | None = None
        self._was_open = False
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
        return self.state in ("opening", "running")

    @property
    def coordinator(self) -> Coordinator:
        """Works on the stream once it is open."""
        assert self._coordinator is not None
        return self._coordinator

    @property
    def was_open(self) -> bool:
        """Whether this job has opened it."""
        return self._was_open

    def open(self) -> TopicState:
        """Connect, and find where the stream left off; returns its topic. Raises ChSinkError."""
        self.close()
        self._coordinator = made = self.connect()
        self.settings = made.settings
        made.summary = self.summary
        made.open(self._claim)
        self._was_open = True
        return made.topic

    def close(self) -> None:
        """Release what `open` took."""
        made, self._coordinator = self._coordinator, None
        if made is not None:
            self._claim = made.claim or self._claim
            made.close()

    def picture(self, standing: StreamState) -> StreamPicture:
        """What it has done and has to do. ``standing``: its state."""
        seen = self.summary.figures
        return StreamPicture(
            self.name,
            self.summary.table,
            standing,
            self.state == "opening",
            self.summary.lag,
            seen.records,
            seen.rows,
            seen.deletes,
            seen.dead_letters,
        )

    def unread(self, state: TopicState) -> Sequence[OffsetRange]:
        """All that there is to read, nothing beyond ``end``. Raises ChSinkError."""
        return self.coordinator.plan(state, None, self.end.high if self.end is not None else None)

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

    def begin(self, now: float, state: TopicState, offsets: int, ranges: Sequence[OffsetRange]) -> None:
        """A batch of these ranges begins. ``offsets``: all that there is to read in this state of the topic."""
        self.busy, self.held_until, self.active_at, self.clear_at = True, None, now, now
        self.seen, self.known, self.summary.lag = state, state, offsets
        self.turn += 1
        left = offsets - sum(r.end - r.start for r in ranges)
        self.backlog = left > 0 or any(r.chunk_offsets for r in ranges)  # what was begun is not all there is

    def rounds(self, ranges: Sequence[OffsetRange]) -> Rounds:
        """The rounds of the next batch, which may have no ranges."""
        if self.fresh:
            yield from self.coordinator.release()
        yield from self.coordinator.batch(ranges)
