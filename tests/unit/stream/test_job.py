"""The loop of a job: every stream is read to its end, fairly, whatever becomes of the others."""

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ch_sink.errors import SparkLost, StreamFailed
from ch_sink.ports import Claim, PendingRecord
from ch_sink.stream.claims import superseded
from ch_sink.stream.lanes import ThreadLanes
from ch_sink.stream.tasks import RangeTask, Task
from tests.support.job import MemoryJob
from tests.support.memory_stream import MemoryStreamStates

_ends = st.lists(st.integers(0, 60), min_size=1, max_size=3)


@settings(max_examples=40)
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
    job = MemoryJob().having(**dict.fromkeys("abcd", 10))

    def grow(_: MemoryJob, tasks: Sequence[Task]) -> None:
        for name in "abcd":
            job.grow(name, 5)

    job.before = grow
    assert job.run(stopping=lambda: len(job.calls) >= 4) == {}
    assert job.calls[-3:] == [["a", "b", "c", "d"]] * 3
    assert job.looks[-2:] == [["a", "b", "c", "d"]] * 2


def test_a_backlog_is_shared_and_read_without_a_pause() -> None:
    job = MemoryJob().having(large=1000, small=20, middle=150)
    assert job.run(limit=100, once=True) == {}
    first: dict[str, int] = {}
    for name in job.streams:
        first[name] = job.read[name][0][2]
    assert first == {"large": 40, "small": 20, "middle": 40}
    assert job.lanes.clock == 0.0, "no time passed between the batches"


def test_an_idle_job_looks_once_an_interval() -> None:
    job = MemoryJob().having(a=3, b=3)
    assert job.run(interval=2.0, stopping=lambda: job.lanes.clock > 20.1) == {}
    assert len(job.looks) == 10
    assert len(job.calls) == 1


@pytest.mark.parametrize("running", [True, False])
def test_added_partitions_are_read_though_the_topic_is_quiet(running: bool) -> None:
    job = MemoryJob().having(a=10)
    if not running:
        job.run(once=True)
        job.streams["a"].topic.ends[1] = 3
    lags: list[int | None] = []

    def stopping() -> bool:
        if job.covered("a") == {0: 10}:
            job.streams["a"].topic.ends[1] = 3
        lags.extend(summary.lag for summary in job.current.summaries)
        return job.covered("a").get(1) == 3 or job.lanes.clock > 30

    assert job.run(stopping=stopping) == {}
    assert job.covered("a") == {0: 10, 1: 3}
    assert 3 in lags, "what is withheld counts"
    assert len(job.looks) < 10


def test_keys_in_another_form_are_read_though_the_topic_is_quiet() -> None:
    job = MemoryJob().having(a=(10, 10))
    job.rewritten["a"] = (0, 12)
    lags: list[int | None] = []

    def stopping() -> bool:
        if job.covered("a") == job.streams["a"].topic.ends == {0: 10, 1: 10}:
            job.grow("a", 5)
            job.grow("a", 3, partition=1)
        lags.extend(summary.lag for summary in job.current.summaries)
        return job.covered("a").get(0) == 15 or job.lanes.clock > 30

    assert job.run(stopping=stopping) == {}
    assert job.covered("a") == {0: 15, 1: 13}
    assert 3 in lags, "what waits counts"
    assert len(job.looks) < 10


@pytest.mark.parametrize(("once", "looks"), [(False, 3), (True, 1)])
def test_changes_that_wait_are_looked_at_though_the_topic_is_quiet(once: bool, looks: int) -> None:
    job = MemoryJob().having(a=10)
    job.run(once=True)
    waits = PendingRecord(3, 0, b"k", b"v", (), 0, 0)
    job.streams["a"].pending.put("id", 0, [waits], "token")
    assert job.run(stopping=lambda: job.lanes.clock > 65, once=once) == {}
    assert job.given_up == [True] * looks


def test_a_stream_that_fails_at_its_start_does_not_keep_the_others_from_theirs() -> None:
    job = MemoryJob().having(good=30, bad=30)
    job.streams["bad"].detect = _refuse  # type: ignore[method-assign]
    failed = job.run(once=True)
    assert str(failed["bad"]) == "no such table"
    assert job.covered("good") == {0: 30}


def _refuse() -> None:
    raise StreamFailed("no such table")


def test_fail_fast_ends_the_job_at_the_first_failure() -> None:
    job = MemoryJob().having(bad=30, good=1000)
    job.broken["bad"] = 5
    assert list(job.run(limit=20, fail_fast=True)) == ["bad"]
    assert job.covered("good") == {0: 10}


def test_an_executor_that_always_loses_one_stream_stops_that_stream_only() -> None:
    """Its tasks kill the worker. The others lose the first call with it, and no other."""
    job = MemoryJob().having(**dict.fromkeys("abc", 30))

    def lose(_: MemoryJob, tasks: Sequence[Task]) -> None:
        if any(task.stream == "b" for task in tasks):
            raise MemoryError("worker was killed")

    job.before = lose
    failed = job.run(once=True)
    assert list(failed) == ["b"]
    assert job.retries() == {"a": 1, "b": 2, "c": 1}, "the call that all of them lost, and one more of its own"
    assert "MemoryError: worker was killed" in str(failed["b"])
    assert job.covered("a") == job.covered("c") == {0: 30}


def test_once_reads_what_was_there_at_the_start() -> None:
    job = MemoryJob().having(a=30)
    job.before = lambda job, _: job.grow("a", 10)
    assert job.run(once=True) == {}
    assert job.covered("a") == {0: 30}


@pytest.mark.parametrize("asked_at", [1, 2])
def test_a_stop_lets_the_running_batch_end_and_begins_no_other(asked_at: int) -> None:
    job = MemoryJob().having(a=1000)
    assert job.run(limit=20, stopping=lambda: len(job.calls) >= asked_at) == {}
    assert len(job.calls) == asked_at
    assert job.covered("a") == {0: asked_at * 20}


def test_changes_that_have_waited_since_an_earlier_job_are_applied_though_nothing_new_is_there() -> None:
    from ch_sink.ports import PendingRecord

    job = MemoryJob().having(a=0)
    job.streams["a"].pending.put("id", 0, [PendingRecord(3, 0, b"k", b"{}", [], 0, 0)], "token")
    released: list[Task] = []
    job.before = lambda _, tasks: released.extend(t for t in tasks if not isinstance(t, RangeTask))
    assert job.run(once=True) == {}
    assert len(released) == 1


def test_a_job_of_which_no_stream_can_be_opened_ends() -> None:
    job = MemoryJob().having(a=30)
    whole = job.streams["a"].detect
    job.streams["a"].detect = _refuse  # type: ignore[method-assign]
    assert list(job.run()) == ["a"]
    # The next one tries again, although nobody resumed the stream.
    job.streams["a"].detect = whole  # type: ignore[method-assign]
    assert job.run(once=True) == {}
    assert job.covered("a") == {0: 30}


def test_a_failure_of_the_job_is_not_recorded_as_one_of_its_streams() -> None:
    job = MemoryJob().having(a=30)

    def no_java(_: MemoryJob, tasks: Sequence[Task]) -> None:
        raise StreamFailed("Spark needs Java")

    job.before = no_java
    with pytest.raises(StreamFailed, match="Spark needs Java"):
        job.run()
    assert job.states_of_streams.conditions == {}


def test_a_job_whose_spark_is_lost_ends_and_blames_no_stream() -> None:
    job = MemoryJob().having(**dict.fromkeys("abc", 30))
    lost = SparkLost("Spark stopped working")

    def lose(_: MemoryJob, _tasks: Sequence[Task]) -> None:
        raise lost

    job.before = lose
    with pytest.raises(SparkLost) as found:
        job.run()
    assert found.value is lost
    assert {s.state for s in job.current.roster.standings().values()} == {"running"}
    # No `resume` is needed: the next job reads everything.
    job.before = lambda _job, _tasks: None
    assert job.run(once=True) == {}
    assert [job.covered(name) for name in "abc"] == [{0: 30}] * 3


def test_a_job_whose_spark_is_lost_while_nothing_comes_ends_as_well() -> None:
    job = MemoryJob().having(a=30)
    lost = SparkLost("Spark stopped working")
    with pytest.raises(SparkLost) as found:
        job.run(lost=lambda: lost if job.lanes.clock > 20 else None)
    assert found.value is lost
    assert job.covered("a") == {0: 30}
    assert job.current.roster.standing("a").state == "running"


def test_work_that_another_execution_has_taken_over_is_planned_again() -> None:
    """However often: a cluster that copies slow tasks says nothing about the stream."""
    job = MemoryJob().having(a=30)
    calls = iter(range(10**6))
    job.before = lambda job, _: setattr(job, "failing", superseded("a", 0) if next(calls) < 5 else None)
    assert job.run(once=True) == {}
    assert job.covered("a") == {0: 30}


class HungStates(MemoryStreamStates):
    """A ledger that does not answer until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def mark(self) -> object:
        self.released.wait()
        return super().mark()


@pytest.mark.parametrize("first", ["hung", "well"])
def test_a_ledger_that_hangs_delays_no_request_for_streams_of_another(first: str) -> None:
    hung, job = HungStates(), MemoryJob(lanes=ThreadLanes())
    for name in ("hung", "well") if first == "hung" else ("well", "hung"):
        job.add(name, 10)
    job.ledgers["hung"] = hung
    began = job.lanes.now()
    seen: list[str] = []

    def stopping() -> bool:
        if not job.asked and job.covered("well"):
            job.ask("pause", "well")
        seen.append(job.current.roster.standing("well").state)
        done = seen[-1] == "paused" or job.lanes.now() - began > 20
        if done:
            hung.released.set()
        return done

    assert job.run(stopping=stopping) == {}
    assert seen[-1] == "paused"
    assert not job.covered("hung"), "a stream whose recorded state is unknown may be paused"


def test_a_stream_that_was_read_once_is_let_go_and_may_be_paused() -> None:
    """While others are still read: a command may wait for it."""
    job = MemoryJob().having(a=10, b=1_000_000)
    owners: list[Claim | None] = []

    def ask(job: MemoryJob, tasks: Sequence[Task]) -> None:
        if job.covered("a") == {0: 10}:
            owners.append(job.streams["a"].ledger.owner())
            job.ask("pause", "a")

    job.before = ask
    assert job.run(once=True, limit=100_000) == {}
    assert owners[-1] is None
    assert job.covered("b") == {0: 1_000_000}


def test_the_lag_of_a_paused_stream_grows_until_it_is_resumed() -> None:
    job = MemoryJob().having(a=(10, 5), b=10)
    seen: dict[int, tuple[int | None, int]] = {}
    """Second → the lag that is shown, and what is unread indeed."""

    def stopping() -> bool:
        moment = int(job.lanes.clock)
        if moment not in seen:
            there = sum(job.streams["a"].topic.ends.values())
            seen[moment] = job.current.streams[0].summary.lag, there - sum(job.covered("a").values())
            job.grow("a", 2, moment % 2)
            if moment in (10, 30):
                job.ask("pause" if moment == 10 else "resume", "a")
        return moment > 40

    assert job.run(stopping=stopping) == {}
    for moment in range(18, 30):
        shown, unread = seen[moment]
        assert shown is not None
        assert unread - 2 * 6 <= shown <= unread, "of five seconds ago at most"
    assert seen[29][1] > 30
    assert (seen[40][0] or 0) <= 2


def test_a_stopped_stream_counts_what_it_did_not_read_and_what_comes() -> None:
    job = MemoryJob().having(a=30, b=10)
    job.broken["a"] = 12
    seen: list[int | None] = []

    def stopping() -> bool:
        if job.current.roster.standing("a").state == "stopped":
            if not seen:
                job.grow("a", 1000)
            seen.append(job.current.streams[0].summary.lag)
        return job.lanes.clock > 20

    assert set(job.run(stopping=stopping)) == {"a"}
    assert (seen[0], seen[-1]) == (30, 1030)
