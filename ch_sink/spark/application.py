"""The Spark application of a job: started once a stream is open, waited for by the first batch."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ch_sink.config import Config
from ch_sink.errors import ChSinkError
from ch_sink.spark.session import JvmStart, build_application
from ch_sink.spark.stop import Stop, Stopped
from ch_sink.stream.tasks import Task, TaskResult

if TYPE_CHECKING:
    from ch_sink.spark.executor import SparkExecutor

__all__ = ["Application"]

_START_SECONDS = 15.0
"""Longest wait for a start that nobody needs any more."""


class Application:
    """Runs tasks on Spark. PySpark is imported when it is needed: a stream that cannot be opened is reported first."""

    def __init__(self, settings: Sequence[Config], master: str | None, started: JvmStart | None, stop: Stop) -> None:
        """``settings``: configurations whose section ``spark`` holds for the session; at least one."""
        self._settings, self._master, self._started, self._stop = settings, master, started, stop
        self._configs: dict[str, str] = {}
        self._lock = threading.Lock()
        self._executor: SparkExecutor | None = None
        self._failure: ChSinkError | None = None
        self._thread: threading.Thread | None = None
        self._starting = False

    def add(self, config: Config) -> None:
        """Tasks of this stream may come from now on."""
        self._configs[config.stream_name] = config.to_task_json()

    def start(self) -> None:
        """Begin to start Spark, unless that has begun; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._try, name="ch_sink spark", daemon=True)
            self._thread.start()

    @property
    def doing(self) -> str:
        """What whoever waits for Spark waits for."""
        return "starting Spark" if self._starting else ""

    def slots(self) -> int:
        """How many tasks run at once; 1 as long as that is not known."""
        return self._executor.slots if self._executor is not None else 1

    def execute(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """See Execute."""
        return self._ready()(tasks)

    def cancel(self) -> None:
        """Cancel what runs."""
        if self._executor is not None:
            with suppress(Exception):
                self._executor.cancel()

    def close(self) -> None:
        """Wait until nothing of this is under way; the session stays."""
        if self._thread is not None:
            self._thread.join(_START_SECONDS)

    def _try(self) -> None:
        with suppress(Exception, Stopped):
            self._ready()

    def _ready(self) -> "SparkExecutor":
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._executor is None:
                self._starting = True
                try:
                    session = build_application(self._settings, self._master, started=self._started, stop=self._stop)
                except ChSinkError as error:
                    self._failure = error
                    raise
                except Stopped:
                    raise InterruptedError("the job is stopping") from None
                from ch_sink.spark.executor import SparkExecutor

                self._executor = SparkExecutor(session, self._configs)
                self._starting = False
            return self._executor
