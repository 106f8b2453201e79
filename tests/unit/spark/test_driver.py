"""The driver between tasks: what waits, and columns that waiting changes need; no Spark, no server."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ch_sink.config import Config, load
from ch_sink.model.policy import policy_of
from ch_sink.observe import StreamSummary
from ch_sink.order import State
from ch_sink.pipeline.plan import Barrier
from ch_sink.pipeline.target import Target
from ch_sink.spark import driver as module
from ch_sink.spark.driver import StreamDriver
from ch_sink.stream.messages import Failure, RangeResult
from ch_sink.stream.partition_states import States
from ch_sink.testing.memory_ledger import MemoryLedger
from tests.support.hand import postgres
from tests.support.waiting import BOTH, FIRST, Stream, change, row, waits_for_its_value


@pytest.fixture
def config(tmp_path: Path) -> Config:
    text = "kafka: {topic: t, bootstrap.servers: 'localhost:1'}\ncheckpoint: ./c\n"
    file = tmp_path / "t.yaml"
    file.write_text(text + "clickhouse: {url: 'http://localhost:1', database: d, table: t}\n", encoding="utf-8")
    return load(file)


@pytest.fixture
def driver(config: Config) -> StreamDriver:
    made = StreamDriver(config, None)  # type: ignore[arg-type]
    made.ledger = MemoryLedger("s")  # type: ignore[assignment]
    made.ledger.claim("run")
    made.states = States(made.ledger, "id", 2, None)
    made.target = Target.of(Stream.detected(FIRST), policy_of())
    made.summary = StreamSummary("s", "t", "d.t")
    made.topic = SimpleNamespace(topic_id="id", low={0: 0, 1: 0})  # type: ignore[assignment]
    made.settings = None  # type: ignore[assignment]
    return made


def result(partition: int, start: int, end: int, waiting: int = 0, **more: Any) -> RangeResult:
    return RangeResult("t", "id", partition, start, end, State().to_json(), waiting=waiting, **more)


def test_a_partition_that_has_nothing_to_read_keeps_what_waits_there(driver: StreamDriver) -> None:
    """Its delete half may come on another partition, batches later."""
    driver._finish([result(0, 0, 10, waiting=2), result(1, 0, 10)], 0.0)
    driver._finish([result(1, 10, 20, waiting=1)], 0.0)
    assert driver.waiting == {0: 2, 1: 1}
    driver._finish([result(0, 10, 20, waiting=0)], 0.0)
    assert driver.waiting == {1: 1}


def test_a_range_that_failed_tells_nothing_of_what_waits(driver: StreamDriver) -> None:
    driver._finish([result(0, 0, 10, waiting=2)], 0.0)
    driver._finish([result(0, 10, 12, failure=Failure("StreamFailed", "no"))], 0.0)
    assert driver.waiting == {0: 2}


def test_the_table_gets_the_columns_that_waiting_changes_need(
    driver: StreamDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(BOTH)
    waits_for_its_value(stream, postgres("u", {"id": 2}, None, row(2, "more", 8), 300, 290))
    stream.alter(FIRST)
    stream.feed(1, change()[0])
    told: list[list[str]] = []

    def alter(_: StreamDriver, barriers: Sequence[Barrier]) -> None:
        if barriers:
            told.append([c.name for b in barriers for c in b.columns])
            stream.alter(BOTH)

    monkeypatch.setattr(module, "open_sink", lambda _settings, task, caught_up: (stream.sinks[task.partition], None))
    monkeypatch.setattr(StreamDriver, "_evolve", alter)
    driver.waiting = {0: 2}
    driver.drain()
    assert (told, driver.waiting, driver.summary.figures.waiting) == ([["extra"]], {}, 0)
    assert stream.current() == [{"id": 2, "big": "more", "extra": 8}]
    assert driver.summary.figures.counts["released"] == 2


def test_changes_are_given_up_only_once_everything_has_been_read(
    driver: StreamDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage the hand-over is often still to be read, however long ago the change came."""
    monkeypatch.setattr(StreamDriver, "_expect_topic", lambda *_: None)
    monkeypatch.setattr(StreamDriver, "_round", lambda _, work: {p: end for p, (_, end) in work.items()})
    seen: list[bool] = []

    def opened(_settings: Any, _task: Any, *, caught_up: bool) -> tuple[SimpleNamespace, None]:
        seen.append(caught_up)
        return SimpleNamespace(retry_pending=lambda _: None, waiting=1, lacking=None), None

    monkeypatch.setattr(module, "open_sink", opened)
    driver.group = SimpleNamespace(commit=lambda *_: None)  # type: ignore[assignment]
    driver.began, driver.waiting = 0.0, {0: 1}
    for start, end in ((0, 10), (10, 30)):
        row = {"topic_id": "id", "partition": 1, "start": start, "end": end, "lost": 0, "high": 30}
        ranges = SimpleNamespace(collect=lambda row=row: [SimpleNamespace(asDict=lambda: row)])
        driver._run_batch(ranges)  # type: ignore[arg-type]
    assert seen == [False, True]
    assert driver.summary.figures.waiting == 1
