"""The job without Spark in a process of its own, which can be killed and frozen; forked, so that a life begins at once.

Each is on a host of its own, so that none waits for another one's end.
"""

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from ch_sink.errors import LedgerConflict
from ch_sink.stream.pace import Pauses
from ch_sink.stream.tasks import Task, TaskResult
from tests.support.live_job import LiveJob

__all__ = ["JobProcess"]

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.job_process", "ch_sink.wiring.worker"])


class JobProcess:
    """A running process. ``failed``: a file to which it writes why a stream has stopped, if that is not a takeover."""

    def __init__(self, files: Sequence[Path], host: str, failed: Path) -> None:
        self._begun: Synchronized[int] = _CONTEXT.Value("i", 0)
        self._working: Synchronized[int] = _CONTEXT.Value("i", 0)
        self._process = _CONTEXT.Process(
            target=_run, args=(list(files), host, failed, self._begun, self._working), daemon=True
        )
        self._process.start()

    @property
    def begun(self) -> int:
        """How many batches it has begun."""
        return int(self._begun.value)

    @property
    def working(self) -> bool:
        """A batch is at work."""
        return bool(self._working.value)

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def await_batch(self, number: int, seconds: float) -> bool:
        """Wait until it has begun so many batches; whether it has."""
        deadline = time.monotonic() + seconds
        while self.begun < number and self.alive and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.begun >= number

    def freeze(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns once it is gone."""
        self._signal(signal.SIGKILL)
        self._process.join()

    def end(self, seconds: float) -> bool:
        """Wait until it ends by itself, and kill it if it does not; whether it ended."""
        self._process.join(seconds)
        ended = not self.alive
        self.kill()
        return ended

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            assert self._process.pid is not None
            os.kill(self._process.pid, number)


class _Watched(LiveJob):
    """``begun`` counts its batches; ``working`` is 1 while one is at work."""

    def __init__(self, begun: Any, working: Any, *given: Any, **named: Any) -> None:
        self._begun, self._working = begun, working
        super().__init__(*given, **named)

    def _execute(self, tasks: Sequence[Task], most: int | None = None) -> list[TaskResult]:
        self._begun.value += 1
        self._working.value = 1
        try:
            return super()._execute(tasks, most)
        finally:
            self._working.value = 0


def _run(files: list[Path], host: str, failed: Path, begun: Any, working: Any) -> None:
    socket.gethostname = lambda: host
    with _Watched(begun, working, files, pauses=Pauses(0.05, 0.5), name=host) as job:
        job._thread.join()
    for name, error in job.failures.items():
        if not isinstance(error, LedgerConflict):
            with failed.open("a") as file:
                file.write(f"{host} {name}: {type(error).__name__}: {error}\n")
