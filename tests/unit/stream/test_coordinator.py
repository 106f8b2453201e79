"""The coordinator between tasks: what waits, what fails, columns that waiting changes need; no executor of tasks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ch_sink.errors import DataLoss, StreamFailed
from ch_sink.model.change import Floor, Records, UnknownColumn
from ch_sink.model.policy import policy_of
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.ports import PendingRecord
from ch_sink.stream.batch_plan import OffsetRange
from ch_sink.stream.tasks import RangeDone, RangeTask, ReleaseDone, ReleaseTask, Task, TaskResult
from ch_sink.types.column import Column
from tests.support.document_run import document_table
from tests.support.memory_stream import MemoryStream, MemoryTopic
from tests.support.views import counts_of

TABLE = document_table((Column("id", "Int64"), Column("big", "Nullable(String)")), "replacing", "id")
NOTHING = Records("t", 0, np.zeros(0, np.int64), np.zeros(0, np.int64), [], [])
Answer = Callable[[Task], TaskResult]


class Stream:
    """A coordinator over ports in memory; ``answer`` stands for the tasks."""

    def __init__(self, engine: str = "replacing", waiting: Sequence[int] = (), **settings: Any) -> None:
        table = document_table((Column("id", "Int64"), Column("big", "Nullable(String)")), engine, "id")
        topic = MemoryTopic("t", {0: NOTHING, 1: NOTHING}, {0: 100, 1: 100})
        self.memory = MemoryStream(table, ("id",), topic, policy_of(evolve="add_columns"))
        self.memory.settings = replace(self.memory.settings, **settings)
        self.memory.pending.put("id", 0, [PendingRecord(o, 0, b"k", b"{}", [], 0, 0) for o in waiting], "token")
        self.made = self.memory.coordinator()
        self.made.open()
        self.given: list[Task] = []

    def run(self, answer: Answer, *ranges: OffsetRange) -> None:
        def execute(tasks: Sequence[Task]) -> list[TaskResult]:
            self.given += tasks
            return [answer(task) for task in tasks]

        self.made.run_batch(ranges, execute)

    def releases(self) -> list[ReleaseTask]:
        return [task for task in self.given if isinstance(task, ReleaseTask)]


def span(partition: int, start: int, end: int, high: int = 0) -> OffsetRange:
    return OffsetRange("t", "id", partition, start, end, 0, high or end)


def done(task: Task, **more: Any) -> TaskResult:
    """The task, done to its end."""
    if isinstance(task, ReleaseTask):
        return ReleaseDone("s", task.partition, **more)
    return RangeDone("s", task.partition, task.start, **{"end": task.end, "state": State(), **more})


def keeps(waiting: dict[int, int]) -> Answer:
    """Ranges that leave so many changes waiting, and releases that find no value."""
    return lambda task: done(task, waiting=waiting.get(task.partition, 0))


def test_a_partition_that_has_nothing_to_read_keeps_what_waits_there() -> None:
    """Its delete half may come on another partition, batches later."""
    stream = Stream()
    stream.run(keeps({0: 2}), span(0, 0, 10), span(1, 0, 10))
    stream.run(lambda t: done(t, waiting=1 if t.partition else 2), span(1, 10, 20))
    assert stream.made.waiting == {0: 2, 1: 1}
    stream.run(keeps({1: 1}), span(0, 10, 20))
    assert stream.made.waiting == {1: 1}


def test_a_range_that_failed_says_nothing_of_what_waits() -> None:
    stream = Stream()
    stream.run(keeps({0: 2}), span(0, 0, 10))
    with pytest.raises(StreamFailed, match="no"):
        stream.run(lambda t: done(t, end=12, failure=StreamFailed("no")), span(0, 10, 20))
    assert stream.made.waiting == {0: 2}


def test_what_waits_since_an_earlier_life_is_released_first() -> None:
    stream = Stream(waiting=(3, 4))
    assert stream.made.waiting == {0: 2}
    given: list[Task] = []
    stream.made.run_release(lambda tasks: [given.append(t) or done(t) for t in tasks])  # type: ignore[func-returns-value]
    assert [type(task) for task in given] == [ReleaseTask]
    assert stream.made.waiting == {}


def test_the_table_gets_the_columns_that_waiting_changes_need() -> None:
    stream = Stream()
    lacking = Barrier("new_columns", 5, (UnknownColumn("extra", 5, "Nullable(Int64)"),), ("id",))

    def answer(task: Task) -> TaskResult:
        if isinstance(task, RangeTask):
            return done(task, waiting=2)
        has = task.table.column("extra") is not None
        return (
            done(task, state=State(), counts=counts_of(released=2)) if has else done(task, waiting=2, lacking=lacking)
        )

    stream.run(answer, span(0, 0, 10))
    assert stream.memory.detect().column("extra") is not None
    assert (stream.made.waiting, stream.made.summary.waiting) == ({}, 0)
    assert stream.made.summary.counts.kinds["released"] == 2


def test_releases_go_on_while_one_brings_values_for_another() -> None:
    stream, left = Stream(), {0: 2, 1: 2}

    def answer(task: Task) -> TaskResult:
        if isinstance(task, ReleaseTask):
            left[task.partition] = max(0, left[task.partition] - 1)
        return done(task, waiting=left[task.partition])

    stream.run(answer, span(0, 0, 10), span(1, 0, 10))
    assert stream.made.waiting == {}
    assert len(stream.releases()) == 4


def test_changes_are_given_up_only_once_everything_has_been_read() -> None:
    """After an outage the hand-over is often still to be read, however long ago the change came."""
    stream = Stream()
    stream.run(keeps({1: 1}), span(1, 0, 10, high=30))
    stream.run(keeps({1: 1}), span(1, 10, 30, high=30))
    assert [task.caught_up for task in stream.releases()] == [False, True]
    assert stream.made.summary.waiting == 1


def test_a_truncate_is_carried_out_before_the_rest_of_its_range() -> None:
    stream = Stream()
    truncated: list[int] = []
    stream.memory.truncate = lambda table, version, column, supersede: truncated.append(version)  # type: ignore[method-assign]
    barrier = Barrier("truncate", 5, version=77, floor=Floor(0, 9, 0), source="a")
    floors = []

    def answer(task: Task) -> TaskResult:
        assert isinstance(task, RangeTask)
        floors.append((task.partition, task.start, task.state.floor_of("a"), list(truncated)))
        stops = task.partition == 0 and task.start == 0
        return done(task, end=5, barrier=barrier) if stops else done(task)

    stream.run(answer, span(0, 0, 10), span(1, 0, 10))
    assert floors == [(0, 0, Floor(), []), (1, 0, Floor(), []), (0, 5, Floor(0, 9, 0), [77])]
    assert stream.memory.group.committed == {0: 10, 1: 10}


def test_a_truncate_ends_executions_in_partitions_that_came_after_the_start() -> None:
    stream = Stream()
    begun: list[str] = []
    stream.memory.truncate = lambda table, version, column, supersede: begun.extend(map(str, supersede()))  # type: ignore[method-assign]
    ranges = stream.made.plan(TopicState("t", "id", dict.fromkeys(range(3), 0), dict.fromkeys(range(3), 10)))
    barrier = Barrier("truncate", 5, version=77, floor=Floor(0, 9, 0), source="a")
    stops = iter([True])
    stream.run(lambda task: done(task, end=5, barrier=barrier) if next(stops, False) else done(task), *ranges)
    assert len(begun) == 3


@pytest.mark.parametrize(("engine", "results"), [("replacing", [(0, 0, 10), (1, 0, 4)]), ("collapsing", [(0, 0, 10)])])
def test_what_was_done_before_a_failure_is_recorded(engine: str, results: list[tuple[int, int, int]]) -> None:
    """But not of a collapsing table: its range goes on from its own progress, which a result would end."""
    stream = Stream(engine)

    def answer(task: Task) -> TaskResult:
        return done(task, end=4, failure=StreamFailed("broken")) if task.partition else done(task)

    with pytest.raises(StreamFailed, match="broken"):
        stream.run(answer, span(0, 0, 10), span(1, 0, 10))
    ledger = stream.memory.ledger
    assert sorted((r.partition, r.start, r.end) for r in ledger.history(9)) == results
    assert stream.memory.group.committed == {}


def test_a_second_attempt_goes_on_with_the_recorded_state() -> None:
    stream = Stream()
    risen = State(base_epoch=3)
    stream.run(lambda task: done(task, state=risen), span(0, 0, 10))
    stream.made.close()
    stream.made = stream.memory.coordinator()
    stream.made.open()
    stream.run(lambda task: done(task), span(0, 10, 20))
    assert [t.state.base_epoch for t in stream.given if isinstance(t, RangeTask)] == [0, 3]
    assert stream.memory.ledger.progress("id") == {0: 20}


@pytest.mark.parametrize(("engine", "start"), [("replacing", 30), ("collapsing", 30)])
def test_records_that_are_lost_while_a_batch_runs_are_skipped_if_that_is_allowed(engine: str, start: int) -> None:
    """Retention goes on between plan and read."""
    stream = Stream(engine, on_data_loss="continue")
    topic = stream.memory.topic.state("t")
    ranges = stream.made.plan(replace(topic, low={0: 0, 1: 0}))

    def loses(task: Task) -> TaskResult:
        error = DataLoss("gone", hint="set on_data_loss to continue")
        return done(task) if task.partition else done(task, end=10, failure=error)

    stream.run(loses, *ranges)
    assert stream.made.summary.lag > 0
    again = stream.made.plan(replace(topic, low={0: start, 1: 0}))
    assert [(r.partition, r.start, r.end) for r in again] == [(0, start, 100)]
    stream.run(lambda task: done(task), *again)
    assert stream.made.plan(topic) == []


def test_records_that_are_lost_where_the_watermarks_say_otherwise_stop_the_stream() -> None:
    """The hint does not name the setting that is in force."""
    stream = Stream(on_data_loss="continue")
    topic = replace(stream.memory.topic.state("t"), low={0: 0, 1: 0})

    def loses(task: Task) -> TaskResult:
        return done(task, end=10, failure=DataLoss("gone", hint="set on_data_loss to continue"))

    stream.run(loses, *stream.made.plan(topic))
    with pytest.raises(DataLoss) as stopped:
        stream.run(loses, *stream.made.plan(topic))
    assert "on_data_loss" not in str(stopped.value.hint)
    with pytest.raises(DataLoss) as stopped:
        Stream().run(loses, span(0, 0, 20))
    assert "on_data_loss" in str(stopped.value.hint)
