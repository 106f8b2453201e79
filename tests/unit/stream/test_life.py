"""A stream's life in a job: outages, pauses, errors, topics that come and go; and what follows from what."""

import math
from collections.abc import Sequence
from typing import Any, cast

import pytest

from ch_sink.errors import (
    BrokerUnavailable,
    ChSinkError,
    ClickHouseUnavailable,
    LedgerConflict,
    StreamFailed,
)
from ch_sink.model.policy import policy_of
from ch_sink.model.values import TopicState
from ch_sink.observe.stream import Standing, StateName
from ch_sink.stream.job_stream import ACTIVE, HELD, JobStream, Phase
from ch_sink.stream.lanes import Changed
from ch_sink.stream.ports import StreamSettings
from ch_sink.stream.tasks import Task
from ch_sink.table.model import TargetTable
from tests.support.job import MemoryJob
from tests.support.memory_stream import MemoryStream

AWAY, BROKEN, TAKEN = ClickHouseUnavailable("no answer"), StreamFailed("no such table"), LedgerConflict("another job")


def stream(phase: Phase, *, opened: bool = True) -> JobStream:
    made = JobStream(StreamSettings("s", "t", policy_of()), cast(Any, None), cast(Any, None))
    made.phase, made.summary.opened = phase, opened
    return made


@pytest.mark.parametrize(
    ("standing", "failure", "opened", "follows"),
    [
        ("running", None, True, None),
        ("waiting", AWAY, True, Phase.WAITING),
        ("stopped", BROKEN, True, Phase.STOPPED),
        ("stopped", BROKEN, False, Phase.REFUSED),
        ("stopped", None, False, Phase.STOPPED),
        ("stopped", TAKEN, True, Phase.TAKEN),
        ("paused", None, True, Phase.PAUSED),
        ("paused", BROKEN, True, Phase.PAUSED),
    ],
)
@pytest.mark.parametrize("phase", sorted(ACTIVE, key=lambda phase: phase.value))
def test_a_stream_that_the_job_has_goes_on_or_is_held(
    phase: Phase, standing: StateName, failure: Any, opened: bool, follows: Phase | None
) -> None:
    assert stream(phase, opened=opened).next_phase(standing, failure) is (follows or phase)


@pytest.mark.parametrize("phase", sorted(HELD, key=lambda phase: phase.value))
def test_a_stream_that_is_held_goes_on_only_when_it_is_resumed(phase: Phase) -> None:
    held = stream(phase)
    assert [held.next_phase(state) for state in ("stopped", "paused")] == [phase, phase]
    assert held.next_phase("running") is Phase.OPENING
    held.become(Phase.OPENING)
    assert held.shown(Standing("running")).state == "opening"
    held.leaving = True
    assert held.next_phase("running") is Phase.LEFT


@pytest.mark.parametrize(
    ("phase", "other"),
    [(Phase.DONE, Phase.OPENING), (Phase.LEFT, Phase.OPENING), (Phase.PAUSED, Phase.LIVE), (Phase.WAITING, Phase.LIVE)],
)
def test_what_the_drawing_does_not_show_does_not_happen(phase: Phase, other: Phase) -> None:
    with pytest.raises(AssertionError, match="cannot become"):
        stream(phase).become(other)


def outage(job: MemoryJob, began: float, ended: float, error: ChSinkError) -> None:
    """Every call of the executor fails in this time."""

    def away(_: MemoryJob, tasks: Sequence[Task]) -> None:
        job.failing = error if began <= job.lanes.clock < ended else None

    job.before = away


def test_an_outage_is_waited_out_and_nothing_is_read_twice() -> None:
    job = MemoryJob().having(**dict.fromkeys("abc", 40))
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
    assert {s.state for s in job.current.roster.standings().values()} == {"running"}


def test_once_waits_too() -> None:
    job = MemoryJob().having(a=40)
    outage(job, 0.0, 100.0, BrokerUnavailable("no broker"))
    assert job.run(once=True) == {}
    assert job.covered("a") == {0: 40}
    assert job.lanes.clock >= 100
    assert 3 < job.retries()["a"] < 30


def test_a_server_that_does_not_come_back_stops_its_streams_after_retry_for() -> None:
    job = MemoryJob().having(a=40)
    outage(job, 0.0, math.inf, ClickHouseUnavailable("no answer"))
    failed = job.run(once=True, retry_for=600.0)
    assert str(failed["a"]) == "no answer"
    assert 600 <= job.lanes.clock < 640


def test_a_server_that_is_away_at_the_start_is_waited_for() -> None:
    job = MemoryJob().having(a=40)
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
    job = MemoryJob().having(a=40, b=40)
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
        seen.append(job.current.roster.standing("a").state)
        return job.lanes.clock > 120

    assert job.run(stopping=stopping) == {}
    assert set(seen) == {"running", "waiting"}
    assert seen[-1] == "running"
    assert job.covered("b")[0] > 100


def test_pause_and_resume_while_the_job_runs() -> None:
    job = MemoryJob().having(a=10, b=10)
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
    job = MemoryJob().having(a=10, b=10)
    job.ask("pause", "a")
    failed = job.run(once=True)
    assert {name: "is paused by" in str(error) for name, error in failed.items()} == {"a": True}
    assert job.read["a"] == []
    assert job.covered("b") == {0: 10}


def test_a_stream_is_mended_and_resumed_without_a_restart() -> None:
    job = MemoryJob().having(a=30)
    job.broken["a"] = 12
    states: list[str] = []

    def stopping() -> bool:
        state = job.current.roster.standing("a").state
        states.append(state)
        if state == "stopped" and job.lanes.clock > 20 and job.broken:
            job.broken.clear()
            job.ask("resume", "a")
        return job.lanes.clock > 60

    assert job.run(stopping=stopping) == {}
    assert job.covered("a") == {0: 30}
    assert states.count("stopped") > 10, "the job went on though its only stream was stopped"
    assert states[-1] == "running"


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
    assert [s.name for s in job.current.streams] == ["b"]
    assert [s.stream for s in job.current.summaries] == ["b", "a"]
    assert [s.stream for s in job.current.view().streams] == ["b"]


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
    job = MemoryJob().having(a=5, b=5)

    def stopping() -> bool:
        if job.lanes.now() > 10:
            job.streams.pop("a", None)
        return job.lanes.now() > 100

    assert set(job.run(discover=Changed, discover_every=10.0, stopping=stopping)) == {"a"}
