"""A stream that a command lets stand still: when it has it, and what becomes of the stream afterwards."""

import socket
from unittest import mock

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.memory import MemoryLedger
from ch_sink.ports import Request
from ch_sink.ports.ledger import Alive, Condition
from ch_sink.stream import standing
from ch_sink.stream.standing import held
from tests.support.memory_stream import MemoryStreamStates


@pytest.fixture
def states() -> MemoryStreamStates:
    return MemoryStreamStates()


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger("s")


def elsewhere(ledger: MemoryLedger, host: str, run_id: str = "run") -> MemoryLedger:
    """The ledger of a job on another host, which has the stream."""
    job = MemoryLedger("s", beside=ledger)
    with mock.patch("socket.gethostname", return_value=host):
        job.claim(run_id)
    return job


def wanted(states: MemoryStreamStates) -> str:
    request = states.read(["s"])["s"].request
    return request.wanted if request is not None else ""


def test_a_job_on_another_host_ends_its_batch_first(ledger: MemoryLedger, states: MemoryStreamStates) -> None:
    job = elsewhere(ledger, "pod-1")
    states.beat({"s": Alive("run", "pod-1", 1, "x")})
    asked: list[str] = []

    def check() -> None:
        asked.append(wanted(states))
        if len(asked) == 3:
            job.release()

    with held(ledger, states, "purge", check=check) as claim:
        assert claim.run_id.startswith("purge-")
    assert asked == ["pause"] * 3
    assert wanted(states) == "resume"


def test_a_claim_of_a_host_that_is_gone_holds_nobody_up(ledger: MemoryLedger, states: MemoryStreamStates) -> None:
    """The job that replaces it is heard of, and has not claimed the stream yet."""
    elsewhere(ledger, "pod-1")
    states.beat({"s": Alive("run 2", "pod-2", 1, "x")})
    with held(ledger, states, "purge", check=lambda: pytest.fail("it waits")):
        pass


def test_a_job_that_takes_no_requests_keeps_its_stream(
    ledger: MemoryLedger, states: MemoryStreamStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "_UNHEARD", 0.2)
    MemoryLedger("s", beside=ledger).claim("query")
    with pytest.raises(StreamFailed, match="does not pause: stream 's' is owned by process"), held(ledger, states, "x"):
        pass
    assert wanted(states) == "resume"


@pytest.mark.parametrize("before", ["pause", "stopped"])
def test_what_was_paused_or_stopped_stays_so(ledger: MemoryLedger, states: MemoryStreamStates, before: str) -> None:
    if before == "pause":
        states.ask({"s": Request("pause", "ann@here", 1.0)})
    else:
        states.note({"s": Condition("stopped", 1.0, "no such table", "", socket.gethostname())})
    with held(ledger, states, "purge"):
        pass
    assert wanted(states) == ("pause" if before == "pause" else "")


@pytest.mark.parametrize("meanwhile", ["pause", "stopped"])
def test_what_is_paused_or_stopped_meanwhile_stays_so(
    ledger: MemoryLedger, states: MemoryStreamStates, meanwhile: str
) -> None:
    with held(ledger, states, "purge"):
        if meanwhile == "pause":
            states.ask({"s": Request("pause", "ann@here", 2.0)})
        else:
            states.note({"s": Condition("stopped", 2.0, "too many dead letters", "", socket.gethostname())})
    assert wanted(states) == "pause"


def test_a_command_that_ends_by_an_error_lets_the_stream_go_on(
    ledger: MemoryLedger, states: MemoryStreamStates
) -> None:
    with pytest.raises(ZeroDivisionError), held(ledger, states, "purge"):
        raise ZeroDivisionError
    assert (wanted(states), ledger.owner()) == ("resume", None)
