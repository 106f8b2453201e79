"""What a stream reads next, by its ledger and by the limit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.errors import DataLoss
from ch_sink.memory import MemoryLedger
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.stream.batch_plan import OffsetRange, expect_end_still, plan_ranges
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.ports import StreamSettings
from ch_sink.stream.tasks import RangeDone, RangeTask, Task
from ch_sink.types.column import Column
from tests.support.document_run import document_table
from tests.support.memory_stream import MemoryStream, MemoryTopic

TABLE = document_table((Column("id", "Int64"),), "replacing", "id")
NOTHING = Records("t", 0, np.zeros(0, np.int64), np.zeros(0, np.int64), [], [])
Span = tuple[int, int, int]


class Died(BaseException):
    """The job ended here."""


class Stream:
    """A stream over ports in memory, whose tasks do nothing; ``settings`` of the next job may differ."""

    def __init__(self, **settings: Any) -> None:
        topic = MemoryTopic("t", {0: NOTHING, 1: NOTHING}, {0: 0, 1: 0})
        self.memory = MemoryStream(TABLE, ("id",), topic, policy_of())
        self.settings = replace(self.memory.settings, chunk_offsets=10, **settings)
        self.job = self.start()
        self.tasks: list[RangeTask] = []

    def start(self, **settings: Any) -> Coordinator:
        """Another job, with other settings."""
        self.settings: StreamSettings = replace(self.settings, **settings)
        if hasattr(self, "job"):
            self.job.close()
        self.job = self.memory.coordinator(self.settings)
        self.job.open()
        return self.job

    def plan(
        self, high: dict[int, int], low: dict[int, int] | None = None, topic_id: str = "id", **more: Any
    ) -> list[OffsetRange]:
        at = TopicState("t", topic_id, {**dict.fromkeys(high, 0), **(low or {})}, high)
        topic = self.memory.topic
        topic.topic_id, topic.ends, topic.partitions = topic_id, dict(high), dict.fromkeys(high, NOTHING)
        return self.job.plan(at, **more)

    def run(self, ranges: list[OffsetRange], ends: Mapping[int, int] | None = None, state: State | None = None) -> None:
        """Run the ranges; those with an end come as far as this, and the job dies there."""

        def execute(tasks: Any) -> list[Any]:
            self.tasks += tasks
            if ends is not None and len(self.tasks) > len(ranges):
                raise Died
            return [self._done(task, dict(ends or {}), state) for task in tasks]

        self.tasks = []
        self.job.run_batch(ranges, execute)

    @staticmethod
    def _done(task: Task, ends: Mapping[int, int], state: State | None) -> RangeDone:
        assert isinstance(task, RangeTask)
        end = ends.get(task.partition, task.end)
        return RangeDone("s", task.partition, task.start, end, state or task.state)


def spans(ranges: list[OffsetRange]) -> list[Span]:
    return [(r.partition, r.start, r.end) for r in ranges]


def test_a_batch_goes_on_where_the_last_results_end() -> None:
    stream = Stream()
    first = stream.plan({0: 30, 1: 5})
    assert spans(first) == [(0, 0, 30), (1, 0, 5)]
    stream.run(first)
    assert spans(stream.plan({0: 50, 1: 5})) == [(0, 30, 50)]
    stream.start()
    assert spans(stream.plan({0: 50, 1: 5})) == [(0, 30, 50)]
    assert spans(stream.plan({0: 90, 1: 70}, limit=40)) == [(0, 30, 50), (1, 5, 20)]
    assert stream.plan({0: 30, 1: 5}) == []


def test_what_was_begun_is_run_again_as_it_was() -> None:
    """Whatever the topic holds, the limit is or the settings say by now."""
    stream = Stream()
    stream.plan({0: 30, 1: 8})
    with pytest.raises(Died):
        stream.run(stream.plan({0: 30, 1: 8}), {0: 12})
    stream.start(chunk_offsets=7, chunk_bytes=99)
    [again] = stream.plan({0: 500, 1: 600}, limit=3)
    assert (again.partition, again.start, again.end, again.high) == (0, 12, 30, 500)
    stream.run([again])
    [task] = stream.tasks
    assert (task.start, task.end, task.chunk_offsets, task.chunk_bytes) == (12, 30, 10, 64 << 20)
    assert task.attempt > 0
    assert spans(stream.plan({0: 40, 1: 10})) == [(0, 30, 40), (1, 8, 10)]
    stream.run(stream.plan({0: 40, 1: 10}))
    assert {(t.chunk_offsets, t.chunk_bytes) for t in stream.tasks} == {(7, 99)}


def test_it_is_run_again_below_the_rows_of_another_writer_and_what_follows_above_them() -> None:
    """Its tasks may have stored those rows: a second attempt must give the same versions."""
    stream = Stream()
    with pytest.raises(Died):
        stream.run(stream.plan({0: 30, 1: 8}), {0: 12})
    stream.memory.table.put([{"id": 1, "_version": (7 << 112).to_bytes(16, "little"), "_is_deleted": 0}])
    stream.start()
    stream.run(stream.plan({0: 40, 1: 8}))
    assert [(t.start, t.end, t.state.epoch) for t in stream.tasks] == [(12, 30, 0)]
    stream.start()
    stream.run(stream.plan({0: 40, 1: 8}))
    assert [(t.start, t.end, t.state.epoch) for t in stream.tasks] == [(30, 40, 8)]


def test_a_batch_whose_results_are_unknown_is_planned_from_the_ledger() -> None:
    stream = Stream()
    ranges = stream.plan({0: 30, 1: 8})

    def execute(tasks: Any) -> list[Any]:
        raise Died

    with pytest.raises(Died):
        stream.job.run_batch(ranges, execute)
    assert spans(stream.plan({0: 99, 1: 99})) == spans(ranges)


def test_nothing_counts_as_caught_up_while_another_partition_lags() -> None:
    """Changes that wait are given up only when everything has been read."""
    stream = Stream()
    stream.run(stream.plan({0: 100, 1: 100}, limit=1))
    assert stream.job.summary.lag == 199


def test_latest_is_where_the_topic_ended_when_the_stream_began() -> None:
    stream = Stream(start="latest")
    assert stream.plan({0: 100, 1: 10}) == []
    stream.start(start="earliest")
    assert spans(stream.plan({0: 130, 1: 10, 2: 40}, {2: 7})) == [(0, 100, 130), (2, 7, 40)]


def test_latest_of_a_stream_whose_ledger_is_lost_is_what_its_group_has_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What came since would be skipped."""
    stream = Stream(start="latest")
    stream.memory.group.committed = {0: 70, 1: 3}
    assert spans(stream.plan({0: 100, 1: 10, 2: 20}, {1: 5})) == [(0, 70, 100), (1, 5, 10)]
    assert "the consumer group has committed offsets" in caplog.text


def test_start_does_not_matter_once_the_ledger_knows_the_topic() -> None:
    stream = Stream()
    stream.run(stream.plan({0: 30, 1: 5}))
    stream.start(start="latest")
    assert spans(stream.plan({0: 50, 1: 9})) == [(0, 30, 50), (1, 5, 9)]


def test_records_that_retention_removed_are_loud_or_counted_once() -> None:
    stream = Stream()
    stream.run(stream.plan({0: 10, 1: 0}), state=State(base_epoch=3))
    with pytest.raises(DataLoss, match="offset 10 is the next to be read, but the topic holds 25 to 99"):
        stream.plan({0: 100, 1: 0}, {0: 25})
    stream.start(on_data_loss="continue")
    assert stream.plan({0: 25, 1: 0}, {0: 25}) == []
    [found] = stream.plan({0: 100, 1: 0}, {0: 25})
    assert (found.start, found.end, found.lost) == (25, 100, 15)
    stream.run([found])
    assert stream.tasks[0].state.base_epoch == 3
    stream.start()
    [found] = stream.plan({0: 120, 1: 0}, {0: 25})
    assert (found.start, found.lost) == (100, 0)


@pytest.mark.parametrize("choice", ["fail", "continue"])
def test_a_topic_that_lost_its_end_stops_the_stream(choice: Any) -> None:
    """Its offsets are given a second time: tokens, dead letters and results could not tell the records apart."""
    stream = Stream(on_data_loss=choice)
    stream.run(stream.plan({0: 100, 1: 0}), state=State(base_epoch=3))
    with pytest.raises(DataLoss, match="offsets up to 99 were read, but the topic ends with 49"):
        stream.plan({0: 50, 1: 0})
    stream.start(on_data_loss=choice)
    with pytest.raises(DataLoss, match="has lost its end"):
        stream.plan({0: 99, 1: 0})
    assert spans(stream.plan({0: 101, 1: 0})) == [(0, 100, 101)]


def test_a_topic_that_has_grown_since_it_was_asked_has_not_lost_its_end() -> None:
    def state(end: int, topic_id: str = "id") -> TopicState:
        return TopicState("t", topic_id, {0: 0}, {0: end})

    expect_end_still(state(4), {0: 8}, lambda: state(9))
    expect_end_still(state(4), {0: 8}, lambda: state(0, "another"))
    with pytest.raises(DataLoss, match="has lost its end"):
        expect_end_still(state(4), {0: 8}, lambda: state(5))


def test_a_range_that_lost_records_is_run_from_what_is_left_of_it() -> None:
    """Else every restart fails with a batch that was planned before."""
    stream = Stream()
    with pytest.raises(Died):
        stream.run(stream.plan({0: 100, 1: 60}), {1: 30})
    with pytest.raises(Died):
        stream.run(stream.plan({0: 100, 1: 60}), {1: 30})
    with pytest.raises(DataLoss):
        stream.plan({0: 150, 1: 200}, {1: 40})
    stream.start(on_data_loss="continue")
    assert spans(stream.plan({0: 150, 1: 200}, {1: 40})) == [(1, 40, 60)]
    stream.run(stream.plan({0: 150, 1: 200}, {1: 45}))
    assert [(t.partition, t.start, t.end) for t in stream.tasks] == [(1, 45, 60)]
    assert spans(stream.plan({0: 100, 1: 200}, {1: 90})) == [(1, 90, 200)]


def test_a_topic_that_lost_the_end_of_a_range_that_was_begun_stops_the_stream() -> None:
    """Some of its rows may be stored."""
    stream = Stream(on_data_loss="continue")
    stream.plan({0: 100, 1: 0})
    with pytest.raises(Died):
        stream.run(stream.plan({0: 100, 1: 60}), {0: 30})
    stream.start()
    with pytest.raises(DataLoss, match="offsets up to 99 were read"):
        stream.plan({0: 50, 1: 60})


def test_a_recreated_topic_stops_the_stream_in_this_life_and_the_next() -> None:
    stream = Stream()
    stream.run(stream.plan({0: 30, 1: 5}), state=State(base_epoch=3))
    with pytest.raises(DataLoss, match="was recreated: its id is B, the ledger's is id"):
        stream.plan({0: 100}, topic_id="B")
    with pytest.raises(DataLoss, match="was recreated"):
        stream.start(start="latest")


def test_a_partition_that_went_away_is_loud() -> None:
    stream = Stream()
    stream.run(stream.plan({0: 30, 1: 5}))
    with pytest.raises(DataLoss, match="no longer has partition 1"):
        stream.plan({0: 30})


def test_nothing_new_is_read_beyond_the_ceiling() -> None:
    stream = Stream()
    first = stream.plan({0: 90, 1: 50}, ceiling={0: 60})
    assert spans(first) == [(0, 0, 60)]
    stream.run(first)
    assert stream.plan({0: 90, 1: 50}, ceiling={0: 60}) == []
    assert spans(stream.plan({0: 90, 1: 50})) == [(0, 60, 90), (1, 0, 50)]


def test_a_plan_asks_the_ledger_nothing_that_the_stream_knows() -> None:
    """Hundreds of streams plan one after the other: a question of each would keep all of them waiting."""
    stream = Stream()
    stream.run(stream.plan({0: 30, 1: 5}))
    ledger = stream.job.ports.ledger
    asked: list[str] = []

    class Counting:
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return getattr(ledger, name)

    stream.job._planner.ledger = Counting()  # type: ignore[assignment]
    assert spans(stream.plan({0: 50, 1: 8})) == [(0, 30, 50), (1, 5, 8)]
    assert asked == []


def test_a_start_asks_for_the_states_of_all_partitions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    stream.run(stream.plan({0: 10, 1: 20}))
    asked: list[Mapping[int, int]] = []
    whole = MemoryLedger.states_at

    def states_at(self: MemoryLedger, topic_id: str, at: Mapping[int, int]) -> dict[int, str]:
        asked.append(dict(at))
        return whole(self, topic_id, at)

    monkeypatch.setattr(MemoryLedger, "states_at", states_at)
    stream.start()
    stream.run(stream.plan({0: 15, 1: 25}))
    assert asked == [{0: 10, 1: 20}]


@pytest.mark.parametrize(
    ("start", "latest", "limit", "chunk", "ends"),
    [
        ({0: 5, 1: 7}, {0: 5, 1: 7}, 100, 10, {0: 5, 1: 7}),
        ({0: 0, 1: 0}, {0: 90, 1: 90}, None, 50, {0: 90, 1: 90}),
        # Equal shares; what the small one leaves goes to the others.
        ({0: 0, 1: 0, 2: 0}, {0: 1000, 1: 10, 2: 1000}, 300, 1, {0: 145, 1: 10, 2: 145}),
        # Short of the latest: back to a multiple of the chunk, unless nothing would be left.
        ({0: 20, 1: 20}, {0: 1000, 1: 1000}, 200, 50, {0: 100, 1: 100}),
        ({0: 20, 1: 48}, {0: 1000, 1: 1000}, 40, 50, {0: 40, 1: 50}),
        # A limit below the number of partitions still moves one.
        ({0: 0, 1: 0, 2: 0}, {0: 9, 1: 9, 2: 9}, 1, 50_000, {0: 1, 1: 0, 2: 0}),
    ],
)
def test_shares(
    start: dict[int, int], latest: dict[int, int], limit: int | None, chunk: int, ends: dict[int, int]
) -> None:
    assert plan_ranges(start, latest, limit, chunk) == ends


_topics = st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=8)


@given(_topics, st.integers(1, 2000), st.integers(1, 200))
def test_within_the_limit_and_always_moving(topic: dict[int, tuple[int, int]], limit: int, chunk: int) -> None:
    start = {partition: low for partition, (low, _) in topic.items()}
    latest = {partition: low + lag for partition, (low, lag) in topic.items()}
    for _ in range(5000):
        ends = plan_ranges(start, latest, limit, chunk)
        assert ends.keys() == latest.keys()
        assert all(start[partition] <= ends[partition] <= latest[partition] for partition in ends)
        moved = sum(ends.values()) - sum(start.values())
        assert moved <= limit
        if start == latest:
            assert moved == 0
            return
        assert moved > 0
        start = ends
    pytest.fail("the lag was never worked off")
