"""Where the work of a job's streams runs, and how the job waits for it: in threads, or in the job's own thread.

Work reports what it came to by putting it on the lanes' list; only the job's own thread takes it from there, so that
everything the job knows of its streams changes in one thread.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, Literal, Protocol, TypeVar

__all__ = ["InlineLanes", "Kind", "Lanes", "ThreadLanes"]

_AHEAD = 4
"""Streams that are opened or wait for it, for each thread that opens them."""
E = TypeVar("E")
Kind = Literal["batch", "open", "states", "look"]
Work = Callable[[Callable[[E], None]], None]
"""Is given the function by which it reports."""


class Lanes(Protocol[E]):
    """Runs work, and tells the time."""

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    def free(self, kind: Kind) -> int:
        """How much more work of this kind can begin now."""
        ...

    def start(self, kind: Kind, work: Work[E]) -> None:
        """Begin work; it must not raise."""
        ...

    def wait(self, seconds: float) -> list[E]:
        """What has been reported since the last call; waits for the first report or a free lane, at most so long."""
        ...

    def close(self) -> None:
        """End the threads; work that runs is not waited for."""
        ...


class ThreadLanes(Generic[E]):
    """Each piece of work runs in a thread."""

    def __init__(self, batches: int = 2, opens: int = 8, looks: int = 8) -> None:
        threads: dict[Kind, int] = {"batch": batches, "open": opens, "states": 1, "look": looks}
        self._pools = {
            kind: ThreadPoolExecutor(number, thread_name_prefix=f"ch_sink {kind}") for kind, number in threads.items()
        }
        # A thread that has opened a stream finds the next one waiting, however busy the job is.
        self._free: dict[Kind, int] = {**threads, "open": _AHEAD * opens}
        self._lock = threading.Lock()
        self._reports: queue.SimpleQueue[E | None] = queue.SimpleQueue()

    def now(self) -> float:
        return time.monotonic()

    def free(self, kind: Kind) -> int:
        with self._lock:
            return max(0, self._free[kind])

    def start(self, kind: Kind, work: Work[E]) -> None:
        with self._lock:
            self._free[kind] -= 1
        self._pools[kind].submit(self._run, kind, work)

    def wait(self, seconds: float) -> list[E]:
        found: list[E] = []
        with suppress(queue.Empty):
            self._keep(found, self._reports.get(timeout=max(0.0, seconds)))
            while True:
                self._keep(found, self._reports.get_nowait())
        return found

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, kind: Kind, work: Work[E]) -> None:
        try:
            work(self._reports.put)
        finally:
            with self._lock:
                self._free[kind] += 1
            self._reports.put(None)  # a lane is free

    @staticmethod
    def _keep(found: list[E], report: E | None) -> None:
        if report is not None:
            found.append(report)


class InlineLanes(Generic[E]):
    """Work runs at once in the caller's thread, and time passes only while the job waits. For tests."""

    def __init__(self) -> None:
        self.clock = 0.0
        self._reports: list[E] = []

    def now(self) -> float:
        return self.clock

    def free(self, kind: Kind) -> int:
        return 1

    def start(self, kind: Kind, work: Work[E]) -> None:
        work(self._reports.append)

    def wait(self, seconds: float) -> list[E]:
        found, self._reports = self._reports, []
        if not found:
            self.clock += max(0.0, seconds)
        return found

    def close(self) -> None:
        pass
