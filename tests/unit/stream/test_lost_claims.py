"""A claim whose answer is lost is the job's own, whenever ClickHouse takes it."""

import socket
from collections.abc import Sequence

import pytest

from ch_sink.errors import ClickHouseUnavailable
from ch_sink.memory import MemoryLedger
from ch_sink.ports import Claim, Terms
from ch_sink.stream.claims import forget, new_claim
from ch_sink.stream.tasks import Task
from tests.support.job import MemoryJob


def losing(monkeypatch: pytest.MonkeyPatch, *, stored: bool) -> list[Claim]:
    """The first claim gets no answer; returns it once it is made. ``stored``: the ledger has taken it."""
    lost: list[Claim] = []
    inner = MemoryLedger.claim

    def claim(self: MemoryLedger, run_id: str, terms: Terms | None = None) -> Claim:
        if lost:
            return inner(self, run_id, terms)
        lost.append(inner(self, run_id, terms) if stored else new_claim(self.stream, run_id, None))
        raise ClickHouseUnavailable("no answer")

    monkeypatch.setattr(MemoryLedger, "claim", claim)
    return lost


def test_the_job_claims_the_stream_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, job = losing(monkeypatch, stored=True), MemoryJob().having(s=10)
    assert job.run(once=True) == {}
    assert lost
    assert job.covered("s") == {0: 10}


def test_the_job_goes_on_when_the_claim_displaces_its_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, job = losing(monkeypatch, stored=False), MemoryJob().having(s=10)

    def arrives(_: MemoryJob, tasks: Sequence[Task]) -> None:
        if not job.calls:
            job.streams["s"].ledger._book.claims.append(lost[0])

    job.before = arrives
    assert job.run(once=True) == {}
    assert job.streams["s"].ledger._book.newest is not lost[0]


def test_a_newer_claim_of_another_job_stops_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    job = MemoryJob().having(s=10)
    other = new_claim("s", "another run", None)
    forget("s", "another run")

    def arrives(_: MemoryJob, tasks: Sequence[Task]) -> None:
        job.streams["s"].ledger._book.claims.append(other)

    job.before = arrives
    assert "no longer owns" in str(job.run(once=True)["s"])


@pytest.mark.parametrize(
    ("run_id", "host", "stops"),
    [
        ("another job", "elsewhere", True),
        ("repair-1", "elsewhere", False),  # a command that was killed
        ("another job", socket.gethostname(), False),  # its process is gone
    ],
)
def test_a_job_that_waited_does_not_take_the_stream_back_from_the_one_that_took_it_meanwhile(
    run_id: str, host: str, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = MemoryJob().having(s=10)
    job.failing = ClickHouseUnavailable("no answer")
    release = MemoryLedger.release

    def release_and_lose(self: MemoryLedger) -> None:
        release(self)
        if job.failing is not None:
            job.failing = None
            self._book.claims.append(Claim(self._book.newest.number + 1, run_id, host, 1, "long ago"))

    monkeypatch.setattr(MemoryLedger, "release", release_and_lose)
    failed = job.run(once=True)
    assert ("no longer owns" in str(failed.get("s"))) == stops
    assert (job.covered("s") == {0: 10}) != stops
