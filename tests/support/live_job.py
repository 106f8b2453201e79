"""A job of real streams, Kafka to ClickHouse, in a thread of the test; its tasks run in this process, too."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from ch_sink.config import Config, load_job
from ch_sink.discovery.job_topics import streams_of
from ch_sink.errors import ChSinkError, LedgerConflict
from ch_sink.kafka import KafkaSettings
from ch_sink.observe.stream import Standing
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.job import Job, JobOptions
from ch_sink.stream.job_stream import JobStream, Pace
from ch_sink.stream.lanes import ThreadLanes
from ch_sink.stream.pace import Pauses
from ch_sink.stream.roster import Roster
from ch_sink.stream.tasks import Task, TaskResult
from ch_sink.wiring.crew import Configurations
from ch_sink.wiring.streams import SharedTopics, members_of, stream_ports, stream_settings
from ch_sink.wiring.worker import run_configured


class LiveJob:
    """A context manager. ``files``: of one topic or of many. ``pauses``: short ones, so that tests do not wait."""

    def __init__(self, files: Sequence[Path], *, pauses: Pauses | None = None, name: str = "live") -> None:
        self.configs: list[Config] = _streams(files)
        self._texts = {c.stream_name: c.to_task_json() for c in self.configs}
        self._topics, self._stopping, self._one = SharedTopics(), threading.Event(), threading.Lock()
        lanes = ThreadLanes()
        members = members_of(self.configs)
        for member in members:
            member.patience.pauses = pauses or Pauses(0.05, 0.5)
        self.roster = Roster(members, f"{name}-{id(self)}", steady=lanes.now)
        self._configurations = Configurations(self.configs, lambda: _streams(files), self._changed)
        options = JobOptions(
            stopping=self._stopping.is_set, on_resume=lambda stream: self._configurations.outdated(stream.name)
        )
        self.job = Job([self._stream(c) for c in self.configs], self._execute, lanes, options, self.roster)
        self.failures: Mapping[str, ChSinkError] = {}
        self.crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "LiveJob":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(120)
        self._topics.close()
        assert not self._thread.is_alive()
        if self.crash is not None:
            raise self.crash

    def states(self) -> dict[str, Standing]:
        """The state of each stream, as the job knows it."""
        return self.roster.standings()

    def until(self, seen: Callable[[], object], seconds: float = 120.0) -> None:
        """Wait until something is so. Fails with the streams' states if the job ends or the time is over."""
        deadline = time.monotonic() + seconds
        while not seen():
            assert self._thread.is_alive(), (self.crash, self.failures)
            assert time.monotonic() < deadline, self.states()
            time.sleep(0.05)

    def _stream(self, config: Config) -> JobStream:
        def connect() -> Coordinator:
            now = self._configurations.of(config.stream_name)
            return Coordinator(stream_settings(now), stream_ports(now, self._topics))

        return JobStream(
            stream_settings(config),
            connect,
            self._topics.watermarks(KafkaSettings(config.kafka.client())),
            Pace(config.trigger_interval),
            config.max_offsets_per_trigger,
        )

    def _changed(self, config: Config) -> None:
        self._texts[config.stream_name] = config.to_task_json()
        self.roster.configured(config.stream_name, config.fingerprint())

    def _run(self) -> None:
        try:
            self.failures = self.job.run()
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            self.crash = error

    def _execute(self, tasks: Sequence[Task], most: int | None = None) -> list[TaskResult]:
        # The consumer of a process is not for two threads.
        with self._one:
            return [run_configured(self._texts[task.stream], task) for task in tasks]


def _streams(files: Sequence[Path]) -> list[Config]:
    return list(streams_of([load_job(file) for file in files]).streams)


_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.live_job", "ch_sink.wiring.worker"])


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
