"""A turn of a job: asking brokers, and hundreds of streams at once."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import pytest

from ch_sink.errors import ChSinkError
from ch_sink.model.values import TopicState
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.job_stream import JobStream
from ch_sink.stream.lanes import Kind, Report, ThreadLanes
from ch_sink.stream.pace import Flush
from ch_sink.stream.tasks import Task, TaskResult
from ch_sink.stream.turn import PATIENCE, TOGETHER
from ch_sink.wiring.worker import packed
from tests.support.job import InlineLanes, MemoryJob
from tests.support.memory_stream import MemoryStream

_LONG = 20.0


class SlowLooks(InlineLanes):
    """Answers of clusters that are ``away`` take long, and say what was true when they were asked."""

    def __init__(self) -> None:
        super().__init__()
        self.away: Callable[[Sequence[str]], bool] = lambda _: False
        self._held: list[tuple[float, Report]] = []

    def start(self, kind: Kind, work: Any, server: str = "") -> None:
        if kind == "look" and self.away([stream.topic for stream in work.args[1]]):
            work(lambda answer: self._held.append((self.clock + _LONG, answer)))
        else:
            super().start(kind, work, server)

    def wait(self, seconds: float) -> list[Report]:
        found = super().wait(seconds)
        for held in [h for h in self._held if h[0] <= self.clock]:
            self._held.remove(held)
            found.append(held[1])
        return found


@dataclass
class Cluster:
    """A Kafka cluster of its own."""

    job: MemoryJob

    def states(self, topics: Sequence[str]) -> dict[str, TopicState | ChSinkError]:
        return dict(self.job.states(topics))


def test_streams_of_other_clusters_and_those_with_work_do_not_wait_for_a_broker_that_is_away() -> None:
    lanes = SlowLooks()
    job = MemoryJob(lanes=lanes)
    for name, offsets in (("busy", 600), ("idle", 10), ("other", 10)):
        job.add(name, offsets)
    job.clusters["other"] = Cluster(job)
    lanes.away = lambda topics: lanes.clock < 10 and "other" not in topics
    moments: dict[str, list[tuple[float, int]]] = {"busy": [], "idle": [], "other": []}

    def stopping() -> bool:
        if lanes.clock > 1.5 and job.covered("other").get(0) == 10:
            job.grow("other", 5)
            job.grow("idle", 5)
        for name, seen in moments.items():
            seen.append((lanes.clock, job.covered(name).get(0, 0)))
        return lanes.clock > _LONG + 5

    assert job.run(limit=50, stopping=stopping) == {}

    def done_at(name: str, offsets: int) -> float:
        return next(clock for clock, reached in moments[name] if reached >= offsets)

    assert done_at("busy", 600) < PATIENCE + 2
    assert done_at("other", 15) < 4
    assert _LONG <= done_at("idle", 15) < _LONG + 3


def test_an_answer_that_comes_after_the_stream_was_opened_anew_is_not_taken_for_its_state_now() -> None:
    lanes = SlowLooks()
    job = MemoryJob(lanes=lanes).having(a=10)
    lanes.away = lambda _: lanes.clock < 10
    steps = iter(
        [(2.0, lambda: job.ask("pause", "a")), (5.0, lambda: job.grow("a", 40)), (6.0, lambda: job.ask("resume", "a"))]
    )
    step = next(steps)
    reached: list[tuple[float, int]] = []

    def stopping() -> bool:
        nonlocal step
        if step is not None and lanes.clock >= step[0]:
            step[1]()
            step = next(steps, None)  # type: ignore[assignment]
        reached.append((lanes.clock, job.covered("a").get(0, 0)))
        return lanes.clock > _LONG + 10

    assert job.run(stopping=stopping) == {}
    assert next(clock for clock, offset in reached if offset == 50) < 10, "it was opened, and read what was there"
    assert job.current.roster.standing("a").state == "running", "the old answer says that the topic ends at 10"


def _calls(streams: int) -> float:
    """Calls of functions for a stream that is opened and read once."""
    job = MemoryJob(lanes=ThreadLanes())
    for number in range(streams):
        job.add(f"s{number}", 1)
    made = count()

    def note(_frame: object, event: str, _what: object) -> None:
        if event in ("call", "c_call"):
            next(made)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        assert job.run(once=True) == {}
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert all(job.covered(f"s{number}") == {0: 1} for number in range(streams))
    return next(made) / streams


@pytest.mark.long
def test_ten_times_the_streams_take_about_ten_times_the_work() -> None:
    few, many = _calls(40), _calls(400)
    assert many < 2 * few


def test_a_few_new_events_wait_for_more_and_many_do_not() -> None:
    job = MemoryJob().having(few=1, many=1)
    times: dict[str, list[float]] = {"few": [], "many": []}

    def note(_: MemoryJob, tasks: Sequence[Task]) -> None:
        for task in tasks:
            times[task.stream].append(job.lanes.clock)

    def stopping() -> bool:
        """A second has passed: one event for one stream, ten for the other."""
        if job.lanes.clock >= len(seconds) + 1:
            seconds.append(job.lanes.clock)
            job.grow("few", 1)
            job.grow("many", 10)
        return len(seconds) >= 20

    seconds: list[float] = []
    job.before = note
    assert job.run(interval=1.0, flush=Flush(4.0, rows=10), stopping=stopping) == {}
    waited = [later - earlier for earlier, later in pairwise(times["few"][1:])]
    assert waited
    assert all(4.0 <= pause <= 6.0 for pause in waited), times
    assert len(times["many"]) >= 18
    assert job.covered("few")[0] >= 15


def test_nothing_waits_by_itself_until_many_streams_are_active() -> None:
    usual = Flush()
    assert not usual.waits(1, 0.0, active=20)
    assert usual.waits(1, 0.0, active=50)
    assert not usual.waits(1, 0.5, active=50)
    assert usual.waits(1, 0.9, active=2000)
    assert not usual.waits(1, 1.0, active=2000)
    assert not usual.waits(10_000, 0.0, active=2000)
    assert not Flush(0.0).waits(1, 0.0, active=2000)


@pytest.mark.long
def test_of_hundreds_of_streams_those_come_first_whose_last_batch_is_the_longest_ago() -> None:
    job = MemoryJob()
    names = [f"s{number:03}" for number in range(2 * TOGETHER + 10)]
    for name in names:
        job.add(name, 1)

    def more(job: MemoryJob, tasks: Sequence[Task]) -> None:
        for task in tasks:
            job.grow(task.stream, 1)

    job.before = more
    assert job.run(interval=1.0, flush=Flush(0.0), stopping=lambda: job.lanes.clock > 10) == {}
    assert max(len(call) for call in job.calls) == TOGETHER
    came = [job.covered(name)[0] for name in names]
    assert max(came) - min(came) <= 1
    assert min(came) >= 9


def test_a_long_backlog_is_read_a_little_at_a_time_while_others_are_live() -> None:
    job = MemoryJob().having(long=1_000_000, live=1)
    job.before = lambda job, _: job.grow("live", 1) if len(job.calls) < 16 else None
    assert job.run(limit=1_000_000, stopping=lambda: job.lanes.clock > 30) == {}
    assert job.covered("long") == {0: 1_000_000}
    sizes = [end - start for _, start, end in job.read["long"]]
    assert sizes == [100_000] * 10
    assert not any(call == ["live", "long"] for call in job.calls), "in a call of its own"
    alone = MemoryJob().having(long=1_000_000)
    assert alone.run(limit=1_000_000, once=True) == {}
    assert len(alone.read["long"]) == 1


def test_a_partition_with_a_long_backlog_keeps_live_ones_of_its_stream_waiting_for_little() -> None:
    job = MemoryJob().having(long=(1_000_000, 1))
    job.before = lambda job, _: job.grow("long", 1, partition=1) if len(job.calls) < 16 else None
    assert job.run(limit=1_000_000, stopping=lambda: job.lanes.clock > 30) == {}
    assert job.covered("long")[0] == 1_000_000
    sizes = [end - start for partition, start, end in job.read["long"] if not partition]
    assert len(sizes) == 11
    assert max(sizes) < 100_000
    assert all(end - start <= 2 for partition, start, end in job.read["long"] if partition)
    quiet = MemoryJob().having(long=(1_000_000, 1))
    assert quiet.run(limit=1_000_000, stopping=lambda: quiet.lanes.clock > 30) == {}
    assert max(end - start for _, start, end in quiet.read["long"]) <= 100_000, "the other partition is live, too"
    even = MemoryJob().having(long=(400_000, 600_000))
    assert even.run(limit=1_000_000, stopping=lambda: even.lanes.clock > 30) == {}
    assert len(even.read["long"]) == 2


def test_a_slow_stream_does_not_hold_back_a_live_one() -> None:
    """In threads: while the long batch runs, batches of the other begin and end."""
    job = MemoryJob(lanes=ThreadLanes()).having(long=100_000, live=1)
    slow, live_batches = threading.Event(), list[int]()

    def before(_: MemoryJob, tasks: Sequence[Task]) -> None:
        if any(task.stream == "long" for task in tasks):
            assert slow.wait(60)
        else:
            live_batches.append(1)
            job.grow("live", 1)
            if len(live_batches) >= 5:
                slow.set()

    job.before = before
    assert job.run(interval=0.02, slots=lambda: 2, stopping=lambda: bool(job.read["long"])) == {}
    assert len(live_batches) >= 5
    assert job.covered("long") == {0: 100_000}


def test_streams_of_different_servers_share_no_call() -> None:
    job = MemoryJob(servers={"a": "another"}).having(**dict.fromkeys("abc", 1))

    def grow(_: MemoryJob, __: Sequence[Task]) -> None:
        for name in "abc":
            job.grow(name, 1)

    job.before = grow
    assert job.run(stopping=lambda: len(job.calls) >= 8) == {}
    assert sorted(job.calls[-2:]) == [["a"], ["b", "c"]]


def test_a_server_that_hangs_keeps_only_its_own_streams_waiting() -> None:
    """In threads."""
    job = MemoryJob(lanes=ThreadLanes(), servers={"a": "hangs", "b": "hangs"}).having(**dict.fromkeys("abc", 1))
    hang: set[str] = set()
    waited: list[bool] = []
    others, went_on = count(), threading.Event()

    def before(_: MemoryJob, tasks: Sequence[Task]) -> None:
        if hanging := {task.stream for task in tasks} & {"a", "b"}:
            hang.update(hanging)
            waited.append(went_on.wait(10))
            return
        job.grow("c", 1)
        if len(hang) == 2 and next(others) == 3:
            went_on.set()

    job.before = before
    stopping = lambda: bool(job.read["a"] and job.read["b"])  # noqa: E731
    assert job.run(interval=0.02, slots=lambda: 4, stopping=stopping) == {}
    assert all(waited), "the others wait for the server that hangs"


class Unanswered(MemoryJob):
    """Streams whose names begin with `bad` cannot be opened: their server does not answer."""

    answer = threading.Event()

    def _stream(self, memory: MemoryStream, *settings: Any) -> JobStream:
        made = super()._stream(memory, *settings)
        connect = made.connect

        def waiting() -> Coordinator:
            assert not made.name.startswith("bad") or self.answer.wait(30)
            return connect()

        made.connect = waiting
        return made


def test_streams_of_a_server_that_does_not_answer_do_not_keep_others_from_being_opened() -> None:
    """In threads."""
    job = Unanswered(lanes=ThreadLanes(opens=2))
    for number in range(20):
        job.add(f"bad{number}", 1)
        job.servers[f"bad{number}"] = "hangs"
    job.add("good", 1)

    def stopping() -> bool:
        if job.read["good"]:
            job.answer.set()
        return bool(job.read["good"])

    assert job.run(interval=0.02, stopping=stopping) == {}


class TwoSlots(MemoryJob):
    """Its executor runs two groups of tasks at once, in the order in which they come; those of `hangs` wait."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pool = ThreadPoolExecutor(2)
        self.hangs, self.hung, self.healed = "", threading.Event(), threading.Event()

    def _execute(self, tasks: Sequence[Task], most: int | None = None) -> list[TaskResult]:
        list(self._pool.map(lambda group: self._wait(tasks[group[0]]), packed(tasks, 2, most)))
        return super()._execute(tasks)

    def _wait(self, task: Task) -> None:
        if task.stream.startswith(self.hangs):
            self.hung.set()
            assert self.healed.wait(60)


@pytest.mark.parametrize("backlog", [50, 100_000])
def test_a_server_that_hangs_in_many_tasks_leaves_a_slot_to_the_others(backlog: int) -> None:
    """In threads."""
    job = TwoSlots(lanes=ThreadLanes())
    job.hangs = "bad"
    for number in range(5):
        job.add(f"bad{number}", *[backlog] * 5)
        job.servers[f"bad{number}"] = "hangs"
    job.add("good", 1)
    late: list[float] = []

    def stopping() -> bool:
        """Called all the time: one event after the other comes, and none waits for the server that hangs."""
        if job.hung.is_set() and len(job.read["good"]) > len(late):
            late.append(time.monotonic())
            job.grow("good", 1)
        if len(late) > 5:
            job.healed.set()
        return len(late) > 5

    assert job.run(interval=0.02, slots=lambda: 2, stopping=stopping) == {}
    assert max(after - before for before, after in pairwise(late)) < 5
