"""Old entries are folded into summaries, and no answer changes by it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client
from ch_sink.errors import LedgerConflict
from ch_sink.memory import MemoryLedger
from ch_sink.ports import (
    Claim,
    RangeProgress,
)
from ch_sink.stream.claims import forget
from tests.support.ledgers import Job, intent, known, plant, result, run_batches


@pytest.mark.sampled(1)
def test_folding_changes_no_answer_but_the_length_of_history(short: Job) -> None:
    ledger = short()
    ledger.claim("r1")
    run_batches(ledger, 0, 30)
    ledger.results([result(0, 5, 0, "t0", state="earlier topic")])
    before = known(ledger)
    assert ledger.fold() == 2 * 28
    assert known(ledger) == before
    assert known(short()) == before
    assert len(ledger.history(100)) == 5
    assert ledger.fold() == 0
    assert ledger.states_at("t1", {1: 280}).get(1) == '{"end":280}'  # a summary ends there
    ledger.release()
    later = short()
    later.claim("r2")
    run_batches(later, 30, 60)
    before = known(later)
    assert later.fold() == 2 * 30
    assert known(short()) == before
    assert [t.counts.rows for t in later.totals()] == [0, 60 * 7, 60 * 7]


def test_nothing_is_folded_before_it_pays(short: Job) -> None:
    ledger = short()
    ledger.claim("r1")
    run_batches(ledger, 0, 3)
    assert ledger.fold() == 0
    assert len(ledger.history(100)) == 6


@pytest.mark.long
def test_a_folded_range_that_is_read_again_gets_an_attempt_that_none_had(short: Job) -> None:
    ledger = short()
    ledger.claim("r1")
    attempts = [ledger.intents([intent(0, 10)])[0].attempt for _ in range(4)]  # three of them failed
    ledger.results([result(0, 10)])
    for _ in range(2):
        run_batches(ledger, 1, 20, 1)
        ledger.fold()
    for _ in range(3):
        attempts.append(ledger.intents([intent(0, 10)])[0].attempt)
        ledger.results([result(0, 10, state="again")])
        assert ledger.states_at("t1", {0: 10}).get(0) == "again"
        run_batches(ledger, 20, 40, 1)
        ledger.fold()
    assert len(set(attempts)) == len(attempts), attempts
    assert ledger.totals()[0].counts.rows == 39 * 7


@pytest.mark.sampled(1)
def test_folding_leaves_a_gap_and_what_a_range_has_stored_so_far(short: Job) -> None:
    ledger = short()
    ledger.claim("r1")
    run_batches(ledger, 0, 10, 1)
    run_batches(ledger, 20, 30, 1)
    ledger.intents([intent(300, 310)])
    ledger.put_progress(RangeProgress("t1", 0, 300, 305, "so far"))
    before = short().progress("t1")
    ledger.fold()
    assert short().progress("t1") == before
    assert short().progress_of("t1", 0, 300) == RangeProgress("t1", 0, 300, 305, "so far")
    assert short().open_intents("t1") == [intent(300, 310)]


@pytest.mark.sampled(1)
def test_progress_of_a_folded_range_is_void(short: Job) -> None:
    ledger = short()
    ledger.claim("r1")
    ledger.intents([intent(0, 10)])
    ledger.put_progress(RangeProgress("t1", 0, 0, 8, "stored"))
    ledger.results([result(0, 10)])
    run_batches(ledger, 1, 20, 1)
    ledger.fold()
    assert short().progress_of("t1", 0, 0) is None


@pytest.mark.sampled(1)
def test_a_job_that_lost_its_stream_folds_nothing(short: Job) -> None:
    ledger = short()
    ledger.claim("r1")
    run_batches(ledger, 0, 30)
    other = MemoryLedger(ledger.stream, beside=ledger) if isinstance(ledger, MemoryLedger) else short()
    plant(other, replace(Claim(0, "r2", "elsewhere", 1, "x"), number=2))
    with pytest.raises(LedgerConflict):
        ledger.fold()
    assert len(ledger.history(100)) == 60


@pytest.mark.sampled(1)
def test_a_fold_while_a_stream_reads_again_what_was_folded_leaves_it_where_it_is(short: Job) -> None:
    """ClickHouse was taken back: the newest results lie within a summary."""
    ledger = short()
    ledger.claim("r1")
    run_batches(ledger, 0, 12, 1)
    ledger.fold()
    ledger.results([result(50, 50, state="led back")])
    for n in range(5, 9):
        run_batches(ledger, n, n + 1, 1, state=f"again {n}")
        ledger.fold()
        end = n * 10 + 10
        later = short()
        assert (later.progress("t1"), later.states_at("t1", {0: end}).get(0)) == ({0: end}, f"again {n}")
        assert later.open_intents("t1") == []
        assert len(later.history(2)) == 2
    assert ledger.totals()[0].counts.rows == 12 * 7


@pytest.mark.sampled(1)
@pytest.mark.parametrize("partitions", [2, 12])
def test_folding_costs_the_same_requests_however_many_partitions_are_due(
    client: Client, own_tables: str, stream: str, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ClickHouseLedger(client, own_tables, "ledger", stream, keep=2)
    ledger.claim("r1")
    run_batches(ledger, 0, 8, partitions)
    before, asked = known(ledger), []
    for name in ("rows", "insert", "command"):
        act = getattr(client, name)
        monkeypatch.setattr(client, name, lambda *a, _name=name, _act=act, **k: (asked.append(_name), _act(*a, **k))[1])
    assert ledger.fold() == 6 * partitions
    # The claim, results and intents; the new summaries, and the newest results.
    assert Counter(asked) == {"rows": 5, "insert": 1, "command": 2}
    assert known(ledger) == before


@pytest.mark.long
def test_a_fold_takes_a_page_of_results_and_the_next_ones_take_the_rest(
    client: Client, own_tables: str, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages end within a partition; nothing is deleted before all is folded."""
    monkeypatch.setattr("ch_sink.clickhouse.ledger_folds._PAGE", 10)
    ledger = ClickHouseLedger(client, own_tables, "ledger", stream, keep=2)
    ledger.claim("r1")
    run_batches(ledger, 0, 10, 3)
    before, taken = known(ledger), []
    while n := ledger.fold():
        taken.append(n)
        assert known(short := ClickHouseLedger(client, own_tables, "ledger", stream, keep=2)) == before, taken
        assert len(short.history(100)) == (30 if sum(taken) < 24 else 6)
    assert taken == [10, 10, 4]


class Died(Exception):
    """A process ended here."""


@pytest.mark.long
@pytest.mark.parametrize("survives", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (0, 2, 3))])
def test_a_fold_that_was_killed_changes_nothing_and_is_finished_later(
    client: Client, own_tables: str, stream: str, survives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies before the insert of the summaries, or before one of the deletions that follow."""
    ledger = ClickHouseLedger(client, own_tables, "ledger", stream, keep=2)
    ledger.claim("r1")
    run_batches(ledger, 0, 30)
    ledger.fold()
    ledger.intents([intent(300, 310)])
    run_batches(ledger, 30, 60)
    before = known(ledger)
    left = [survives]

    def dies_at(act: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **more: Any) -> Any:
            if not left[0]:
                raise Died
            left[0] -= 1
            return act(*arguments, **more)

        return guarded

    with monkeypatch.context() as patched:
        patched.setattr(client, "insert", dies_at(client.insert))
        patched.setattr(client, "command", dies_at(client.command))
        with pytest.raises(Died):
            ledger.fold()
    forget(stream, "r1")
    assert known(ledger) == before
    later = ClickHouseLedger(client, own_tables, "ledger", stream, keep=2)
    later.claim("r2")
    assert known(later) == before
    later.fold()
    assert known(later) == before
    attempts = [i.attempt for i in later.intents([intent(0, 10), intent(300, 310)])]
    assert all(a > b for a, b in zip(attempts, (0, 1), strict=True))
    rows = client.rows(f"SELECT entry FROM {own_tables}.ledger WHERE stream = {{s:String}}", {"s": stream})
    left_over = Counter(r["entry"] for r in rows)
    # The last step is repeated by the next fold that is due.
    assert left_over == {"claim": 2, "intent": 2 * 2 + 2, "result": 2 * 2, "summary": 4 if survives == 3 else 2}
