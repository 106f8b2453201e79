"""One job at a time has a stream, and one execution a partition, in every Ledger."""

import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from ch_sink.errors import LedgerConflict
from ch_sink.ports import (
    Claim,
    RangeProgress,
    Terms,
    TruncateFloor,
)
from ch_sink.stream.claims import born, forget
from tests.support.ledgers import Job, intent, plant, result


def test_nothing_is_written_without_a_claim(job: Job) -> None:
    ledger = job()
    for write in (
        lambda: ledger.intents([intent(0, 1)]),
        lambda: ledger.results([result(0, 1)]),
        lambda: ledger.record(TruncateFloor(0, 1, 2)),
    ):
        with pytest.raises(LedgerConflict):
            write()
    assert ledger.topic_ids() == []
    assert ledger.history(1) == []


def test_a_second_job_beside_a_living_one_is_refused(job: Job) -> None:
    first, second = job(), job()
    first.claim("r1")
    with pytest.raises(LedgerConflict, match="is owned by process"):
        second.claim("r2")
    first.intents([intent(0, 1)])
    first.release()
    second.claim("r2")
    second.intents([intent(0, 1)])
    second.release()


def test_terms_hold_until_a_claim_states_others(job: Job) -> None:
    terms = Terms((("v", "sha256 of v"),), "public.orders", "6b1f0a36-0000-4000-8000-000000000001")
    for run, stated, held in (("a", None, None), ("b", terms, terms), ("c", None, terms), ("d", Terms(), Terms())):
        ledger = job()
        assert ledger.claim(run, stated).terms == held
        ledger.release()
        last = job().last_claim()
        assert last is not None
        assert (last.run_id, last.terms, last.released) == (run, held, True)


def test_the_owner_states_other_terms(job: Job) -> None:
    ledger, terms = job(), Terms(types=(("v", "Nullable(String)"),))
    with pytest.raises(LedgerConflict):
        ledger.restate(terms)
    claim = ledger.claim("a", Terms(types=(("v", "String"),)))
    ledger.restate(terms)
    last = job().last_claim()
    assert last is not None
    assert (last.number, last.run_id, last.terms, last.released) == (claim.number, "a", terms, False)
    ledger.intents([intent(0, 1)])
    ledger.release()
    last = job().last_claim()
    assert last is not None
    assert (last.terms, last.released) == (terms, True)


def test_a_job_that_lost_its_stream_stops_and_writes_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = job(), job()
    first.claim("r1")
    first.intents([intent(0, 10)])
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "another-host")
        second.claim("r2")
    with pytest.raises(LedgerConflict, match="r2"):
        first.results([result(0, 10)])
    with pytest.raises(LedgerConflict):
        first.intents([intent(0, 10)])
    assert second.history(10) == []
    first.release()
    second.check_claim()
    second.intents([intent(0, 10)])


def test_of_two_claims_with_one_number_the_later_has_the_stream(job: Job) -> None:
    """Two jobs on two hosts looked at the newest claim at the same moment."""
    first, second = job(), job()
    first.claim("r1")
    plant(second, Claim(1, "r2", "another-host", 7, ""))
    with pytest.raises(LedgerConflict, match="r2"):
        first.intents([intent(0, 1)])
    first.release()
    third = job()
    third.claim("r3")
    third.intents([intent(0, 1)])


def test_a_killed_job_can_be_followed_at_once(job: Job) -> None:
    """The claim names a process of this host; while that lives it holds, after SIGKILL it does not."""
    sleeper = "import time; print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", sleeper], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            plant(job(), Claim(1, "killed", socket.gethostname(), child.pid, born(child.pid)))
            with pytest.raises(LedgerConflict, match="killed"):
                job().claim("next")
            os.kill(child.pid, signal.SIGKILL)
            child.stdout.read()  # until it is dead; not collected, it stays a zombie, and that holds nothing
            follower = job()
            _claim_soon(follower, "next")
            follower.intents([intent(0, 1)])
            follower.release()
        finally:
            child.kill()


def _claim_soon(ledger: Any, run_id: str) -> None:
    for _ in range(200):
        try:
            return ledger.claim(run_id)
        except LedgerConflict:
            time.sleep(0.01)
    return ledger.claim(run_id)


def test_many_claims_in_a_row_keep_their_order(job: Job) -> None:
    for n in range(5):
        ledger = job()
        ledger.claim(f"r{n}")
        ledger.intents([intent(n, n + 1)])
        ledger.release()
        ledger.release()
    with pytest.raises(LedgerConflict):
        ledger.check_claim()


def test_a_new_execution_supersedes_the_earlier_ones_of_its_partition(job: Job) -> None:
    owner = job()
    claim = owner.claim("a")
    first, other = owner.begin("t1", 0, claim, "1/0"), owner.begin("t1", 1, claim, "1/0")
    assert (first.repeats, other.repeats) == (False, False)
    again = job().begin("t1", 0, claim, "1/0")
    assert again.repeats
    assert again.execution != first.execution
    with pytest.raises(LedgerConflict, match="partition 0"):
        first.check()
    again.check()
    other.check()
    assert not job().begin("t1", 0, claim, "2/5").repeats


def test_no_execution_begins_or_goes_on_under_an_older_claim(job: Job) -> None:
    owner, successor = job(), job()
    old = owner.claim("a")
    running = owner.begin("t1", 0, old, "1/0")
    forget(owner.stream, "a")
    new = successor.claim("b")
    with pytest.raises(LedgerConflict, match="run b"):
        running.check()
    with pytest.raises(LedgerConflict, match="run b"):
        job().begin("t1", 0, old, "1/0")
    begun = job().begin("t1", 0, new, "2/0")
    with pytest.raises(LedgerConflict, match="run b"):
        job().begin("t1", 0, old, "1/0")
    begun.check()


def test_first_executions_hold_together_until_one_of_them_is_repeated(job: Job) -> None:
    owner = job()
    claim = owner.claim("a")
    before = owner.intents([intent(0, 10, 1)])[0].batch
    owner.begin("t1", 1, claim, f"{before}/0")
    batch = owner.intents([intent(0, 10, p) for p in range(4)])[0].batch
    owner.begin("t1", 2, claim, "release")
    owner.begin("t1", 3, claim, f"{batch}/0")
    first = owner.together("t1", [0, 1, 2], claim, batch)
    first.check()
    with pytest.raises(LedgerConflict, match="partition 3"):
        owner.together("t1", [3], claim, batch).check()
    owner.together("t2", [3], claim, batch).check()
    job().begin("t1", 1, claim, f"{batch}/0")
    for _ in range(2):
        with pytest.raises(LedgerConflict, match="newer execution"):
            first.check()
        job().begin("t1", 1, claim, "release")  # of no batch, and the newest
    other = owner.together("t1", [0, 2], claim, batch)
    other.check()
    job().begin("t1", 2, claim, f"{batch + 1}/0")
    with pytest.raises(LedgerConflict, match="newer execution"):
        other.check()


def test_no_execution_begins_after_one_of_a_later_batch(job: Job) -> None:
    """Its process was frozen, Spark ran its task again, and the partition has gone on."""
    owner = job()
    claim = owner.claim("a")
    owner.begin("t1", 0, claim, "7/20")
    owner.begin("t1", 0, claim, "release")
    with pytest.raises(LedgerConflict, match="newer execution"):
        job().begin("t1", 0, claim, "6/10")
    assert not job().begin("t1", 0, claim, "7/20").repeats
    forget(owner.stream, "a")
    job().begin("t1", 0, job().claim("b"), "3/30")


def test_an_execution_neither_begins_nor_goes_on_once_a_later_batch_is_intended(job: Job) -> None:
    """The first executions of that batch need not be registered."""
    owner = job()
    claim = owner.claim("a")
    batch = owner.intents([intent(0, 10)])[0].batch
    running = job().begin("t1", 0, claim, f"{batch}/0")
    release = job().begin("t1", 1, claim, "release")
    running.check()
    owner.intents([intent(0, 10, 1), intent(0, 10, 0, "t2")])
    running.check()
    owner.intents([intent(10, 20)])
    release.check()
    with pytest.raises(LedgerConflict, match="newer execution"):
        running.check()
    for partition, work in ((0, f"{batch}/0"), (1, f"{batch}/0")):
        with pytest.raises(LedgerConflict, match="newer execution"):
            job().begin("t1", partition, claim, work)
    job().begin("t1", 0, claim, f"{time.time_ns() + 10**12}/10").check()


def test_first_executions_hold_under_the_newest_claim_only(job: Job) -> None:
    """Numbers of batches are times of their owner's clock: those of another claim say nothing."""
    owner, successor = job(), job()
    old = owner.claim("a")
    owner.begin("t1", 0, old, f"{2**62}/0")
    fence = owner.together("t1", [1], old, 1)
    fence.check()
    forget(owner.stream, "a")
    new = successor.claim("b")
    with pytest.raises(LedgerConflict, match="run b"):
        fence.check()
    successor.together("t1", [0, 1], new, 1).check()


def test_progress_is_that_of_the_batch_whatever_the_clocks_of_task_and_driver_say(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = job()
    claim = owner.claim("a")
    now = time.time_ns()
    (first,) = owner.intents([intent(0, 10)])
    job().put_progress(RangeProgress("t1", 0, 0, 5, "x", claim.number, first.batch))
    assert job().progress_of("t1", 0, 0) is not None
    owner.results([result(0, 10)])
    assert job().progress_of("t1", 0, 0) is None
    (again,) = owner.intents([intent(0, 10)])
    # The task's host is an hour behind the driver's.
    monkeypatch.setattr(time, "time_ns", lambda: now - 3_600_000_000_000)
    job().put_progress(RangeProgress("t1", 0, 0, 7, "y", claim.number, again.batch))
    found = job().progress_of("t1", 0, 0)
    assert found is not None
    assert (found.end, found.state) == (7, "y")
