"""When streams read, how long failed ones wait, and when a slot is free."""

import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from ch_sink.errors import BrokerUnavailable, ClickHouseUnavailable
from ch_sink.order import State
from ch_sink.stream.lanes import ThreadLanes
from ch_sink.stream.pace import Patience, Pauses, Slots
from ch_sink.stream.roster import Outages
from ch_sink.stream.tasks import RangeTask, Task
from tests.support.job import TABLE, MemoryJob


def lower(low: float, _high: float) -> float:
    return low


def upper(_low: float, high: float) -> float:
    return high


def test_pauses_double_up_to_the_longest_and_vary_by_half():
    pauses = Pauses(1.0, 30.0, upper)
    assert [pauses.before(n) for n in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert Pauses(1.0, 30.0, lower).before(7) == 15
    assert {round(Pauses().before(9), 6) for _ in range(5)} != {15.0}
    assert pauses.before(100_000) == 30


def test_a_stream_gives_up_when_the_time_is_over_and_not_before():
    patience, now, tries = Patience(100.0, Pauses(1.0, 30.0, upper)), 5.0, 0
    while patience.failed(now):
        assert now < patience.due <= 105.0
        now, tries = patience.due, tries + 1
    assert (now, tries) == (105.0, 8)


def test_each_failure_in_a_row_counts_from_the_first():
    patience = Patience(10.0, Pauses(1.0, 1.0, upper))
    assert patience.failed(0.0)
    assert patience.failed(9.0)
    patience.reset()
    assert patience.failed(50.0)
    assert not patience.failed(60.0)


def test_unlimited_patience_never_ends():
    patience = Patience(math.inf)
    assert all(patience.failed(now) for now in (0.0, 1e9, 1e12))
    assert patience.due <= 1e12 + 30


def test_no_patience_stops_at_the_first_failure():
    assert not Patience(0.0).failed(3.0)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_an_outage_is_three_kinds_of_lines_however_many_streams_wait(caplog):
    caplog.set_level(logging.INFO, "ch_sink")
    outages, away = Outages(), ClickHouseUnavailable("ClickHouse does not answer")
    for second in range(0, 150, 5):
        for n in range(200):
            outages.waits(f"s{n}", away, float(second))
        outages.remind(float(second))
    assert lines(caplog) == [
        "s0 waits: ClickHouse does not answer",
        "200 streams waiting for 60 s: ClickHouse does not answer",
        "200 streams waiting for 2 min: ClickHouse does not answer",
    ]
    for n in range(200):
        outages.over(f"s{n}", 150.0)
    assert lines(caplog) == ["s199 continues after 2 min"]
    outages.remind(1000.0)
    assert lines(caplog) == []


def test_another_server_is_another_outage(caplog):
    caplog.set_level(logging.INFO, "ch_sink")
    outages = Outages()
    outages.waits("a", ClickHouseUnavailable("ClickHouse is away"), 0.0)
    outages.waits("a", BrokerUnavailable("Kafka is away"), 5.0)
    outages.over("a", 9.0)
    assert lines(caplog) == ["a waits: ClickHouse is away", "a waits: Kafka is away", "a continues after 4 s"]


def tasks(count: int) -> list[Task]:
    return [RangeTask("s", "s", "id", n, TABLE, 0, 500, State()) for n in range(count)]


class Executor:
    """Each call takes `seconds` of a clock that only it moves; `during` happens in its middle."""

    def __init__(self, slots: int, seconds: float = 1.0) -> None:
        self.clock, self.seconds = 100.0, seconds
        self.during: list[Any] = []
        self.slots = Slots(self._call, lambda: slots, lambda: self.clock)
        self.most: list[int | None] = []

    def run(self, count: int, *during: Any) -> None:
        self.during = list(during)
        self.slots.run(self.slots.expect(count), tasks(count))

    def _call(self, _: Sequence[Task], most: int | None = None) -> list[Any]:
        self.most.append(most)
        self.clock += self.seconds / 2
        for happens in self.during:
            happens()
        self.clock += self.seconds / 2
        return []


def test_a_batch_that_is_planned_takes_its_slots_before_it_runs() -> None:
    slots = Executor(2).slots
    assert slots.wait() == 0.0
    coming = slots.expect(5)
    assert slots.wait() == float("inf")
    slots.done(coming)
    assert slots.wait() == 0.0


def test_while_all_slots_are_taken_the_wait_ends_shortly_before_the_call() -> None:
    seen: list[float] = []
    executor = Executor(2)
    executor.run(4, lambda: seen.append(executor.slots.wait()))
    executor.run(4, lambda: seen.append(executor.slots.wait()))
    executor.run(8, lambda: seen.append(executor.slots.wait()))
    assert seen[0] == float("inf"), "nothing is known of the pace yet"
    assert seen[1] == pytest.approx(0.3)
    assert seen[2] == pytest.approx(1.3), "twice the work, of which a quarter is done"
    assert executor.slots.wait() == 0.0


def test_a_call_that_leaves_slots_free_holds_nothing_up() -> None:
    seen: list[float] = []
    executor = Executor(4)
    executor.run(2)
    executor.run(3, lambda: seen.append(executor.slots.wait()))
    assert seen == [0.0]


def test_a_call_that_takes_longer_than_expected_is_not_waited_for() -> None:
    seen: list[float] = []
    executor = Executor(2)
    executor.run(2)
    executor.seconds = 60.0
    executor.run(2, lambda: seen.append(executor.slots.wait()))
    assert seen == [0.0]


def test_a_call_that_fails_leaves_its_slots() -> None:
    executor = Executor(1)

    def fails() -> None:
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError):
        executor.run(1, fails)
    assert executor.slots.wait() == 0.0


def test_calls_of_one_server_leave_a_slot_to_those_of_others() -> None:
    executor = Executor(4)
    slots = executor.slots
    first = slots.expect(2, "a", shared=True)
    waits: list[float] = []

    def others() -> None:
        executor.during = []
        slots.run(slots.expect(9, "a", shared=True), tasks(9))
        slots.run(slots.expect(9, "b", shared=True), tasks(9))
        waits.append(slots.wait("c"))

    executor.during = [others]
    slots.run(first, tasks(2))
    assert executor.most == [3, 1, 3]
    assert waits == [0.0]
    executor.run(9)
    assert executor.most[-1] is None, "the job has streams of one server only"


def test_a_call_waits_for_those_of_its_server_that_have_all_their_slots() -> None:
    executor = Executor(2)
    slots, began, seen = executor.slots, threading.Event(), list[int]()
    work = slots.expect(2, "a", shared=True)

    def later() -> None:
        began.set()
        slots.run(slots.expect(2, "a", shared=True), tasks(2))

    thread = threading.Thread(target=later)

    def while_it_runs() -> None:
        executor.during = []
        thread.start()
        assert began.wait(10)
        time.sleep(0.2)
        seen.append(len(executor.most))

    executor.during = [while_it_runs]
    slots.run(work, tasks(2))
    thread.join(10)
    assert seen == [1]
    assert executor.most == [1, 1]


def test_no_job_asks_what_to_read_while_its_only_slot_is_taken_for_long() -> None:
    """In threads. What comes meanwhile is read by the batch that is planned at the end of that time."""
    for _ in range(3):  # on a busy machine the first stream may be read before the second one is there
        job, asked = _taken_for_long()
        if job.calls[0] == ["a", "b"]:
            break
    assert job.calls[:3] == [["a", "b"], ["a"], ["b"]]
    assert asked[0] == asked[1]
    assert job.read["b"] == [(0, 0, 1), (0, 1, 3)]


def _taken_for_long() -> tuple[MemoryJob, list[int]]:
    """A job after three batches, and how many looks it had taken when the second one began, and a moment later."""
    job = MemoryJob(lanes=ThreadLanes()).having(a=1, b=1)
    asked: list[int] = []

    def before(_: MemoryJob, __: Sequence[Task]) -> None:
        if len(job.calls) == 1:
            job.grow("b", 1)
            asked.append(len(job.looks))
        time.sleep(0.1)
        if len(job.calls) == 0:
            job.grow("a", 1)
        elif len(job.calls) == 1:
            asked.append(len(job.looks))
            job.grow("b", 1)
        time.sleep(0.7)

    job.before = before
    assert job.run(interval=0.02, stopping=lambda: len(job.calls) >= 3) == {}
    return job, asked
