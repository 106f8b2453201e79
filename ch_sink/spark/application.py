"""The Spark application of a job: started while its streams open; the first batch waits for it.

A call that fails may be the fault of a stream's task, or of Spark: its JVM was killed, its master dropped the
application, no executor is left. So Spark is asked to run a task of one row. If it cannot, the job ends with SparkLost.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ch_sink.config import Config
from ch_sink.errors import ChSinkError, SparkLost
from ch_sink.spark.session import JvmStart, build_session, cause, disconnect
from ch_sink.stream.tasks import Task, TaskResult
from ch_sink.wiring.process import Stop, Stopped

if TYPE_CHECKING:
    from ch_sink.spark.executor import SparkExecutor

log = logging.getLogger("ch_sink")

_START_SECONDS = 15.0
"""Longest wait for a start that nobody needs any more."""
_WATCH_SECONDS = 20.0
"""Seconds between two looks whether a call that runs has executors."""
_WARN_SECONDS, _GIVE_UP_SECONDS = 60.0, 600.0
"""A call without executors is reported after the one and cancelled after the other: a driver whose master is gone waits
for executors without end, and a busy cluster may need minutes to give them."""
_PROBE_SECONDS = 90.0
"""Longest wait for a task of one row: a cluster may have to replace the executors that it lost."""
_WARM_SECONDS = 30.0
"""Seconds after its last task at which a worker gets an empty one: Spark ends workers that had none for a minute."""
_IDLE_LOOK = 10.0
"""Seconds between two looks at a Spark that runs nothing."""
_PROBE_LOOK = 0.2
"""Seconds between two looks whether the job is to stop meanwhile."""


class Application:
    """Runs tasks on Spark. PySpark is imported when it is needed: a stream that cannot be opened is reported first."""

    def __init__(self, conf: Mapping[str, str], master: str | None, started: JvmStart | None, stop: Stop) -> None:
        """``conf``: Spark's properties, as ``started`` has them if it is given."""
        self._conf, self._master, self._started, self._stop = conf, master, started, stop
        self._configs: dict[str, str] = {}
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._executor: SparkExecutor | None = None
        self._failure: ChSinkError | None = None
        """The error that every call raises from now on."""
        self._lost: SparkLost | None = None
        """The same, if Spark had been running."""
        self._thread: threading.Thread | None = None
        self._starting = False
        self._needed = False
        """A batch waits for Spark, or has run on it."""
        self._calls = 0
        """Calls whose tasks may run."""
        self._called = 0.0
        """The time at which the last one ended."""
        self._slots = 1
        self._closed = threading.Event()

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
        """The step of Spark's start that callers wait for."""
        return "starting Spark" if self._starting else ""

    def slots(self) -> int:
        """How many tasks run at once; 1 as long as that is not known.

        Of a Spark that has died the last number: the next call of `execute` finds out, and no stream is blamed.
        """
        if self._executor is not None:
            with suppress(Exception):
                self._slots = self._executor.slots
        return self._slots

    def execute(self, tasks: Sequence[Task], most: int | None = None) -> list[TaskResult]:
        """See ExecuteWithin. Raises SparkLost, from then on always, if Spark runs no tasks any more."""
        self._needed = True
        executor = self._ready()
        try:
            with self._call(), _watched(executor):
                return executor(tasks, most)
        except ChSinkError:
            raise
        except Exception as error:
            self._find_out(executor, error)
            if self._failure is not None:
                raise self._failure from error
            raise

    def lost(self) -> ChSinkError | None:
        """SparkLost if Spark, which had been running, has died, whether or not a call has met that."""
        return self._lost

    def _find_out(self, executor: "SparkExecutor", error: Exception) -> None:
        """Note whether Spark is lost, which an error suggests."""
        with self._lock:
            if self._failure is None and not self._works(executor):
                self._failure = self._lost = SparkLost(
                    f"Spark stopped working: {cause(error)}",
                    hint="Start the job again; every stream continues where its ledger says. Run it under a "
                    "supervisor that does so (docs/cluster.md, Supervision).",
                )

    @contextmanager
    def _call(self) -> Iterator[None]:
        with self._counting:
            self._calls += 1
        try:
            yield
        finally:
            with self._counting:
                self._calls -= 1
                self._called = time.monotonic()

    def _works(self, executor: "SparkExecutor") -> bool:
        """Whether Spark still runs tasks; also if the job is to stop before that is known.

        No answer says nothing while another call has the slots, perhaps for minutes: it is watched itself.
        """
        answers: list[bool] = []
        ended = threading.Event()

        def ask() -> None:
            with suppress(Exception):
                answers.append(executor.probe())
            ended.set()

        # A call to a cluster without executors never returns.
        threading.Thread(target=ask, name="ch_sink probe", daemon=True).start()
        deadline = time.monotonic() + _PROBE_SECONDS
        while not ended.wait(_PROBE_LOOK):
            if self._stop.requested:
                return True
            if time.monotonic() > deadline:
                return self._calls > 0
        return answers == [True] or self._stop.requested

    def cancel(self) -> None:
        """Cancel what runs."""
        if self._executor is not None:
            with suppress(Exception):
                self._executor.cancel()

    def close(self) -> None:
        """Wait until nothing of this is under way; the session stays. A start that no batch waits for is given up."""
        self._closed.set()
        if self._thread is None:
            return
        given_up = self._started is not None and not self._needed and self._executor is None
        if given_up and self._started is not None:
            self._started.jvm.kill()
        self._thread.join(_START_SECONDS)
        if given_up and not self._thread.is_alive():
            disconnect()

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
                    self._begin()
                except Stopped:
                    raise InterruptedError("the job is stopping") from None
                except ChSinkError as error:
                    self._failure = error
                    raise
                except Exception as error:
                    if self._stop.requested:
                        raise InterruptedError("the job is stopping") from error
                    self._failure = SparkLost(
                        f"Spark did not start: {cause(error)}",
                        hint="Check what Spark printed and whether its master answers; then start the job again.",
                    )
                    raise self._failure from error
                self._starting = False
            assert self._executor is not None
            return self._executor

    def _begin(self) -> None:
        """Start Spark. Raises ChSinkError, Stopped, or what Spark raises."""
        session = build_session("ch_sink", self._master, self._conf, started=self._started, stop=self._stop)
        from ch_sink.spark.executor import SparkExecutor

        self._executor = SparkExecutor(session, self._configs)  # so that it can be cancelled
        with _watched(self._executor):
            warnings = self._executor.expect_equipped()
        for warning in warnings:
            log.warning("%s", warning)
        self._called = time.monotonic()
        threading.Thread(target=self._look_after, args=[self._executor], name="ch_sink workers", daemon=True).start()

    def _look_after(self, executor: "SparkExecutor") -> None:
        """Notice that Spark dies while it runs nothing, and keep it from ending idle workers, and their clients."""
        while not self._closed.wait(_IDLE_LOOK) and self._lost is None:
            if self._calls:
                continue  # a call finds out by itself, and is what workers need
            try:
                executor.expect_alive()
                if time.monotonic() - self._called >= _WARM_SECONDS:
                    with self._call():
                        executor.keep_warm()
            except Exception as error:  # noqa: BLE001 (whatever it is, Spark is asked)
                self._find_out(executor, error)


@contextmanager
def _watched(executor: "SparkExecutor") -> Iterator[None]:
    """Cancel the call if it has no executors for long."""
    ended = threading.Event()

    def watch() -> None:
        lacking, warned = 0.0, False
        while not ended.wait(_WATCH_SECONDS):
            with suppress(Exception):
                lacking = lacking + _WATCH_SECONDS if executor.has_none() else 0.0
            if lacking >= _WARN_SECONDS and not warned:
                warned = True
                log.warning("Spark has had no executor for %d seconds; the job waits for one", lacking)
            if lacking >= _GIVE_UP_SECONDS:
                with suppress(Exception):
                    executor.cancel()
                return

    threading.Thread(target=watch, name="ch_sink executors", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
