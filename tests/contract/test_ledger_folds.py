"""Old entries are folded into summaries, and no answer changes by it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client
from ch_sink.errors import LedgerConflict
from ch_sink.ports import (
    ChunkCut,
    Claim,
    RangeProgress,
)
from ch_sink.stream.claims import forget
from ch_sink.testing.memory_ledger import MemoryLedger
from tests.support.ledgers import Job, intent, known, plant, result, run_batches


def test_folding_changes_no_answer_but_the_length_of_history(short: Job) -> None:
    ledger = short()
    ledger.claim("r1")
    ledger.put_cut(ChunkCut("t1", 0, 15))
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
    assert [t.rows for t in later.totals()] == [0, 60 * 7, 60 * 7]


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
    assert ledger.totals()[0].rows == 39 * 7


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
    assert short().last_intents() == [intent(300, 310)]


def test_progress_of_a_folded_range_is_void(short: Job) -> None:
    ledger = short()
    ledger.claim("r1")
    ledger.intents([intent(0, 10)])
    ledger.put_progress(RangeProgress("t1", 0, 0, 8, "stored"))
    ledger.results([result(0, 10)])
    run_batches(ledger, 1, 20, 1)
    ledger.fold()
    assert short().progress_of("t1", 0, 0) is None


def test_a_job_that_lost_its_stream_folds_nothing(short: Job) -> None:
    ledger = short()
    ledger.claim("r1")
    run_batches(ledger, 0, 30)
    other = MemoryLedger(ledger.stream, beside=ledger) if isinstance(ledger, MemoryLedger) else short()
    plant(other, replace(Claim(0, "r2", "elsewhere", 1, "x"), number=2))
    with pytest.raises(LedgerConflict):
        ledger.fold()
    assert len(ledger.history(100)) == 60


def test_a_fold_while_a_stream_reads_again_what_was_folded_leaves_it_where_it_is(short: Job) -> None:
    """ClickHouse was taken back: the newest results lie within a summary."""
    ledger = short()
    ledger.claim("r1")
    run_batches(ledger, 0, 40, 1)
    ledger.fold()
    ledger.results([result(50, 50, state="led back")])
    for n in range(5, 30):
        run_batches(ledger, n, n + 1, 1, state=f"again {n}")
        ledger.fold()
        end = n * 10 + 10
        later = short()
        assert (later.progress("t1"), later.states_at("t1", {0: end}).get(0)) == ({0: end}, f"again {n}")
        assert [(i.start, i.end) for i in later.last_intents()] == [(end - 10, end)]
        assert later.open_intents("t1") == []
        assert len(later.history(2)) == 2
    assert ledger.totals()[0].rows == 40 * 7


class Died(Exception):
    """A process ended here."""


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
    assert left_over == {"claim": 2, "intent": 2 * 2 + 2, "result": 2 * 2, "summary": 2}


EARLIER = {
    "progress": """\
SELECT partition, argMin(reached, start_offset) AS next_offset
FROM
(
    SELECT
        partition,
        start_offset,
        max(end_offset) OVER (PARTITION BY partition ORDER BY start_offset, end_offset
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS reached,
        leadInFrame(start_offset, 1, toInt64(9223372036854775807)) OVER (PARTITION BY partition
            ORDER BY start_offset, end_offset ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS following
    FROM $table
    WHERE stream = {stream:String} AND entry = 'result' AND topic_id = {topic_id:String}
)
WHERE following > reached
GROUP BY partition""",
    "state": """\
SELECT state FROM $table
WHERE stream = {stream:String} AND entry = 'result' AND topic_id = {topic_id:String} AND partition = 1
    AND end_offset = 300 AND end_offset > start_offset""",
    "attempts": """\
SELECT uniqExact(batch) AS n FROM $table
WHERE stream = {stream:String} AND entry = 'intent' AND topic_id = {topic_id:String} AND partition = 1
    AND start_offset < 310 AND end_offset > 290""",
}
"""What the version before summaries asks when it continues a stream."""


def test_a_version_that_knows_no_summaries_continues_where_the_stream_is(
    client: Client, own_tables: str, stream: str
) -> None:
    ledger = ClickHouseLedger(client, own_tables, "ledger", stream, keep=2)
    ledger.claim("r1")
    run_batches(ledger, 0, 30)

    def asked() -> dict[str, Any]:
        table = f"{own_tables}.ledger"
        where = {"stream": stream, "topic_id": "t1"}
        answers = {
            name: client.rows(sql.replace("$table", table), {k: v for k, v in where.items() if f"{{{k}:" in sql})
            for name, sql in EARLIER.items()
        }
        return {name: sorted(tuple(r.values()) for r in rows) for name, rows in answers.items()}

    before = asked()
    assert before == {"progress": [(0, 300), (1, 300)], "state": [('{"end":300}',)], "attempts": [(1,)]}
    assert ledger.fold() == 2 * 28
    assert asked() == before
