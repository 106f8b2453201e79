"""Where the work of a job's streams runs, how the job waits for it, and what it comes to.

Work runs in threads, or in the job's own thread. It reports what it came to by putting it on the lanes' list; only the
job's own thread takes it from there, so that everything the job knows of its streams changes in one thread.
"""

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
from ch_sink.stream.job_stream import JobStream
from ch_sink.stream.offset_ranges import OffsetRange
from ch_sink.stream.standing import Member

_AHEAD = 4
"""Streams that are opened or wait for it, for each thread that opens them."""
Kind = Literal["batch", "open", "states", "look"]
_Lane = tuple[Kind, str]
"""A kind of work, and the server that it waits for."""


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
    """The roster has exchanged states with the ledgers, or could not."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Streams that join a running job, and names of those whose topics are gone."""

    joined: Sequence[tuple[JobStream, Member]] = ()
    left: Sequence[str] = ()
    settled: Sequence[str] = ()
    """Names of those that only showed why a topic is not a stream of the job, which is resolved."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """What a look for topics found."""

    changed: Changed


@dataclass(frozen=True, slots=True)
class Answered:
    """A cluster has answered for watermarks: the state of each topic, or why it is not known."""

    cluster: int
    topics: Mapping[str, TopicState | ChSinkError]


Report = Opened | BatchEnded | Closed | Failed | CallEnded | Exchanged | Discovered | Answered
Work = Callable[[Callable[[Report], None]], None]
"""Is given the function by which it reports."""


class Lanes(Protocol):
    """Runs work, and tells the time."""

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    def free(self, kind: Kind, server: str = "") -> int:
        """How much more work of this kind can begin now. Each ClickHouse server has lanes of its own."""
        ...

    def start(self, kind: Kind, work: Work, server: str = "") -> None:
        """Begin work; it must not raise."""
        ...

    def wait(self, seconds: float) -> list[Report]:
        """What has been reported since the last call; waits for the first report or a free lane, at most so long."""
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

    def free(self, kind: Kind, server: str = "") -> int:
        with self._lock:
            return max(0, self._most[kind] - self._taken[kind, server])

    def start(self, kind: Kind, work: Work, server: str = "") -> None:
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
