"""The loop of a job: one driver for all streams, from their ledgers and their topics' watermarks to one executor.

Each turn takes the streams that are due, asks for the watermarks of all their topics at once (`Looks`, beside the
loop), plans what each reads, and starts one batch of them all: their tasks share a call of the executor. A stream whose
rounds are done is free for the next turn while others of its batch still run. Streams with a long backlog have a batch
and a lane of their own, and read little at a time while others are live, so that those wait for seconds at most.

What a stream's work came to is decided in one place, `Job._settle`. A stream that fails waits or stops, as its roster
says; the others go on. A stream that waited, or was resumed, is opened again: what it had begun is in its ledger.
"""

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ch_sink.errors import (
    ChSinkError,
    ClickHouseUnavailable,
    LedgerConflict,
    Superseded,
    TopicNotFound,
)
from ch_sink.model.address import counted
from ch_sink.observe.picture import JobPicture
from ch_sink.stream.claims import abandoned
from ch_sink.stream.job_stream import JobStream
from ch_sink.stream.job_work import Changed, Ended, JobOptions
from ch_sink.stream.lanes import Lanes
from ch_sink.stream.looks import Looked, Looks
from ch_sink.stream.roster import Roster
from ch_sink.stream.rounds import as_failure, run_together
from ch_sink.stream.slots import Slots, Work
from ch_sink.stream.tasks import Execute, Task, TaskResult
from ch_sink.stream.turn import Batch, Turn, unread
from ch_sink.stream.writes import WriteAll, write_each

__all__ = ["Job"]

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
_ABSENT = 5.0
"""Seconds after which a stream whose topic is missing looks again, until the topic is known to be deleted."""
_FINISH = 60.0
"""Longest wait for the running batches of the other streams after one has failed under ``fail_fast``, in seconds."""
_LAST_BATCH = 10.0
"""Longest wait for running batches after a signal; then they are abandoned, and the next job repeats them."""
_ABANDONED = 5.0
"""Longest wait for batches that were abandoned."""


class Job:
    """Runs streams until they end or are told to. Its own thread alone touches what it knows of them."""

    def __init__(
        self,
        streams: Sequence[JobStream],
        execute: Execute,
        lanes: Lanes[Ended],
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
        self.left: list[JobStream] = []
        """Streams whose topics were deleted while the job ran."""
        self._slots = Slots(execute, options.slots, lanes.now)
        self._lanes, self._options, self._write = lanes, options, write
        self._began = lanes.now()
        self._looks = Looks(lanes)
        self._failed_fast = False
        self._lost: ChSinkError | None = None
        self._ready: frozenset[str] = frozenset()
        self._exchanging = False
        self._next_exchange = -math.inf
        self._discovering = options.discover is None or options.once
        self._next_discovery = self._began + options.discover_every

    def run(self) -> dict[str, ChSinkError]:
        """Run to the end; returns the errors of the streams that stopped. The streams are closed after it.

        Raises the job's own error, such as SparkLost: nothing is recorded of any stream then.
        """
        try:
            while self._active and not self._ending:
                began = self._lanes.now()
                self._follow()
                self._discover()
                self._open()
                if self._lanes.free("batch") and not self._slots.wait():
                    self._turn()
                rest = min(_REST * (self._lanes.now() - began), _LOOK)
                self._take(self._pause())
                until = self._lanes.now() + rest
                while (left := until - self._lanes.now()) > _CHEAP:
                    self._take(left)
            self._finish()
        finally:
            self._lanes.close()
            # Each waits for its ledger, which may be away.
            with ThreadPoolExecutor(_CLOSED_AT_ONCE) as pool:
                list(pool.map(JobStream.close, self.streams))
            self.roster.close()
        if self._lost is not None:
            raise self._lost
        return {s.name: s.error for s in self.streams if s.error is not None}

    def picture(self) -> JobPicture:
        """What the job does now; may be called by any thread."""
        streams = list(self.streams)
        standings = self.roster.standings()
        streams = [s for s in streams if s.name in standings]
        opened = sum(s.was_open for s in streams)
        doing = "" if opened else f"opening {counted(len(streams), 'stream')}" if streams else "waiting for topics"
        return JobPicture(tuple(s.picture(standings[s.name]) for s in streams), self._lanes.now(), doing)

    @property
    def _active(self) -> bool:
        if self._options.once:
            return any(s.active or s.busy for s in self.streams)
        # A stream that is paused or stopped may be resumed, and topics may come.
        return self._options.discover is not None or any(s.busy or not s.hopeless for s in self.streams)

    @property
    def _ending(self) -> bool:
        return self._failed_fast or self._lost is not None or self._options.stopping()

    def _follow(self) -> None:
        """Do with each stream what its state says."""
        now = self._lanes.now()
        if not self._exchanging and now >= self._next_exchange:
            self._exchanging = True
            self._lanes.start("states", self._exchange)
        self._ready, working = frozenset(self.roster.ready()), self.roster.working()
        for stream in self.streams:
            if stream.busy or stream.state == "done":
                continue
            if stream.leaving:
                stream.busy, stream.state = True, "done"
                self._lanes.start("open", partial(self._close_one, stream))
                continue
            works = stream.name in working
            if stream.active and not works:
                self._hold(stream)
            elif works and not stream.active:
                stream.state, stream.error, stream.hopeless, stream.due = "opening", None, False, -math.inf
                self._options.on_resume(stream)

    def _exchange(self, report: Callable[[Ended], None]) -> None:
        """Exchange states with the ledgers, in a lane."""
        try:
            self.roster.look()
        except Exception as error:
            log.debug("states of streams were not exchanged: %s", error, exc_info=error)
        finally:
            report(Ended(None, "states"))

    def _discover(self) -> None:
        """Begin to look which topics have come and gone."""
        if not self._discovering and self._lanes.now() >= self._next_discovery and self._lanes.free("open"):
            self._discovering = True
            self._lanes.start("open", self._discover_one)

    def _discover_one(self, report: Callable[[Ended], None]) -> None:
        """Look for topics, in a lane."""
        assert self._options.discover is not None
        found = Changed()
        try:
            found = self._options.discover()
        finally:
            report(Ended(None, "topics", changed=found))

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

    def _hold(self, stream: JobStream) -> None:
        """The stream is paused or stopped; its claim is released, so that another job may take it."""
        standing = self.roster.standing(stream.name)
        stream.state = "paused" if standing.state == "paused" else "stopped"
        stream.opened = stream.seen = None
        stream.busy = True
        self._lanes.start("open", partial(self._close_one, stream))
        if stream.state == "stopped":
            stream.error = self.roster.failures().get(stream.name)
            self._failed_fast = self._failed_fast or self._options.fail_fast
            self._options.on_stop(stream)

    def _close_one(self, stream: JobStream, report: Callable[[Ended], None]) -> None:
        """Let a stream's claim go, in a lane."""
        try:
            stream.close()
            if stream.leaving:
                self.roster.remove(stream.name)
        finally:
            report(Ended(stream, "close"))

    def _open(self) -> None:
        """Begin to open streams that are due: each in its own thread, since it is all waiting for answers."""
        now = self._lanes.now()
        for stream in self.streams:
            waits = stream.busy or stream.due > now or stream.name not in self._ready
            if stream.state == "opening" and not waits and self._lanes.free("open"):
                stream.busy, stream.known = True, None
                stream.turn += 1
                self._lanes.start("open", partial(self._open_one, stream))

    def _turn(self) -> None:
        """Ask for the topics of all streams that are due; start a batch of those of which it is known what to read."""
        now = self._lanes.now()
        due = [s for s in self.streams if s.state == "running" and not s.busy and s.due <= now]
        opened = [(s, s.opened[0]) for s in due if s.opened is not None]
        self._plan([*opened, *self._looks.ask([s for s in due if s.opened is None])])

    def _plan(self, looked: Looked) -> None:
        """Start a batch of these streams, as far as they have something to read."""
        if not looked:
            return
        turn = Turn(self.streams, self._lanes.now(), self._options.once)
        turn.plan(looked)
        for stream in turn.rested:
            self.roster.worked(stream.name)
            if self._options.once:
                stream.state = "done"
        for stream in turn.rested:
            stream.due = self._tick(stream)
        for stream in turn.held:
            stream.due = min(self._tick(stream), self._release(stream))
        for failed in turn.failed:
            self._settle(failed)
        for batch in turn.batches:
            work = self._slots.expect(sum(map(len, batch.values())))
            self._lanes.start("batch", partial(self._run, batch, work))

    def _open_one(self, stream: JobStream, report: Callable[[Ended], None]) -> None:
        """Open a stream, in a lane."""
        try:
            state = stream.open()
            report(Ended(stream, "open", opened=(state, unread(stream, state, self._options.once))))
        except Exception as error:  # noqa: BLE001 (the stream's failure, whatever it is)
            report(Ended(stream, "open", as_failure(stream.name, error)))

    def _run(self, batch: Batch, work: Work, report: Callable[[Ended], None]) -> None:
        """Run a batch to its end, in a lane."""
        left = {stream.name: stream for stream in batch}

        def ended(name: str, error: ChSinkError | None) -> None:
            report(Ended(left.pop(name), "batch", error))

        def execute(tasks: Sequence[Task]) -> Sequence[TaskResult]:
            try:
                return self._slots.run(work, tasks)
            finally:
                report(Ended(None, "executed"))

        try:
            rounds = {s.name: s.rounds(ranges) for s, ranges in batch.items()}
            run_together(rounds, execute, ended, self._write)
        except Exception as error:
            log.debug("the executor failed: %s", error, exc_info=error)
            for name, stream in left.items():
                # An error that is raised on purpose would be raised again.
                meant = isinstance(error, ChSinkError)
                report(Ended(stream, "batch", as_failure(name, error), executor=not meant, job=meant))
        finally:
            self._slots.done(work)

    def _settle(self, ended: Ended) -> None:
        """Decide what a stream does after a piece of its work: go on, try again, wait or stop."""
        stream = ended.stream
        if ended.work == "topics":
            self._change(ended.changed)
            return
        if ended.work == "executed":
            return  # slots are free
        if ended.work == "look" and stream is None:
            looked = self._looks.answered(ended)
            if self._lanes.free("batch") and not self._ending:
                self._plan(looked)
            return
        if stream is None:
            self._exchanging, self._next_exchange = False, self._lanes.now() + _STATES
            return
        stream.busy = False
        if ended.work == "close":
            if stream.leaving:
                self.streams.remove(stream)
                self.left.append(stream)
            return
        if ended.error is not None:
            stream.seen = None
            if ended.job:
                self._lost = ended.error
            elif isinstance(ended.error, Superseded) or (ended.executor and stream.strikes + 1 < _STRIKES):
                # Another execution of its task says nothing about the stream; a call that failed may.
                stream.strikes, stream.alone = stream.strikes + ended.executor, True
                stream.due = self._lanes.now() + max(stream.strikes, 1)
                self._options.on_retry(stream)
            else:
                self._fail(stream, ended.error, ended)
            return
        stream.strikes, stream.alone = 0, False
        if ended.work == "open":
            stream.state, stream.due, stream.opened = "running", -math.inf, ended.opened
            stream.summary.lag = sum(r.end - r.start for r in ended.opened[1]) if ended.opened is not None else None
            self._options.on_open(stream)
        else:
            self.roster.worked(stream.name)
            stream.fresh = False
            stream.due = -math.inf if stream.backlog or self._options.once else self._tick(stream)
            if stream.backlog:
                stream.seen = None

    def _fail(self, stream: JobStream, error: ChSinkError, ended: Ended) -> None:
        """The stream waits until it is opened again, or stops."""
        if stream.comes_and_goes and isinstance(error, TopicNotFound) and not self._options.once:
            # Looking for topics finds out whether it is gone for good.
            stream.due, self._next_discovery = self._lanes.now() + _ABSENT, self._lanes.now()
            return
        if isinstance(error, LedgerConflict) and abandoned(stream.name, error.run_id):
            error = ClickHouseUnavailable(f"{error}: ClickHouse took that claim of this job late")
        at_start = ended.work == "open" and not stream.was_open
        self.roster.failed(stream.name, error, settled=not at_start)
        if self.roster.works(stream.name):
            stream.state, stream.opened, stream.due = "opening", None, -math.inf
            self._options.on_retry(stream)
        else:
            stopped = self.roster.standing(stream.name).state == "stopped"
            stream.hopeless = stopped and (at_start or isinstance(error, LedgerConflict))
            self._hold(stream)

    def _take(self, seconds: float) -> None:
        for ended in self._lanes.wait(seconds):
            self._settle(ended)

    def _pause(self) -> float:
        """How long nothing has to be done unless work ends."""
        if not any(s.busy for s in self.streams) and not self._active:
            return 0.0
        now = self._lanes.now()
        slots = self._slots.wait()
        free = {"opening": self._lanes.free("open"), "running": self._lanes.free("batch")}
        idle = [s for s in self.streams if s.active and not s.busy and free[s.state]]
        waits = [s.due - now for s in idle if s.state == "opening" and s.name in self._ready]
        waits += [max(s.due - now, self._looks.wait(s) - now, slots) for s in idle if s.state == "running"]
        if not self._discovering:
            waits.append(self._next_discovery - now)
        if not self._exchanging:
            waits += [self._next_exchange - now, self.roster.next_due()]
        return max(0.0, min([_LOOK, *waits]))

    def _tick(self, stream: JobStream) -> float:
        """The next moment at which the stream looks: the same for all streams of one interval, for one question."""
        interval = max(stream.interval, _SHORTEST)
        return self._began + (math.floor((self._lanes.now() - self._began) / interval) + 1) * interval

    def _release(self, stream: JobStream) -> float:
        """When events that wait for more have waited long enough; close moments count as one, for one question."""
        until = stream.held_until if stream.held_until is not None else self._lanes.now()
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
