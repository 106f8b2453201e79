"""The work of a job's streams: what it is, where it runs, how the job waits for it, and what it comes to.

Work runs in threads, or in the job's own thread. It reports what it came to by putting it on the lanes' list; only the
job's own thread takes it from there, so that everything the job knows of its streams changes in one thread.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from ch_sink.errors import ChSinkError
from ch_sink.model.values import TopicState
from ch_sink.ports import StreamStates
from ch_sink.stream.batch_plan import OffsetRange
from ch_sink.stream.job_stream import JobStream
from ch_sink.stream.pace import Call, Slots
from ch_sink.stream.roster import Roster
from ch_sink.stream.rounds import WriteAll, as_failure, run_together
from ch_sink.stream.standing import Member
from ch_sink.stream.tasks import Task, TaskResult

log = logging.getLogger("ch_sink")

_AHEAD = 4
"""Streams that are opened or wait for it, for each thread that opens them."""
Kind = Literal["batch", "open", "states", "look"]
_Lane = tuple[Kind, object]
"""A kind of work, and the server or ledger that it waits for."""
Batch = dict[JobStream, Sequence[OffsetRange]]
"""Each stream of a batch with the ranges that it reads."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream is open, and has so much to read."""

    stream: JobStream
    topic: TopicState
    unread: Sequence[OffsetRange]


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """A stream's part of a batch has ended well."""

    stream: JobStream


@dataclass(frozen=True, slots=True)
class Closed:
    """A stream has let its claim go."""

    stream: JobStream


@dataclass(frozen=True, slots=True)
class Failed:
    """A piece of a stream's work failed."""

    stream: JobStream
    error: ChSinkError
    executor: bool = False
    """The executor failed, so that the outcome of the stream's tasks is unknown."""
    job: bool = False
    """The error is that of the job, such as Spark that cannot be started."""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call of the executor has ended: slots are free."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The roster has exchanged states with a ledger, or could not."""

    states: StreamStates


@dataclass(frozen=True, slots=True)
class Changed:
    """Streams that join a running job, and names of those whose topics are gone."""

    joined: Sequence[tuple[JobStream, Member]] = ()
    left: Sequence[str] = ()
    settled: Sequence[str] = ()
    """Names of those that only showed why a topic is not a stream of the job, which is resolved."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """The result of a look for topics."""

    changed: Changed


@dataclass(frozen=True, slots=True)
class Answered:
    """A cluster has answered for watermarks: the state of each topic, or why it is not known."""

    cluster: int
    topics: Mapping[str, TopicState | ChSinkError]


Report = Opened | BatchEnded | Closed | Failed | CallEnded | Exchanged | Discovered | Answered
Reports = Callable[[Report], None]
Work = Callable[[Reports], None]
"""Is given the function by which it reports."""


class Lanes(Protocol):
    """Runs work, and tells the time."""

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    def free(self, kind: Kind, server: object = "") -> int:
        """How much more work of this kind can begin now. Each ClickHouse server has lanes of its own."""
        ...

    def start(self, kind: Kind, work: Work, server: object = "") -> None:
        """Begin work; it must not raise."""
        ...

    def wait(self, seconds: float) -> list[Report]:
        """The reports since the last call; waits for the first report or a free lane, at most so long."""
        ...

    def close(self) -> None:
        """End the threads; work that runs is abandoned."""
        ...


class ThreadLanes:
    """Each piece of work runs in a thread."""

    def __init__(self, batches: int = 2, opens: int = 8, looks: int = 8) -> None:
        self._threads: dict[Kind, int] = {"batch": batches, "open": opens, "states": 1, "look": looks}
        # A thread that has opened a stream finds the next one waiting, however busy the job is.
        self._most: dict[Kind, int] = {**self._threads, "open": _AHEAD * opens}
        self._pools: dict[_Lane, ThreadPoolExecutor] = {}
        self._taken: Counter[_Lane] = Counter()
        self._lock = threading.Lock()
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()

    def now(self) -> float:
        return time.monotonic()

    def free(self, kind: Kind, server: object = "") -> int:
        with self._lock:
            return max(0, self._most[kind] - self._taken[kind, server])

    def start(self, kind: Kind, work: Work, server: object = "") -> None:
        lane = kind, server
        with self._lock:
            self._taken[lane] += 1
            if lane not in self._pools:
                self._pools[lane] = ThreadPoolExecutor(self._threads[kind], thread_name_prefix=f"ch_sink {kind}")
        self._pools[lane].submit(self._run, lane, work)

    def wait(self, seconds: float) -> list[Report]:
        found: list[Report | None] = []
        with suppress(queue.Empty):
            found.append(self._reports.get(timeout=max(0.0, seconds)))
            while True:
                found.append(self._reports.get_nowait())
        return [report for report in found if report is not None]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, lane: _Lane, work: Work) -> None:
        try:
            work(self._reports.put)
        finally:
            with self._lock:
                self._taken[lane] -= 1
            self._reports.put(None)  # a lane is free


class JobWork:
    """Each method is one piece of work. It reports once for each stream, and changes nothing that the loop knows."""

    def __init__(
        self,
        roster: Roster,
        slots: Slots,
        write: WriteAll,
        discover: Callable[[], Changed] | None,
        *,
        once: bool,
    ) -> None:
        self._roster, self._slots, self._write, self._discover, self._once = roster, slots, write, discover, once

    def exchange(self, states: StreamStates, report: Reports) -> None:
        """Exchange standings with a ledger."""
        try:
            self._roster.look(states)
        except Exception as error:
            log.debug("stream states were not exchanged: %s", error, exc_info=error)
        finally:
            report(Exchanged(states))

    def discover(self, report: Reports) -> None:
        """Look for topics."""
        assert self._discover is not None
        found = Changed()
        try:
            found = self._discover()
        finally:
            report(Discovered(found))

    def open(self, stream: JobStream, report: Reports) -> None:
        """Open a stream."""
        try:
            topic = stream.open()
            report(Opened(stream, topic, stream.unread(topic, once=self._once)))
        except Exception as error:  # noqa: BLE001 (the stream's failure, whatever it is)
            report(Failed(stream, as_failure(stream.name, error)))

    def close(self, stream: JobStream, report: Reports) -> None:
        """Let a stream's claim go."""
        try:
            stream.close()
            if stream.leaving:
                self._roster.remove(stream.name)
        finally:
            report(Closed(stream))

    def run(self, batch: Batch, call: Call, report: Reports) -> None:
        """Run a batch to its end."""
        left = {stream.name: stream for stream in batch}

        def ended(name: str, error: ChSinkError | None) -> None:
            stream = left.pop(name)
            report(BatchEnded(stream) if error is None else Failed(stream, error))

        def execute(tasks: Sequence[Task]) -> Sequence[TaskResult]:
            try:
                return self._slots.run(call, tasks)
            finally:
                report(CallEnded())

        try:
            rounds = {s.name: s.rounds(ranges) for s, ranges in batch.items()}
            run_together(rounds, execute, ended, self._write)
        except Exception as error:
            log.debug("the executor failed: %s", error, exc_info=error)
            for name, stream in left.items():
                # An error that is raised on purpose would be raised again.
                meant = isinstance(error, ChSinkError)
                report(Failed(stream, as_failure(name, error), executor=not meant, job=meant))
        finally:
            self._slots.done(call)
