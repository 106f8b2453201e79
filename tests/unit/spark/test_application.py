"""What becomes of a call that fails: the stream's fault only if Spark still works."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ch_sink.config import load_job
from ch_sink.errors import SparkLost, StreamFailed
from ch_sink.spark import application
from ch_sink.spark.application import Application
from ch_sink.spark.job import run_job
from ch_sink.spark.session import JvmStart
from ch_sink.stream.tasks import Task, TaskResult
from ch_sink.wiring.process import Stop


class Executor:
    """Fails, waits or answers as it is told."""

    slots = 1

    def __init__(self, error: Exception | None = None, *, works: bool = True, executors: int = 1) -> None:
        self.error, self.works, self.executors = error, works, executors
        self.dead = False
        """Nobody answers for Spark."""
        self.cancelled = threading.Event()
        self.warmed = threading.Event()
        self.busy: threading.Event | None = None
        """While it is not set, the tasks of another call have all slots."""

    def __call__(self, tasks: Sequence[Task], most: int | None = None) -> list[TaskResult]:
        if not self.executors:
            assert self.cancelled.wait(20)
            raise RuntimeError("cancelled")
        if self.error is not None:
            raise self.error
        return []

    def probe(self) -> bool:
        if self.busy is not None:
            return self.busy.wait(20)
        if not self.works:
            raise ConnectionRefusedError(111, "Connection refused")
        return True

    def expect_equipped(self) -> list[str]:
        self([])
        return []

    def expect_alive(self) -> None:
        if self.dead:
            raise ConnectionRefusedError(111, "Connection refused")

    def keep_warm(self) -> None:
        self.warmed.set()

    def has_none(self) -> bool:
        return not self.executors

    def cancel(self) -> None:
        self.cancelled.set()


def running(executor: Any) -> Application:
    found = Application({}, None, None, Stop())
    found._executor = executor
    return found


def test_a_call_that_fails_while_spark_works_says_something_of_its_tasks() -> None:
    with pytest.raises(MemoryError):
        running(Executor(MemoryError("worker was killed"))).execute([])


def test_spark_that_runs_no_task_is_lost_for_good() -> None:
    executor = Executor(ConnectionRefusedError(111, "Connection refused"), works=False)
    job = running(executor)
    with pytest.raises(SparkLost, match=r"Spark stopped working: .*Connection refused") as first:
        job.execute([])
    executor.error = None
    with pytest.raises(SparkLost) as second:
        job.execute([])
    assert second.value is first.value, "all streams of the job report one error"


def test_an_error_raised_on_purpose_is_not_sparks() -> None:
    with pytest.raises(StreamFailed):
        running(Executor(StreamFailed("no"), works=False)).execute([])


@pytest.mark.parametrize("starts", [False, True])
def test_without_executors_a_call_or_a_start_is_reported_and_given_up(
    starts: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, seconds in (("_WATCH_SECONDS", 0.01), ("_WARN_SECONDS", 0.02), ("_GIVE_UP_SECONDS", 0.05)):
        monkeypatch.setattr(application, name, seconds)
    monkeypatch.setattr(application, "build_session", lambda *_, **__: None)
    monkeypatch.setattr("ch_sink.spark.executor.SparkExecutor", lambda *_: Executor(executors=0))
    job = Application({}, None, None, Stop()) if starts else running(Executor(works=False, executors=0))
    expected = "Spark did not start: cancelled" if starts else "Spark stopped working: cancelled"
    with caplog.at_level(logging.WARNING), pytest.raises(SparkLost, match=expected):
        job.execute([])
    assert [r.message for r in caplog.records if "no executor" in r.message] != []


@pytest.fixture
def busy() -> Iterator[Application]:
    """A call fails, and other calls have all slots."""
    executor = Executor(MemoryError("worker was killed"))
    executor.busy = threading.Event()
    yield running(executor)
    executor.busy.set()


def test_spark_whose_slots_another_call_has_is_not_lost(busy: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "_PROBE_SECONDS", 0.05)
    with busy._call(), pytest.raises(MemoryError):
        busy.execute([])
    with pytest.raises(SparkLost):
        busy.execute([])


def test_a_signal_ends_the_wait_for_sparks_answer(busy: Application) -> None:
    threading.Timer(0.1, busy._stop.request, [15]).start()
    began = time.monotonic()
    with pytest.raises(MemoryError):
        busy.execute([])
    assert time.monotonic() - began < 10


class StartingJvm:
    """Starts until it is killed."""

    def __init__(self) -> None:
        self.killed = threading.Event()

    def kill(self) -> None:
        self.killed.set()


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> tuple[StartingJvm, threading.Event]:
    """A JVM, and an event that is set once a session of it is being made."""
    jvm, begun = StartingJvm(), threading.Event()

    def build(*_: Any, **__: Any) -> None:
        begun.set()
        assert jvm.killed.wait(20)
        raise RuntimeError("it was killed")

    monkeypatch.setattr(application, "build_session", build)
    return jvm, begun


def test_spark_starts_before_a_stream_is_open_and_is_given_up_if_none_needs_it(
    starting: tuple[StartingJvm, threading.Event], tmp_path: Path
) -> None:
    jvm, begun = starting
    file, stop = tmp_path / "t.yaml", Stop()
    file.write_text(
        "kafka: {topic: a.b.t, bootstrap.servers: 'localhost:1'}\n"
        "clickhouse: {url: 'http://localhost:1', database: d, table: t}\n"
    )
    given: Any = {"once": True, "started": JvmStart(jvm, {}), "stop": stop}  # type: ignore[arg-type]
    with ThreadPoolExecutor() as pool:
        job = pool.submit(run_job, [load_job(file).only()], **given)
        assert begun.wait(20), "Spark waits for the stream, whose server is away"
        stop.request(15)
        assert not job.result(20).summaries[0].opened
    assert jvm.killed.is_set()


def test_a_start_that_a_batch_waits_for_is_not_given_up(
    starting: tuple[StartingJvm, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm, begun = starting
    monkeypatch.setattr(application, "_START_SECONDS", 0.05)
    job = Application({}, None, JvmStart(jvm, {}), Stop())  # type: ignore[arg-type]
    with ThreadPoolExecutor() as pool:
        call = pool.submit(job.execute, [])
        assert begun.wait(20)
        job.start()
        job.close()
        assert not jvm.killed.is_set()
        jvm.kill()
        assert isinstance(call.exception(20), SparkLost)


def test_workers_of_a_job_that_waits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends those that had no task for a minute."""
    executor = Executor()
    monkeypatch.setattr(application, "_WARM_SECONDS", 0.06)
    monkeypatch.setattr(application, "_IDLE_LOOK", 0.02)
    monkeypatch.setattr(application, "build_session", lambda *_, **__: None)
    monkeypatch.setattr("ch_sink.spark.executor.SparkExecutor", lambda *_: executor)
    job = Application({}, None, None, Stop())
    with job._call():
        job.execute([])
        time.sleep(0.2)
        assert not executor.warmed.is_set(), "a batch that runs keeps them itself"
    assert executor.warmed.wait(20)
    job.close()
    deadline = time.monotonic() + 20
    while any(thread.name == "ch_sink workers" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the job has ended"
        time.sleep(0.01)


@pytest.mark.parametrize("works", [False, True])
def test_spark_that_dies_while_nothing_runs_is_noticed_and_asked(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Executor(works=works)
    monkeypatch.setattr(application, "_IDLE_LOOK", 0.01)
    monkeypatch.setattr(application, "build_session", lambda *_, **__: None)
    monkeypatch.setattr("ch_sink.spark.executor.SparkExecutor", lambda *_: executor)
    job = Application({}, None, None, Stop())
    job.execute([])
    time.sleep(0.1)
    assert job.lost() is None
    executor.dead = True
    deadline = time.monotonic() + (0.2 if works else 20)
    while job.lost() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    job.close()
    if works:
        assert job.lost() is None, "it runs tasks"
    else:
        with pytest.raises(SparkLost, match=r"Spark stopped working: .*Connection refused") as raised:
            job.execute([])
        assert raised.value is job.lost()
