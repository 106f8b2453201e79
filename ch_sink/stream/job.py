"""The loop of a job: one driver for all streams, from their ledgers and their topics' watermarks to one executor.

Each turn takes the streams that are due, asks for the watermarks of all their topics at once (`Looks`, beside the
loop), plans what each reads, and starts one batch of them all: their tasks share a call of the executor. A stream whose
rounds are done is free for the next turn while others of its batch still run. Streams with a long backlog have a batch
and a lane of their own, and read little at a time while others are live, so that those wait for seconds at most. Each
ClickHouse server has batches and lanes of its own: one that hangs keeps only its own streams waiting.

What a stream's work came to is decided in one place, `Job._settle`. A stream that fails waits or stops, as its roster
says; the others go on. A stream that waited, or was resumed, is opened again: what it had begun is in its ledger.
"""

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from ch_sink.errors import (
    ChSinkError,
    ClickHouseUnavailable,
    LedgerConflict,
    Superseded,
    TopicNotFound,
)
from ch_sink.model.counts import counted
from ch_sink.observe.job_view import JobView
from ch_sink.observe.stream import StreamSummary, StreamView
from ch_sink.ports import StreamStates
from ch_sink.stream.claims import abandoned
from ch_sink.stream.job_stream import ACTIVE, JobStream, Phase
from ch_sink.stream.lanes import (
    Answered,
    BatchEnded,
    CallEnded,
    Changed,
    Closed,
    Discovered,
    Exchanged,
    Failed,
    JobWork,
    Lanes,
    Opened,
    Report,
)
from ch_sink.stream.pace import Slots
from ch_sink.stream.roster import Roster
from ch_sink.stream.rounds import WriteAll, write_each
from ch_sink.stream.tasks import ExecuteWithin
from ch_sink.stream.turn import Looked, Looks, Turn

log = logging.getLogger("ch_sink")

_LOOK = 0.3
"""Longest wait before the job looks whether it is to stop, in seconds."""
_REST = 4
"""How many times as long as a pass over all streams took passes at least until the next: what ends meanwhile waits."""
_CHEAP = 0.002
"""Rests that are shorter, in seconds, are left out."""
_SHORTEST = 0.02
"""Shortest time between two looks for new events, in seconds."""
_GRAIN = 0.1
"""Moments so far apart, in seconds, at which streams look whose few new events wait for more."""
_STRIKES = 3
"""Calls of the executor in succession that may fail before the stream stops."""
_STATES = 1.0
"""Seconds between two exchanges of states with the ledger."""
_CLOSED_AT_ONCE = 8
"""Streams that are closed at the same time at the end."""
_UNATTENDED = 5.0
"""Seconds between two counts of what comes in the topics of streams that are paused, stopped or wait."""
_ABSENT = 5.0
"""Seconds after which a stream whose topic is missing looks again, until the topic is known to be deleted."""
_FINISH = 60.0
"""Longest wait for the running batches of the other streams after one has failed under ``fail_fast``, in seconds."""
_LAST_BATCH = 10.0
"""Longest wait for running batches after a signal; then they are abandoned, and the next job repeats them."""
_ABANDONED = 5.0
"""Longest wait for batches that were abandoned."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The course of a job, and its end."""

    slots: Callable[[], int] = lambda: 1
    """How many tasks the executor runs at once."""
    once: bool = False
    """Until everything has been read that was there when it started."""
    fail_fast: bool = False
    """Until the first stream fails."""
    stopping: Callable[[], bool] = lambda: False
    """Whether no further batch is to begin."""
    abandon: Callable[[], None] = lambda: None
    """Cancels the running calls of the executor."""
    lost: Callable[[], ChSinkError | None] = lambda: None
    """Why the executor will run no more tasks, if found while it had none."""
    on_resume: Callable[[JobStream], None] = lambda _: None
    """Is called with each stream that somebody resumed, before it is opened again."""
    discover: Callable[[], Changed] | None = None
    """Looks which streams join and leave; None if the job's streams are given once and for all. It must not raise."""
    discover_every: float = 30.0
    """Seconds from one such look to the next."""


class Job:
    """Runs streams until they end or the job is stopped. Its own thread alone touches what it knows of them."""

    def __init__(
        self,
        streams: Sequence[JobStream],
        execute: ExecuteWithin,
        lanes: Lanes,
        options: JobOptions,
        roster: Roster,
        write: WriteAll = write_each,
    ) -> None:
        """
        Args:
            roster: of the same streams, with the lanes' clock.
            write: writes to the ledgers of many streams at once.
        """
        self.streams, self.roster = list(streams), roster
        self._left: list[JobStream] = []
        """Streams whose topics were deleted while the job ran."""
        self._slots = Slots(execute, options.slots, lanes.now)
        self._lanes, self._options = lanes, options
        self._work = JobWork(roster, self._slots, write, options.discover, once=options.once)
        self._began = lanes.now()
        self._looks = Looks(lanes)
        self._failed_fast = False
        self._lost: ChSinkError | None = None
        self._ready: frozenset[str] = frozenset()
        self._exchanges: dict[StreamStates, float] = {}
        """The next time at which states are exchanged with each ledger: infinite while that is under way."""
        self._next_count = -math.inf
        self._discovering = options.discover is None or options.once
        self._next_discovery = self._began + options.discover_every

    def run(self) -> dict[str, ChSinkError]:
        """Run to the end; returns the errors of the streams that stopped or, with ``once``, are paused. All are closed.

        Raises the job's own error, such as SparkLost: nothing is recorded of any stream then.
        """
        try:
            while self._goes_on and not self._ending:
                began = self._lanes.now()
                self._follow()
                self._discover()
                self._open()
                self._turn()
                rest = min(_REST * (self._lanes.now() - began), _LOOK)
                self._take(self._pause())
                until = self._lanes.now() + rest
                while (left := until - self._lanes.now()) > _CHEAP:
                    self._take(left)
            self._finish()
        finally:
            self._lanes.close()
            # Each waits for its ledger, which may be unavailable.
            with ThreadPoolExecutor(_CLOSED_AT_ONCE) as pool:
                list(pool.map(JobStream.close, self.streams))
            self.roster.close()
        if self._lost is not None:
            raise self._lost
        paused = [s.name for s in self.streams if self._options.once and s.phase is Phase.PAUSED]
        return self.roster.failures() | {name: self.roster.paused(name) for name in paused}

    @property
    def summaries(self) -> list[StreamSummary]:
        """The figures of each stream, including those that have left the job."""
        return [stream.summary for stream in (*self.streams, *self._left)]

    def view(self) -> JobView:
        """A snapshot of the job; may be called by any thread."""
        standings, comparisons = self.roster.standings(), self.roster.comparisons()
        streams = [s for s in list(self.streams) if s.name in standings]
        opened = any(s.summary.opened for s in streams)
        doing = "" if opened else f"opening {counted(len(streams), 'stream')}" if streams else "waiting for topics"
        views = (StreamView(s.summary, s.shown(standings[s.name]), comparisons.get(s.name)) for s in streams)
        return JobView(tuple(views), self._lanes.now(), doing)

    @property
    def _goes_on(self) -> bool:
        if self._options.once:
            return any(s.active or s.busy for s in self.streams)
        # A stream that is paused or stopped may be resumed, and topics may come.
        return self._options.discover is not None or any(s.busy or not s.hopeless for s in self.streams)

    @property
    def _ending(self) -> bool:
        return self._failed_fast or self._lost is not None or self._options.stopping()

    # What begins

    def _follow(self) -> None:
        """Do with each stream what its standing says."""
        self._lost = self._lost or self._options.lost()
        for states in self.roster.ledgers():
            if self._lanes.now() >= self._exchanges.get(states, -math.inf):
                self._exchanges[states] = math.inf
                self._lanes.start("states", partial(self._work.exchange, states), states)
        self._ready, standings = frozenset(self.roster.ready()), self.roster.standings()
        for stream in self.streams:
            if stream.busy or stream.phase in (Phase.DONE, Phase.LEFT):
                continue
            phase = stream.next_phase(standings[stream.name].state)
            if phase is Phase.OPENING and not stream.active:
                stream.become(phase)
                self._options.on_resume(stream)
            elif phase not in ACTIVE and phase is not stream.phase:
                self._let_go(stream, phase)

    def _let_go(self, stream: JobStream, phase: Phase) -> None:
        """The stream is read no longer; its claim is released, so that another job may take it."""
        stream.become(phase)
        stream.busy = True
        self._lanes.start("open", partial(self._work.close, stream), stream.server)
        self._failed_fast |= self._options.fail_fast and phase not in (Phase.PAUSED, Phase.LEFT, Phase.DONE)

    def _discover(self) -> None:
        """Begin to look which topics have come and gone."""
        if not self._discovering and self._lanes.now() >= self._next_discovery and self._lanes.free("open"):
            self._discovering = True
            self._lanes.start("open", self._work.discover)

    def _open(self) -> None:
        """Begin to open streams that are due: each in its own thread, since it is all waiting for answers."""
        now = self._lanes.now()
        for stream in self.streams:
            if self._opens(stream) and stream.pace.due <= now and self._lanes.free("open", stream.server):
                stream.begin_opening()
                self._lanes.start("open", partial(self._work.open, stream), stream.server)

    def _opens(self, stream: JobStream) -> bool:
        """Whether the job opens the stream when it is due."""
        return stream.phase in (Phase.OPENING, Phase.WAITING) and not stream.busy and stream.name in self._ready

    def _turn(self) -> None:
        """Ask for the topics of all streams that are due; start a batch of those of which it is known what to read."""
        now = self._lanes.now()
        due = [s for s, wait in self._free().items() if s.pace.due <= now and not wait]
        opened = [(s, s.reading.at_opening[0]) for s in due if s.reading.at_opening is not None]
        unattended: list[JobStream] = []
        if now >= self._next_count:
            self._next_count = now + _UNATTENDED
            unattended = [s for s in self.streams if s.unattended]
        self._plan([*opened, *self._looks.ask([s for s in due if s.reading.at_opening is None], unattended)])

    def _free(self) -> dict[JobStream, float]:
        """The streams of which a batch can begin, each with the seconds until there is a slot for it."""
        servers = {s.server for s in self.streams}
        waits = {server: self._slots.wait(server) for server in servers if self._lanes.free("batch", server)}
        live = (s for s in self.streams if s.phase is Phase.LIVE and not s.busy)
        return {s: waits[s.server] for s in live if s.server in waits}

    def _plan(self, looked: Looked) -> None:
        """Start a batch of those of these streams that have something to read."""
        if not looked:
            return
        turn = Turn(self.streams, self._lanes.now(), self._options.once)
        turn.plan(looked)
        for stream in turn.rested:
            self.roster.worked(stream.name)
            stream.pace.due = self._tick(stream)
            if self._options.once:
                self._let_go(stream, Phase.DONE)
        for stream in turn.held:
            stream.pace.due = min(self._tick(stream), self._release(stream))
        for failed in turn.failed:
            self._failed(failed)
        for batch in turn.batches:
            server = next(iter(batch)).server
            shared = any(s.server != server for s in self.streams)
            slots = self._slots.expect(sum(map(len, batch.values())), server, shared=shared)
            self._lanes.start("batch", partial(self._work.run, batch, slots), server)

    # What follows

    def _take(self, seconds: float) -> None:
        for report in self._lanes.wait(seconds):
            self._settle(report)

    def _settle(self, report: Report) -> None:
        """Decide what follows from a piece of work."""
        match report:
            case CallEnded():
                pass
            case Exchanged(states):
                self._exchanges[states] = self._lanes.now() + _STATES
            case Discovered(changed):
                self._change(changed)
            case Answered():
                looked = self._looks.answered(report)
                free = set(self._free())
                if not self._ending:
                    self._plan([found for found in looked if found[0] in free])
            case Closed(stream):
                stream.busy = False
                self.roster.holds(stream.name, claim=False)
                if stream.phase is Phase.LEFT:
                    self.streams.remove(stream)
                    self._left.append(stream)
            case Opened(stream, topic, unread):
                self.roster.holds(stream.name, claim=True)
                stream.opened(topic, unread)
            case BatchEnded(stream):
                self.roster.worked(stream.name)
                stream.ended(-math.inf if self._options.once else self._tick(stream))
            case Failed():
                self._failed(report)

    def _failed(self, failed: Failed) -> None:
        """The stream tries again at once, waits until it is opened again, or stops."""
        stream, error, now = failed.stream, failed.error, self._lanes.now()
        stream.busy = stream.reading.all_read = False
        if failed.job:
            self._lost = error
        elif isinstance(error, Superseded) or (failed.executor and stream.strikes + 1 < _STRIKES):
            # Another execution of its task says nothing about the stream; a call that failed may.
            stream.strike(now, executor=failed.executor)
        elif stream.comes_and_goes and isinstance(error, TopicNotFound) and not self._options.once:
            # Looking for topics finds out whether it is gone for good.
            stream.pace.due, self._next_discovery = now + _ABSENT, now
        else:
            if isinstance(error, LedgerConflict) and abandoned(stream.name, error.run_id):
                error = ClickHouseUnavailable(f"{error}: ClickHouse received that claim of this job late")
            self.roster.failed(stream.name, error, settled=stream.summary.opened)
            phase = stream.next_phase(self.roster.standing(stream.name).state, error)
            if phase in ACTIVE:
                stream.become(phase)
                stream.summary.retries += 1
            else:
                self._let_go(stream, phase)

    def _change(self, changed: Changed) -> None:
        """Take up the streams that join; those that leave are closed when their running work is done."""
        self._discovering, self._next_discovery = False, self._lanes.now() + self._options.discover_every
        for stream, member in changed.joined:
            self.roster.add(member)
            self.streams.append(stream)
        for stream in self.streams:
            if stream.name in changed.settled:
                stream.leaving = True
            elif stream.name in changed.left and not stream.leaving:
                stream.leaving = True
                log.warning("%s leaves the job: topic %s was deleted", stream.name, stream.topic)

    # When

    def _pause(self) -> float:
        """How long nothing has to be done unless work ends."""
        if not any(s.busy for s in self.streams) and not self._goes_on:
            return 0.0
        now = self._lanes.now()
        waits: list[float] = []
        waits += [s.pace.due - now for s in self.streams if self._opens(s) and self._lanes.free("open", s.server)]
        waits += [max(s.pace.due - now, self._looks.wait(s) - now, slot) for s, slot in self._free().items()]
        if not self._discovering:
            waits.append(self._next_discovery - now)
        waits += [due - now for due in self._exchanges.values()]
        return max(0.0, min([_LOOK, self.roster.next_due(), *waits]))

    def _tick(self, stream: JobStream) -> float:
        """The next moment at which the stream looks: the same for all streams of one interval, for one question."""
        interval = max(stream.pace.interval, _SHORTEST)
        return self._began + (math.floor((self._lanes.now() - self._began) / interval) + 1) * interval

    def _release(self, stream: JobStream) -> float:
        """When events that wait for more have waited long enough; close moments count as one, for one question."""
        until = stream.pace.held_until if stream.pace.held_until is not None else self._lanes.now()
        return self._began + math.ceil((until - self._began) / _GRAIN - 1e-6) * _GRAIN

    def _finish(self) -> None:
        """Let running work come to its end, for so long."""
        for seconds in (_LAST_BATCH if self._options.stopping() else _FINISH, _ABANDONED):
            until = self._lanes.now() + seconds
            while any(s.busy for s in self.streams) and self._lanes.now() < until:
                self._take(min(_LOOK, until - self._lanes.now()))
            if not any(s.busy for s in self.streams):
                return
            self._options.abandon()
