"""A claim whose answer is lost is the job's own, whenever ClickHouse takes it."""

from collections.abc import Sequence

import pytest

from ch_sink.errors import ClickHouseUnavailable
from ch_sink.ports import Claim
from ch_sink.stream.claims import forget, new_claim
from ch_sink.stream.tasks import Task
from ch_sink.testing.memory_ledger import MemoryLedger
from tests.support.job import MemoryJob


def losing(monkeypatch: pytest.MonkeyPatch, *, stored: bool) -> list[Claim]:
    """The first claim gets no answer; returns it once it is made. ``stored``: the ledger has taken it."""
    lost: list[Claim] = []
    inner = MemoryLedger.claim

    def claim(self: MemoryLedger, run_id: str) -> Claim:
        if lost:
            return inner(self, run_id)
        lost.append(inner(self, run_id) if stored else new_claim(self.stream, run_id, None))
        raise ClickHouseUnavailable("no answer")

    monkeypatch.setattr(MemoryLedger, "claim", claim)
    return lost


def test_the_job_claims_the_stream_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, job = losing(monkeypatch, stored=True), MemoryJob()
    job.add("s", 10)
    assert job.run(once=True) == {}
    assert lost
    assert job.covered("s") == {0: 10}


def test_the_job_goes_on_when_the_claim_displaces_its_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, job = losing(monkeypatch, stored=False), MemoryJob()
    job.add("s", 10)

    def arrives(_: MemoryJob, tasks: Sequence[Task]) -> None:
        if not job.calls:
            job.streams["s"].ledger._book.claims.append(lost[0])

    job.before = arrives
    assert job.run(once=True) == {}
    assert job.streams["s"].ledger._book.newest is not lost[0]


def test_a_newer_claim_of_another_job_stops_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    job = MemoryJob()
    job.add("s", 10)
    other = new_claim("s", "another run", None)
    forget("s", "another run")

    def arrives(_: MemoryJob, tasks: Sequence[Task]) -> None:
        job.streams["s"].ledger._book.claims.append(other)

    job.before = arrives
    assert "no longer owns" in str(job.run(once=True)["s"])
