"""The loop of a job: every stream is read to its end, fairly, whatever becomes of the others."""

import math
import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.errors import BrokerUnavailable, ChSinkError, ClickHouseUnavailable, SparkLost, StreamFailed
from ch_sink.model.values import TopicState
from ch_sink.stream.claims import superseded
from ch_sink.stream.flush import Flush
from ch_sink.stream.job_work import Changed
from ch_sink.stream.lanes import ThreadLanes
from ch_sink.stream.tasks import RangeTask, Task
from ch_sink.stream.turn import TOGETHER
from ch_sink.table.model import TargetTable
from ch_sink.testing import MemoryStream
from tests.support.job import MemoryJob

_ends = st.lists(st.integers(0, 60), min_size=1, max_size=3)


@given(
    st.lists(st.tuples(_ends, st.none() | st.integers(0, 60)), min_size=1, max_size=8),
    st.none() | st.integers(1, 80),
    st.lists(st.integers(0, 7), max_size=4),
)
def test_streams_are_read_once_each_to_the_end_and_broken_ones_to_where_they_break(
    drawn: list[tuple[list[int], int | None]], limit: int | None, lost_calls: list[int]
) -> None:
    job = MemoryJob()
    for number, (ends, broken) in enumerate(drawn):
        job.add(f"s{number}", *ends)
        if broken is not None:
            job.broken[f"s{number}"] = broken
    calls = iter(range(10**6))

    def lose_some(_: MemoryJob, tasks: Sequence[Task]) -> None:
        if next(calls) in lost_calls[:2]:
            raise RuntimeError("a worker died")

    job.before = lose_some
    failed = job.run(limit=limit, once=True)
    hit = {
        f"s{number}"
        for number, (ends, broken) in enumerate(drawn)
        if broken is not None and any(broken < end for end in ends)
    }
    assert failed.keys() == hit
    for number, (ends, _) in enumerate(drawn):
        covered = job.covered(f"s{number}")
        if f"s{number}" not in hit:
            assert covered == {p: end for p, end in enumerate(ends) if end}
    # The next job, once the streams are mended, reads the rest and nothing twice.
    job.broken.clear()
    job.ask("resume", *hit)
    job.before = lambda _job, _tasks: None
    assert job.run(limit=limit, once=True) == {}
    for number, (ends, _) in enumerate(drawn):
        assert job.covered(f"s{number}") == {p: end for p, end in enumerate(ends) if end}


def test_tasks_of_all_streams_share_a_call_and_topics_a_question() -> None:
    job = MemoryJob()
    for name in "abcd":
        job.add(name, 10)

    def grow(_: MemoryJob, tasks: Sequence[Task]) -> None:
        for name in "abcd":
            job.grow(name, 5)

    job.before = grow
    assert job.run(stopping=lambda: len(job.calls) >= 4) == {}
    assert job.calls[-3:] == [["a", "b", "c", "d"]] * 3
    assert job.looks[-2:] == [["a", "b", "c", "d"]] * 2


def test_a_backlog_is_shared_and_read_without_a_pause() -> None:
    job = MemoryJob()
    job.add("large", 1000)
    job.add("small", 20)
    job.add("middle", 150)
    assert job.run(limit=100, once=True) == {}
    first: dict[str, int] = {}
    for name in job.streams:
        first[name] = job.read[name][0][2]
    assert first == {"large": 40, "small": 20, "middle": 40}
    assert job.lanes.clock == 0.0, "no time passed between the batches"


def test_an_idle_job_looks_once_an_interval() -> None:
    job = MemoryJob()
    job.add("a", 3)
    job.add("b", 3)
    assert job.run(interval=2.0, stopping=lambda: job.lanes.clock > 20.1) == {}
    assert len(job.looks) == 10
    assert len(job.calls) == 1


def test_a_stream_that_fails_at_its_start_does_not_keep_the_others_from_theirs() -> None:
    job = MemoryJob()
    job.add("good", 30)
    job.add("bad", 30)
    job.streams["bad"].detect = _refuse  # type: ignore[method-assign]
    failed = job.run(once=True)
    assert str(failed["bad"]) == "no such table"
    assert job.covered("good") == {0: 30}


def _refuse() -> None:
    raise StreamFailed("no such table")


def test_fail_fast_ends_the_job_at_the_first_failure() -> None:
    job = MemoryJob()
    job.add("bad", 30)
    job.add("good", 1000)
    job.broken["bad"] = 5
    stopped: list[str] = []
    failed = job.run(limit=20, fail_fast=True, on_stop=lambda stream: stopped.append(stream.name))
    assert list(failed) == stopped == ["bad"]
    assert job.covered("good") == {0: 10}


def test_an_executor_that_always_loses_one_stream_stops_that_stream_only() -> None:
    """Its tasks kill the worker. The others lose the first call with it, and no other."""
    job = MemoryJob()
    for name in "abc":
        job.add(name, 30)

    def lose(_: MemoryJob, tasks: Sequence[Task]) -> None:
        if any(task.stream == "b" for task in tasks):
            raise MemoryError("worker was killed")

    job.before = lose
    retried: list[str] = []
    failed = job.run(once=True, on_retry=lambda stream: retried.append(stream.name))
    assert list(failed) == ["b"]
    assert sorted(retried) == ["a", "b", "b", "c"], "the call that all of them lost, and one more of its own"
    assert "MemoryError: worker was killed" in str(failed["b"])
    assert job.covered("a") == job.covered("c") == {0: 30}


def test_once_reads_what_was_there_at_the_start() -> None:
    job = MemoryJob()
    job.add("a", 30)
    job.before = lambda job, _: job.grow("a", 10)
    assert job.run(once=True) == {}
    assert job.covered("a") == {0: 30}


@pytest.mark.parametrize("asked_at", [1, 2])
def test_a_stop_lets_the_running_batch_end_and_begins_no_other(asked_at: int) -> None:
    job = MemoryJob()
    job.add("a", 1000)
    assert job.run(limit=20, stopping=lambda: len(job.calls) >= asked_at) == {}
    assert len(job.calls) == asked_at
    assert job.covered("a") == {0: asked_at * 20}


def test_changes_that_have_waited_since_an_earlier_job_are_applied_though_nothing_new_is_there() -> None:
    from ch_sink.ports import PendingRecord

    job = MemoryJob()
    job.add("a", 0)
    job.streams["a"].pending.put("id", 0, [PendingRecord(3, 0, b"k", b"{}", [], 0, 0)], "token")
    released: list[Task] = []
    job.before = lambda _, tasks: released.extend(t for t in tasks if not isinstance(t, RangeTask))
    assert job.run(once=True) == {}
    assert len(released) == 1


def outage(job: MemoryJob, began: float, ended: float, error: ChSinkError) -> None:
    """Every call of the executor fails in this time."""

    def away(_: MemoryJob, tasks: Sequence[Task]) -> None:
        job.failing = error if began <= job.lanes.clock < ended else None

    job.before = away


def test_an_outage_is_waited_out_and_nothing_is_read_twice() -> None:
    job = MemoryJob()
    for name in "abc":
        job.add(name, 40)
    outage(job, 5.0, 300.0, ClickHouseUnavailable("no answer"))
    grown: set[int] = set()

    def stopping() -> bool:
        moment = int(job.lanes.clock)
        if moment % 20 == 3 and moment not in grown:
            grown.add(moment)
            for name in "abc":
                job.grow(name, 7)
        return job.lanes.clock > 400

    assert job.run(stopping=stopping) == {}
    total = 40 + 7 * len(grown)
    assert [job.covered(name) for name in "abc"] == [{0: total}] * 3
    assert job.job is not None
    assert {s.state for s in job.job.roster.standings().values()} == {"running"}


def test_once_waits_too() -> None:
    job = MemoryJob()
    job.add("a", 40)
    outage(job, 0.0, 100.0, BrokerUnavailable("no broker"))
    retried: list[str] = []
    assert job.run(once=True, on_retry=lambda stream: retried.append(stream.name)) == {}
    assert job.covered("a") == {0: 40}
    assert job.lanes.clock >= 100
    assert set(retried) == {"a"}
    assert 3 < len(retried) < 30


def test_a_server_that_does_not_come_back_stops_its_streams_after_retry_for() -> None:
    job = MemoryJob()
    job.add("a", 40)
    outage(job, 0.0, math.inf, ClickHouseUnavailable("no answer"))
    failed = job.run(once=True, retry_for=600.0)
    assert str(failed["a"]) == "no answer"
    assert 600 <= job.lanes.clock < 640


def test_a_server_that_is_away_at_the_start_is_waited_for() -> None:
    job = MemoryJob()
    job.add("a", 40)
    whole, tries = job.streams["a"].detect, 0

    def detect() -> TargetTable:
        nonlocal tries
        tries += 1
        if job.lanes.clock < 50:
            raise ClickHouseUnavailable("it is starting")
        return whole()

    job.streams["a"].detect = detect  # type: ignore[method-assign]
    assert job.run(once=True) == {}
    assert job.covered("a") == {0: 40}
    assert 3 < tries < 12


def test_a_topic_whose_broker_is_away_waits_while_others_go_on() -> None:
    job = MemoryJob()
    job.add("a", 40)
    job.add("b", 40)
    whole = job.states

    def states(topics: Sequence[str]) -> dict[str, TopicState | ChSinkError]:
        found = dict(whole(topics))
        if job.lanes.clock < 60:
            found |= {t: BrokerUnavailable("no broker") for t in topics if t == "a"}
        job.grow("b", 1)
        return found

    job.states = states  # type: ignore[method-assign]
    seen: list[str] = []

    def stopping() -> bool:
        assert job.job is not None
        seen.append(job.job.roster.standing("a").state)
        return job.lanes.clock > 120

    assert job.run(stopping=stopping) == {}
    assert set(seen) == {"running", "waiting"}
    assert seen[-1] == "running"
    assert job.covered("b")[0] > 100


def test_pause_and_resume_while_the_job_runs() -> None:
    job = MemoryJob()
    job.add("a", 10)
    job.add("b", 10)
    reached: dict[int, int] = {}

    def stopping() -> bool:
        moment = int(job.lanes.clock)
        if moment not in reached:
            reached[moment] = job.covered("a").get(0, 0)
            job.grow("a", 1)
            job.grow("b", 1)
            if moment == 10:
                job.ask("pause", "a")
            if moment == 30:
                job.ask("resume", "a")
        return moment > 40

    assert job.run(stopping=stopping) == {}
    assert reached[29] <= reached[12] + 1
    assert reached[40] > reached[29] + 20
    assert job.covered("b")[0] >= 49


def test_a_paused_stream_is_not_even_opened() -> None:
    job = MemoryJob()
    job.add("a", 10)
    job.add("b", 10)
    job.ask("pause", "a")
    assert job.run(once=True) == {}
    assert job.read["a"] == []
    assert job.covered("b") == {0: 10}


def test_a_stream_is_mended_and_resumed_without_a_restart() -> None:
    job = MemoryJob()
    job.add("a", 30)
    job.broken["a"] = 12
    states: list[str] = []

    def stopping() -> bool:
        assert job.job is not None
        state = job.job.roster.standing("a").state
        states.append(state)
        if state == "stopped" and job.lanes.clock > 20 and job.broken:
            job.broken.clear()
            job.ask("resume", "a")
        return job.lanes.clock > 60

    assert job.run(stopping=stopping) == {}
    assert job.covered("a") == {0: 30}
    assert states.count("stopped") > 10, "the job went on though its only stream was stopped"
    assert states[-1] == "running"


def test_a_job_of_which_no_stream_can_be_opened_ends() -> None:
    job = MemoryJob()
    job.add("a", 30)
    whole = job.streams["a"].detect
    job.streams["a"].detect = _refuse  # type: ignore[method-assign]
    assert list(job.run()) == ["a"]
    # The next one tries again, although nobody resumed the stream.
    job.streams["a"].detect = whole  # type: ignore[method-assign]
    assert job.run(once=True) == {}
    assert job.covered("a") == {0: 30}


def test_a_failure_of_the_job_is_not_recorded_as_one_of_its_streams() -> None:
    job = MemoryJob()
    job.add("a", 30)

    def no_java(_: MemoryJob, tasks: Sequence[Task]) -> None:
        raise StreamFailed("Spark needs Java")

    job.before = no_java
    with pytest.raises(StreamFailed, match="Spark needs Java"):
        job.run()
    assert job.states_of_streams.conditions == {}


def test_streams_join_and_leave_while_the_job_runs() -> None:
    """A job that begins without any stream; one of two joins after 30 s, and leaves when its topic is deleted."""
    job, looks = MemoryJob(), []

    def discover() -> Changed:
        looks.append(job.lanes.now())
        if len(looks) == 2:
            job.add("a", 25)
            job.add("b", 5)
            return Changed([job.joining("a"), job.joining("b")])
        if len(looks) == 4:
            del job.streams["a"]
        # The topic's absence makes the job look again at once.
        return Changed(left=("a",)) if len(looks) == 6 else Changed()

    failed = job.run(discover=discover, discover_every=30.0, stopping=lambda: job.lanes.now() > 300)
    assert failed == {}
    assert looks[:3] == pytest.approx([30, 60, 90], abs=1)
    assert looks[5] - looks[3] < 15
    assert job.covered("a") == {0: 25}
    assert job.covered("b") == {0: 5}
    assert job.job is not None
    assert [s.name for s in job.job.streams] == ["b"]
    assert [s.name for s in job.job.left] == ["a"]
    assert [s.stream for s in job.job.picture().streams] == ["b"]


def test_a_stream_whose_topic_is_missing_for_a_moment_goes_on() -> None:
    job = MemoryJob()
    joined: list[str] = []

    def discover() -> Changed:
        if joined:
            return Changed()
        job.add("a", 5)
        joined.append("a")
        return Changed([job.joining("a")])

    hidden: list[MemoryStream] = []

    def stopping() -> bool:
        gone = 40 < job.lanes.now() < 55
        if gone and "a" in job.streams:
            hidden.append(job.streams.pop("a"))
        elif not gone and hidden:
            job.streams["a"] = hidden.pop()
            job.grow("a", 7)
        return job.lanes.now() > 100

    assert job.run(discover=discover, discover_every=10.0, stopping=stopping) == {}
    assert job.covered("a") == {0: 12}


def test_a_deleted_topic_of_a_file_of_its_own_stops_its_stream() -> None:
    job = MemoryJob()
    job.add("a", 5)
    job.add("b", 5)

    def stopping() -> bool:
        if job.lanes.now() > 10:
            job.streams.pop("a", None)
        return job.lanes.now() > 100

    assert set(job.run(discover=Changed, discover_every=10.0, stopping=stopping)) == {"a"}


def test_a_few_new_events_wait_for_more_and_many_do_not() -> None:
    job = MemoryJob()
    job.add("few", 1)
    job.add("many", 1)
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
    job = MemoryJob()
    job.add("long", 1_000_000)
    job.add("live", 1)
    job.before = lambda job, _: job.grow("live", 1) if len(job.calls) < 8 else None
    assert job.run(limit=1_000_000, stopping=lambda: job.lanes.clock > 30) == {}
    assert job.covered("long") == {0: 1_000_000}
    sizes = [end - start for _, start, end in job.read["long"]]
    assert sizes == [200_000] * 5
    assert not any(call == ["live", "long"] for call in job.calls), "in a call of its own"
    alone = MemoryJob()
    alone.add("long", 1_000_000)
    assert alone.run(limit=1_000_000, once=True) == {}
    assert len(alone.read["long"]) == 1


def test_a_slow_stream_does_not_hold_back_a_live_one() -> None:
    """In threads: while the long batch runs, batches of the other begin and end."""
    job = MemoryJob(lanes=ThreadLanes())
    job.add("long", 100_000)
    job.add("live", 1)
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
    assert job.run(interval=0.02, stopping=lambda: bool(job.read["long"])) == {}
    assert len(live_batches) >= 5
    assert job.covered("long") == {0: 100_000}


def test_a_job_whose_spark_is_lost_ends_and_blames_no_stream() -> None:
    job = MemoryJob()
    for name in "abc":
        job.add(name, 30)
    lost = SparkLost("Spark stopped working")

    def lose(_: MemoryJob, _tasks: Sequence[Task]) -> None:
        raise lost

    job.before = lose
    with pytest.raises(SparkLost) as found:
        job.run()
    assert found.value is lost
    assert job.job is not None
    assert {s.state for s in job.job.roster.standings().values()} == {"running"}
    # No `resume` is needed: the next job reads everything.
    job.before = lambda _job, _tasks: None
    assert job.run(once=True) == {}
    assert [job.covered(name) for name in "abc"] == [{0: 30}] * 3


def test_work_that_another_execution_has_taken_over_is_planned_again() -> None:
    """However often: a cluster that copies slow tasks says nothing about the stream."""
    job = MemoryJob()
    job.add("a", 30)
    calls = iter(range(10**6))
    job.before = lambda job, _: setattr(job, "failing", superseded("a", 0) if next(calls) < 5 else None)
    assert job.run(once=True) == {}
    assert job.covered("a") == {0: 30}
