"""The streams of a job and their states, with states in memory and clocks as data."""

import logging
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from ch_sink.errors import AccessRefused, ClickHouseUnavailable, LedgerConflict, RegistryRefused, StreamFailed
from ch_sink.ports import Condition, RecordedState, Request
from ch_sink.stream.claims import born, new_claim, retired
from ch_sink.stream.pace import Patience, Pauses
from ch_sink.stream.roster import BEAT, Roster
from ch_sink.stream.standing import Member, seen_from_outside, standing
from tests.support.memory_stream import MemoryStreamStates

PAUSE, RESUME = Request("pause", "ann@ops", 5.0), Request("resume", "ann@ops", 6.0)
AWAY = ClickHouseUnavailable("no answer", hint="Is it up?")


@dataclass
class World:
    """A ledger and the time."""

    now: float = 1000.0
    states: MemoryStreamStates = field(init=False)

    def __post_init__(self) -> None:
        self.states = MemoryStreamStates(lambda: self.now)

    def job(self, *names: str, config: str = "c1", retry_for: float = 60.0) -> Roster:
        members = [
            Member(name, self.states, config, Patience(retry_for, Pauses(1.0, 8.0, lambda _, high: high)))
            for name in names
        ]
        made = Roster(members, f"run-{self.now}", clock=lambda: self.now, steady=lambda: self.now)
        made.look(self.states)
        return made

    def seen(self, name: str) -> str:
        return seen_from_outside(self.states.read([name])[name]).state


@pytest.fixture
def world() -> World:
    return World()


def test_a_new_stream_runs(world):
    job = world.job("a", "b")
    assert job.ready() == ["a", "b"]
    assert world.seen("a") == "running"
    job.close()
    assert world.seen("a") == "idle"


def test_nothing_is_written_for_streams_that_are_well(world):
    job = world.job("a")
    for _ in range(5):
        job.worked("a")
        job.look(world.states)
    assert world.states.conditions == {}


def test_one_query_reads_the_states_of_all_streams(world):
    job = world.job(*(f"s{n}" for n in range(200)))
    before = world.states.reads
    world.states.ask({"s7": PAUSE})
    job.look(world.states)
    assert world.states.reads == before + 1
    assert [n for n in range(200) if job.standing(f"s{n}").state == "paused"] == [7]
    for _ in range(5):
        job.look(world.states)
    assert world.states.reads == before + 1, "nobody has asked for anything since"


def test_a_stream_that_cannot_be_mended_by_waiting_stops_and_the_others_go_on(world, caplog):
    job = world.job("a", "b")
    job.failed("a", StreamFailed("column x is unknown", hint="add it"))
    assert job.ready() == ["b"]
    assert job.standing("a").state not in ("running", "waiting")
    assert list(job.failures()) == ["a"]
    job.look(world.states)
    found = standing(world.states.read(["a"])["a"])
    assert (found.state, found.error, found.next) == ("stopped", "column x is unknown", "add it")
    assert [r.levelno for r in caplog.records] == [logging.ERROR]


def test_a_restart_keeps_stopped_and_paused(world):
    first = world.job("a", "b", "c")
    first.failed("a", StreamFailed("column x is unknown", hint="add it"))
    world.states.ask({"b": PAUSE})
    first.look(world.states)
    first.close()
    second = world.job("a", "b", "c")
    assert second.ready() == ["c"]
    [error] = second.failures().values()
    assert (str(error), error.hint) == ("column x is unknown", "add it")
    assert (world.seen("a"), world.seen("b"), world.seen("c")) == ("stopped", "paused", "running")


@pytest.mark.parametrize("error", [AccessRefused("wrong password"), RegistryRefused("status 401")])
def test_a_stream_whose_user_was_refused_is_tried_again_by_the_next_job(world, error):
    """The password may be another one by then, which no fingerprint shows."""
    first = world.job("a", "b")
    first.failed("a", error)
    first.failed("b", StreamFailed("no such column"))
    first.look(world.states)
    first.close()
    assert (world.seen("a"), world.seen("b")) == ("stopped", "stopped")
    assert world.job("a", "b").ready() == ["a"]


def test_another_configuration_starts_a_stopped_stream_but_no_paused_one(world):
    first = world.job("a", "b")
    first.failed("a", StreamFailed("column x is unknown"))
    world.states.ask({"b": PAUSE})
    first.close()
    second = world.job("a", "b", config="c2")
    assert second.ready() == ["a"]
    second.look(world.states)
    assert world.seen("a") == "running"
    second.close()
    assert world.job("a", config="c1").ready() == ["a"]


def test_pause_and_resume_while_the_job_runs(world):
    job = world.job("a", "b")
    world.states.ask({"a": PAUSE})
    assert job.ready() == ["a", "b"]
    job.look(world.states)
    assert job.ready() == ["b"]
    assert job.standing("a").state not in ("running", "waiting")
    world.states.ask({"a": RESUME})
    job.look(world.states)
    assert job.ready() == ["a", "b"]


def test_resume_mends_a_stopped_stream_once(world):
    job = world.job("a")
    for moment in (1.0, 2.0):
        job.failed("a", StreamFailed("column x is unknown"))
        job.look(world.states)
        job.look(world.states)
        assert job.ready() == []
        world.states.ask({"a": Request("resume", "ann@ops", moment)})
        job.look(world.states)
        assert job.ready() == ["a"]
        assert job.failures() == {}
    job.worked("a")
    job.look(world.states)
    assert world.seen("a") == "running"


def test_a_request_from_before_the_stop_does_not_resume_it(world):
    world.states.ask({"a": RESUME})
    job = world.job("a")
    job.failed("a", StreamFailed("column x is unknown"))
    job.look(world.states)
    job.look(world.states)
    assert job.ready() == []
    job.close()
    assert world.job("a").ready() == []


def test_a_temporary_error_is_waited_out(world):
    job = world.job("a", "b")
    pauses = []
    for _ in range(5):
        job.failed("a", AWAY)
        assert job.ready() == ["b"]
        assert job.standing("a").state in ("running", "waiting")
        pauses.append(job.next_due())
        world.now += job.next_due()
        assert job.ready() == ["a", "b"]
    assert pauses == [1, 2, 4, 8, 8]
    job.look(world.states)
    assert world.seen("a") == "waiting"
    job.worked("a")
    job.look(world.states)
    assert world.seen("a") == "running"
    assert job.failures() == {}


def test_a_command_that_has_the_stream_is_waited_out(world):
    """It was resumed by a person while the command worked: nobody else would resume it."""
    retired("a", new_claim("a", "repair-1", None))
    job = world.job("a")
    job.failed("a", claimed_by("repair-1"))
    job.look(world.states)
    assert world.seen("a") == "waiting"
    world.now += job.next_due()
    assert job.ready() == ["a"]
    job.failed("a", claimed_by("another job"))
    assert job.standing("a").state == "stopped"


def claimed_by(run_id: str) -> LedgerConflict:
    """The error of a claim while a living run of this host has the stream."""
    other = new_claim("a", run_id, None)
    try:
        with pytest.raises(LedgerConflict) as stopped:
            new_claim("a", "mine", other)
        return stopped.value
    finally:
        retired("a", other)


def test_a_job_beats_for_a_paused_stream_until_its_batch_has_ended(world):
    """A command elsewhere waits for that, and takes a stream that is silent."""
    job = world.job("a")
    job.holds("a", claim=True)
    world.states.ask({"a": Request("pause", "me", 1.0)})
    for claim in (True, False):
        job.holds("a", claim=claim)
        world.now += 100.0
        job.look(world.states)
        assert (world.states.read(["a"])["a"].quiet < 60.0) is claim


@pytest.mark.parametrize(("host", "process", "goes_on"), [("here", 0, True), ("here", 1, False), ("there", 0, False)])
def test_a_pause_of_a_command_that_was_killed_on_this_host_is_over(world, host, process, goes_on):
    ended = subprocess.Popen(["true"])
    ended.wait()
    place = socket.gethostname() if host == "here" else "elsewhere"
    by = f"ch_sink purge by me@{place}, process {(ended.pid, os.getpid())[process]}:{born(os.getpid())}"
    world.states.ask({"a": Request("pause", by, 1.0)})
    assert (world.job("a").ready() == ["a"]) is goes_on
    assert (world.seen("a") != "paused") is goes_on


def test_a_stream_waits_no_longer_than_it_is_told(world):
    job, began = world.job("a", retry_for=60.0), world.now
    while job.standings()["a"].state != "stopped":
        job.failed("a", AWAY)
        world.now += min(job.next_due(), 60.0)
        assert world.now < began + 130
    assert list(job.failures().values()) == [AWAY]
    assert job.standings()["a"].since == began + 60
    job.look(world.states)
    assert world.seen("a") == "stopped"


def test_resume_lets_a_waiting_stream_try_at_once(world):
    job = world.job("a")
    for _ in range(6):
        job.failed("a", AWAY)
    assert job.ready() == []
    world.states.ask({"a": RESUME})
    job.look(world.states)
    assert job.ready() == ["a"]


def test_a_stream_that_was_waiting_when_its_job_died_is_idle(world):
    job = world.job("a")
    job.failed("a", AWAY)
    job.look(world.states)
    assert world.seen("a") == "waiting"
    job.close()
    assert world.seen("a") == "idle"


def test_a_job_elsewhere_is_heard_of_by_its_beats(world):
    world.job("a")
    [beat] = [alive for _, alive in world.states.beats.values()]
    world.states.beats["a"] = (world.now, type(beat)(beat.run_id, "elsewhere", beat.pid, beat.born))
    assert world.seen("a") == "running"
    world.now += 4 * BEAT - 1
    assert world.seen("a") == "running"
    world.now += 2
    assert world.seen("a") == "idle"


def test_a_job_beats_for_what_it_has_and_again_in_time(world):
    job = world.job("a", "b")
    world.states.ask({"b": PAUSE})
    job.look(world.states)
    world.now += BEAT
    job.look(world.states)
    assert [round(world.now - at) for at, _ in world.states.beats.values()] == [0, BEAT]


def test_a_job_that_ends_leaves_the_beats_of_the_one_that_took_over(world):
    first = world.job("a")
    world.now += 1
    second = world.job("a")
    first.failed("a", LedgerConflict("the owner is another"))
    first.look(world.states)
    first.close()
    assert world.seen("a") == "running"
    assert list(first.failures()) == ["a"]
    second.close()
    assert world.seen("a") == "idle"


class Away(MemoryStreamStates):
    """A ledger that does not answer for a while."""

    away = True

    def read(self, streams: Sequence[str]) -> dict[str, RecordedState]:
        if self.away:
            raise AWAY
        return super().read(streams)

    def note(self, conditions: Mapping[str, Condition]) -> None:
        if self.away:
            raise AWAY
        super().note(conditions)


def test_a_stream_does_not_begin_before_its_state_is_known(world):
    states = Away(lambda: world.now)
    states.ask({"a": PAUSE})
    other = MemoryStreamStates(lambda: world.now)
    job = Roster(
        [Member("a", states), Member("b", states), Member("c", other)],
        "r",
        clock=lambda: world.now,
        steady=lambda: world.now,
    )
    for ledger in job.ledgers():
        job.look(ledger)
    assert job.ready() == ["c"]
    assert job.standings()["b"].state == "waiting"
    states.away = False
    for ledger in job.ledgers():
        job.look(ledger)
    assert job.ready() == ["b", "c"]
    assert job.standings()["a"].state == "paused"


def test_a_stop_is_recorded_once_the_ledger_is_back(world):
    states = Away(lambda: world.now)
    states.away = False
    job = Roster([Member("a", states)], "r", clock=lambda: world.now, steady=lambda: world.now)
    job.look(states)
    states.away = True
    job.failed("a", StreamFailed("column x is unknown"))
    job.look(states)
    assert states.conditions == {}
    states.away = False
    job.look(states)
    assert [c.state for _, c in states.conditions.values()] == ["stopped"]
