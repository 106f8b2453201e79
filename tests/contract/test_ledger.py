"""What every Ledger implementation keeps."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client
from ch_sink.errors import LedgerConflict
from ch_sink.ports import (
    BackwardStepSeen,
    ChangedColumn,
    ChunkCut,
    Claim,
    FinishedRange,
    RangeIntent,
    RangeProgress,
    ReleaseGroup,
    SchemaChangeBegun,
    SchemaChangeFinished,
    TableRefilled,
    TableTakenBack,
    TopicFacts,
    TruncateFloor,
)
from ch_sink.stream.claims import born, forget
from ch_sink.testing.memory_ledger import MemoryLedger

Job = Callable[[], Any]


@pytest.fixture(params=["memory", "clickhouse"])
def job(request: pytest.FixtureRequest) -> Job:
    """Makes the ledger of one more job on the same stream."""
    name = request.getfixturevalue("stream")
    if request.param == "memory":
        first = MemoryLedger(name)
        return lambda: MemoryLedger(name, beside=first)
    client: Client = request.getfixturevalue("client")
    database = request.getfixturevalue("own_tables")
    return lambda: ClickHouseLedger(client, database, "ledger", name)


def intent(start: int, end: int, partition: int = 0, topic_id: str = "t1") -> RangeIntent:
    return RangeIntent("shop.orders", topic_id, partition, start, end, 50_000, 1 << 26)


def result(start: int, end: int, partition: int = 0, topic_id: str = "t1", **changes: Any) -> FinishedRange:
    base: dict[str, Any] = {
        "state": f'{{"end":{end}}}',
        "started": 1.5,
        "finished": 2.25,
        "source_time": 1_700_000_000_123,
    }
    return FinishedRange("shop.orders", topic_id, partition, start, end, **{**base, **changes})


def test_an_empty_ledger_knows_nothing(job: Job) -> None:
    ledger = job()
    assert ledger.state_at("t1", 0, 10) is None
    assert ledger.progress("t1") == {}
    assert ledger.last_intents() == []
    assert ledger.history(10) == []
    assert ledger.totals() == []
    assert ledger.topic_ids() == []
    assert ledger.facts(TruncateFloor) == []
    assert ledger.cuts("t1") == {}
    assert ledger.open_schema_change() is None
    assert ledger.progress_of("t1", 0, 0) is None


def test_the_state_is_that_of_the_range_that_ends_exactly_there(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    ledger.intents([intent(0, 10), intent(0, 7, 1)])
    ledger.results([result(0, 10), result(0, 7, 1, state='{"it\'s":"\\\\é"}')])
    assert ledger.state_at("t1", 0, 10) == '{"end":10}'
    assert ledger.state_at("t1", 1, 7) == '{"it\'s":"\\\\é"}'
    assert ledger.state_at("t1", 0, 7) is None
    assert ledger.state_at("t2", 0, 10) is None


def test_the_state_before_an_offset_is_the_nearest(short: Job) -> None:
    ledger = short()
    ledger.claim("r1")
    ledger.results([result(5, 5, state="begins")])
    run_batches(ledger, 1, 30, 1)
    ledger.results([result(290, 300, state="again")])
    found = [ledger.state_before("t1", 0, offset) for offset in (4, 5, 9, 295, 299, 300, 999)]
    assert found == [None, (5, "begins"), (5, "begins"), *[(290, '{"end":290}')] * 2, *[(300, "again")] * 2]
    ledger.fold()
    assert ledger.state_before("t1", 0, 301) == (300, "again")
    assert ledger.state_before("t1", 0, 291) == (290, '{"end":290}')
    assert ledger.state_before("t1", 0, 100) is None


def test_a_range_done_again_has_its_last_state(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    for state in ("first", "second"):
        ledger.intents([intent(0, 10)])
        ledger.results([result(0, 10, state=state)])
    assert ledger.state_at("t1", 0, 10) == "second"


def test_progress_is_the_end_of_the_last_result(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    ledger.intents([intent(5, 10), intent(0, 4, 1)])
    ledger.results([result(5, 10), result(0, 4, 1), result(0, 90, 0, "t2")])
    ledger.results([result(10, 20)])
    assert ledger.progress("t1") == {0: 20, 1: 4}
    assert ledger.progress("t2") == {0: 90}
    later = job()
    ledger.release()
    later.claim("r2")
    later.results([result(30, 30, state="after a gap")])
    assert job().progress("t1") == {0: 30, 1: 4}
    assert job().state_at("t1", 0, 30) == "after a gap"
    later.results([result(12, 12, state="cut off")])
    assert job().progress("t1") == {0: 12, 1: 4}


def test_an_intent_is_open_until_a_result_has_come_to_its_end(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    assert ledger.open_intents("t1") == []
    small = RangeIntent("shop.orders", "t1", 1, 0, 40, 10, 1000)
    ledger.intents([intent(0, 50), small, intent(0, 9, 0, "t2")])
    assert job().open_intents("t1") == [intent(0, 50), small]
    ledger.results([result(0, 50), result(0, 20, 1)])
    assert job().open_intents("t1") == [replace(small, start=20)]
    ledger.release()
    later = job()
    later.claim("r2")
    later.intents([replace(small, start=20)])
    assert later.open_intents("t1") == [replace(small, start=20)]
    later.results([result(20, 40, 1)])
    assert job().open_intents("t1") == []
    assert job().open_intents("t2") == [intent(0, 9, 0, "t2")]


def test_an_intent_is_not_open_where_reading_goes_on_elsewhere(job: Job) -> None:
    """Records were lost: the range is run from what is left of it, or not at all."""
    ledger = job()
    ledger.claim("r1")
    ledger.intents([intent(100, 200), intent(100, 200, 1), intent(100, 200, 2)])
    ledger.results([result(150, 150), result(300, 300, 1), result(20, 20, 2)])
    assert job().open_intents("t1") == [intent(150, 200)]


def test_the_newest_batch_of_intents_comes_back_as_it_was(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    ledger.intents([intent(0, 10), intent(0, 10, 1)])
    ledger.results([result(0, 10), result(0, 10, 1)])
    ledger.intents([intent(10, 25, 1), intent(10, 20)])
    assert job().last_intents() == [intent(10, 20), intent(10, 25, 1)]


def test_attempts_count_the_batches_that_overlap(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    assert [r.attempt for r in ledger.intents([intent(0, 10), intent(10, 20)])] == [0, 0]
    assert [r.attempt for r in ledger.intents([intent(10, 20)])] == [1]
    ledger.release()
    later = job()
    later.claim("r2")
    assert [r.attempt for r in later.intents([intent(10, 20), intent(20, 30), intent(9, 11), intent(0, 9, 1)])] == [
        2,
        0,
        2,
        0,
    ]
    assert [r.attempt for r in later.intents([intent(0, 5, topic_id="t2")])] == [0]
    assert later.last_intents() == [intent(0, 5, topic_id="t2")]


def test_history_is_whole_and_newest_first(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    one = result(
        0,
        10,
        rows=8,
        deletes=2,
        dead_letters=1,
        counts={"tombstone": 3, "heartbeat": 1},
        cuts=(4, 8),
        top=(1 << 127) + 5,
    )
    two = result(10, 20)
    ledger.intents([intent(0, 10)])
    ledger.results([one])
    ledger.intents([intent(10, 20)])
    ledger.results([two])
    seen = ledger.history(10)
    assert [(r.start, r.end) for r in seen] == [(10, 20), (0, 10)]
    assert [r.run_id for r in seen] == ["r1", "r1"]
    assert seen[0].batch > seen[1].batch
    for got, put in zip(seen, [two, one], strict=True):
        assert replace(got, run_id="", batch=0) == put
    assert len(ledger.history(1)) == 1


def test_totals_add_up_and_count_a_repeated_range_once(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    ledger.intents([intent(0, 10)])
    ledger.results([result(0, 10, rows=5, deletes=1, dead_letters=1, counts={"a": 1, "b": 2}), result(0, 3, 1, rows=1)])
    ledger.intents([intent(0, 10)])
    ledger.results([result(0, 10, rows=7, deletes=0, dead_letters=2, counts={"a": 4}, state="again", finished=9.0)])
    ledger.results([result(10, 20, rows=1, counts={"c": 1}, state="last", finished=5.0)])
    zero, one = ledger.totals()
    assert (zero.topic, zero.topic_id, zero.partition, zero.next_offset) == ("shop.orders", "t1", 0, 20)
    assert (zero.rows, zero.deletes, zero.dead_letters, dict(zero.counts)) == (8, 0, 2, {"a": 4, "c": 1})
    assert (zero.state, zero.finished, zero.source_time) == ("last", 9.0, 1_700_000_000_123)
    assert (one.partition, one.rows) == (1, 1)


def test_topics_are_listed_last_read_first(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    for topic_id in ("t1", "t2", "t1", "t3"):
        ledger.intents([intent(0, 1, topic_id=topic_id)])
    assert ledger.topic_ids() == ["t3", "t1", "t2"]


BIG = (1 << 80) - 1
FACTS = [
    TruncateFloor(0, 5, 0),
    TopicFacts("t1", 3, 0),
    SchemaChangeBegun((ChangedColumn('it\'s \\ "é"', "Nullable(Int64)"),), ("id", "tenant")),
    SchemaChangeFinished((ChangedColumn("a b; c", "Nullable(Decimal(10, 2))"),)),
    BackwardStepSeen("t1", 2, 77, "regress", "shop\n1", 5, BIG),
    TableTakenBack("t1", 2, 5, 77, "4f2a"),
    TableRefilled("t1", 2, 5, BIG, 3, 1_800_000_000_000),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda f: f.kind)
def test_a_fact_comes_back_as_it_was_recorded_to_every_later_job(job: Job, fact: Any) -> None:
    ledger = job()
    ledger.claim("r1")
    ledger.record(fact)
    ledger.release()
    assert job().facts(type(fact)) == [fact]
    for other in {type(f) for f in FACTS} - {type(fact)}:
        assert job().facts(other) == []


def test_facts_come_oldest_first_and_equal_ones_once_at_their_last_place(job: Job) -> None:
    first = job()
    first.claim("r1")
    first.record(TruncateFloor(0, 5, 0), TopicFacts("t1", 3, 0), TruncateFloor(1, 2, BIG))
    first.record(TopicFacts("t2", 1, 1))
    first.release()
    second = job()
    second.claim("r2")
    second.record(TruncateFloor(0, 7, 0), TruncateFloor(0, 5, 0))
    second.record()
    assert second.facts(TruncateFloor) == [TruncateFloor(1, 2, BIG), TruncateFloor(0, 7, 0), TruncateFloor(0, 5, 0)]
    assert second.facts(TopicFacts) == [TopicFacts("t1", 3, 0), TopicFacts("t2", 1, 1)]


def test_steps_at_two_offsets_of_two_partitions_are_four(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    steps = [BackwardStepSeen("t1", p, offset, "redelivery", "s", 1, 2) for p in (0, 1) for offset in (5, 9)]
    ledger.record(*steps)
    assert ledger.facts(BackwardStepSeen) == steps


def test_a_schema_change_is_open_until_it_is_finished(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    assert ledger.open_schema_change() is None
    begun = SchemaChangeBegun((ChangedColumn("a", "Int64"),), ("id",))
    for _ in range(2):  # the same columns twice: they were dropped in between
        ledger.record(begun)
        assert job().open_schema_change() == begun
        ledger.record(SchemaChangeFinished(begun.columns))
        assert job().open_schema_change() is None
    ledger.record(SchemaChangeBegun((), ()))
    assert job().open_schema_change() == SchemaChangeBegun((), ())


def test_progress_counts_until_the_range_has_a_result(job: Job) -> None:
    ledger, task = job(), job()
    ledger.claim("r1")
    assert task.progress_of("t1", 0, 100) is None
    ledger.intents([intent(100, 200)])
    task.put_progress(RangeProgress("t1", 0, 100, 150, "one"))
    task.put_progress(RangeProgress("t1", 0, 100, 180, "two"))
    task.put_progress(RangeProgress("t1", 1, 100, 199, "another partition"))
    task.put_progress(RangeProgress("t2", 0, 100, 199, "another topic"))
    assert task.progress_of("t1", 0, 100) == RangeProgress("t1", 0, 100, 180, "two")
    assert task.progress_of("t1", 0, 150) is None
    ledger.results([result(100, 200)])
    assert task.progress_of("t1", 0, 100) is None  # read again on purpose: from its start
    task.put_progress(RangeProgress("t1", 0, 100, 120, "again"))
    assert job().progress_of("t1", 0, 100) == RangeProgress("t1", 0, 100, 120, "again")


def test_the_last_group_of_released_records_counts(job: Job) -> None:
    task = job()
    assert task.last_release("t1", 0) is None
    task.put_release(ReleaseGroup("t1", 0, (3, 5, 1 << 40), given_up=True))
    assert job().last_release("t1", 0) == ReleaseGroup("t1", 0, (3, 5, 1 << 40), given_up=True)
    for offsets in ((7,), (6, 8)):
        task.put_release(ReleaseGroup("t1", 0, offsets))
        task.put_release(ReleaseGroup("t1", 1, offsets))
    task.put_release(ReleaseGroup("t2", 0, (9,)))
    assert job().last_release("t1", 0) == ReleaseGroup("t1", 0, (6, 8))
    assert job().last_release("t1", 2) is None


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
    _plant(second, Claim(1, "r2", "another-host", 7, ""))
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
            _plant(job(), Claim(1, "killed", socket.gethostname(), child.pid, born(child.pid)))
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


def _plant(ledger: Any, claim: Claim) -> None:
    if isinstance(ledger, MemoryLedger):
        ledger._book.claims.append(claim)
    else:
        ledger._insert([claim], 0)


def test_many_claims_in_a_row_keep_their_order(job: Job) -> None:
    for n in range(5):
        ledger = job()
        ledger.claim(f"r{n}")
        ledger.intents([intent(n, n + 1)])
        ledger.release()
        ledger.release()
    with pytest.raises(LedgerConflict):
        ledger.check_claim()


def test_streams_share_a_table_without_seeing_each_other(client: Client, own_tables: str, stream: str) -> None:
    one = ClickHouseLedger(client, own_tables, "ledger", f"{stream}-one")
    two = ClickHouseLedger(client, own_tables, "ledger", f"{stream}-two")
    one.claim("r")
    two.claim("r")
    one.intents([intent(0, 10)])
    one.results([result(0, 10)])
    one.record(TruncateFloor(0, 1, 2))
    assert (two.last_intents(), two.history(1), two.totals(), two.progress("t1")) == ([], [], [], {})
    assert (two.state_at("t1", 0, 10), two.facts(TruncateFloor), two.topic_ids()) == (None, [], [])
    two.check_claim()
    one.check_claim()


def test_cuts_are_kept_by_topic_and_partition_and_need_no_claim(job: Job) -> None:
    ledger = job()
    assert ledger.cuts("topic-1") == {}
    for partition, offset in ((0, 40), (2, 7), (0, 12), (0, 40)):
        ledger.put_cut(ChunkCut("topic-1", partition, offset))
    ledger.put_cut(ChunkCut("topic-2", 0, 1))
    assert ledger.cuts("topic-1") == {0: [12, 40], 2: [7]}
    assert ledger.cuts("topic-2") == {0: [1]}


@pytest.fixture(params=["memory", "clickhouse"])
def short(request: pytest.FixtureRequest) -> Job:
    """Makes the ledger of one more job that folds all but the last two results of a partition."""
    name = request.getfixturevalue("stream")
    if request.param == "memory":
        first = MemoryLedger(name)
        first.keep(2)
        return lambda: MemoryLedger(name, beside=first)
    client: Client = request.getfixturevalue("client")
    database = request.getfixturevalue("own_tables")
    return lambda: ClickHouseLedger(client, database, "ledger", name, keep=2)


def run_batches(ledger: Any, first: int, last: int, partitions: int = 2, **changes: Any) -> None:
    """Batches of ten offsets of each partition, from number ``first`` up to ``last``."""
    for n in range(first, last):
        ranges = [(n * 10, n * 10 + 10, p) for p in range(partitions)]
        ledger.intents([intent(*r) for r in ranges])
        ledger.results([result(*r, rows=7, deletes=1, dead_letters=2, counts={"a": 1}, **changes) for r in ranges])


def known(ledger: Any, offsets: int = 400) -> dict[str, Any]:
    """What a later job asks of a ledger."""
    newest = ledger.progress("t1")
    return {
        "progress": newest,
        "state": {p: ledger.state_at("t1", p, end) for p, end in newest.items()},
        "totals": ledger.totals(),
        "topics": ledger.topic_ids(),
        "last": ledger.last_intents(),
        "newest": ledger.history(2),
        "cuts": ledger.cuts("t1"),
    }


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
    assert ledger.state_at("t1", 1, 280) == '{"end":280}'  # a summary ends there
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
        assert ledger.state_at("t1", 0, 10) == "again"
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
    _plant(other, replace(Claim(0, "r2", "elsewhere", 1, "x"), number=2))
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
        assert (later.progress("t1"), later.state_at("t1", 0, end)) == ({0: end}, f"again {n}")
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


HOSTILE = (
    "it's",
    'say "hi"',
    "back\\slash",
    "two\nlines",
    "x' OR '1'='1",
    "'; DROP TABLE ledger; --",
    "{stream:String}",
    "ü 日",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_streams_and_topics_may_hold_anything(client: Client, own_tables: str, stream: str, name: str) -> None:
    """Also where entries are folded and deleted, whose statements do not come from the sink alone."""
    other = ClickHouseLedger(client, own_tables, "ledger", f"{stream}-other")
    other.claim("r")
    run_batches(other, 0, 3, 1)
    kept = known(other)
    hostile = f"{stream} {name}"
    ledger = ClickHouseLedger(client, own_tables, "ledger", hostile, keep=2)
    ledger.claim(name)
    for n in range(12):
        ledger.intents([RangeIntent(name, name, 0, n * 10, n * 10 + 10)])
        ledger.results([FinishedRange(name, name, 0, n * 10, n * 10 + 10, rows=1, counts={name: 1}, state=name)])
    ledger.put_progress(RangeProgress(name, 0, 120, 125, name))
    ledger.put_cut(ChunkCut(name, 0, 7))
    assert ledger.fold() == 10
    (total,) = ledger.totals()
    assert (total.topic, total.topic_id, total.rows, total.state, total.counts) == (name, name, 12, name, {name: 12})
    assert ledger.progress(name) == {0: 120}
    assert ledger.state_before(name, 0, 100) == (100, name)
    assert ledger.progress_of(name, 0, 120) == RangeProgress(name, 0, 120, 125, name)
    assert (ledger.cuts(name), ledger.topic_ids()) == ({0: [7]}, [name])
    assert known(other) == kept
