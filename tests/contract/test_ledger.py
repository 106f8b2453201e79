"""What every Ledger keeps, and what it answers."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client
from ch_sink.model.change import BackwardStep
from ch_sink.model.counts import Counts
from ch_sink.ports import (
    Command,
    FinishedRange,
    RangeIntent,
    RangeProgress,
    ReleaseGroup,
    RowsEdited,
    TableRefilled,
    TopicFacts,
    TruncateFloor,
    ledger_entries,
)
from tests.support.ledgers import Job, intent, known, result, run_batches
from tests.support.views import counts_of

BIG = (1 << 80) - 1


def test_the_table_of_entries_names_each_kind_once() -> None:
    rows = re.findall(r"^\| (\w+) +\|", ledger_entries.__doc__ or "", re.MULTILINE)[1:]
    defined = [getattr(entry, "kind", None) for entry in vars(ledger_entries).values() if isinstance(entry, type)]
    assert sorted(rows) == sorted(kind for kind in defined if isinstance(kind, str))


def test_an_empty_ledger_knows_nothing(job: Job) -> None:
    ledger = job()
    assert ledger.states_at("t1", {0: 10}).get(0) is None
    assert ledger.progress("t1") == {}
    assert ledger.open_intents("t1") == []
    assert ledger.history(10) == []
    assert ledger.totals() == []
    assert ledger.topic_ids() == []
    assert ledger.facts(TruncateFloor) == []
    assert ledger.steps("t1", 0) == []
    assert ledger.progress_of("t1", 0, 0) is None


def test_the_state_is_that_of_the_range_that_ends_exactly_there(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    ledger.intents([intent(0, 10), intent(0, 7, 1)])
    ledger.results([result(0, 10), result(0, 7, 1, state='{"it\'s":"\\\\é"}')])
    assert ledger.states_at("t1", {0: 10}).get(0) == '{"end":10}'
    assert ledger.states_at("t1", {1: 7}).get(1) == '{"it\'s":"\\\\é"}'
    assert ledger.states_at("t1", {0: 7}).get(0) is None
    assert ledger.states_at("t2", {0: 10}).get(0) is None


@pytest.mark.sampled(1)
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


def test_the_states_over_offsets_are_those_of_the_results_that_read_them(short: Job) -> None:
    ledger = short()
    ledger.claim("r1")
    ledger.results([result(0, 0, state="begins"), result(0, 10, 1, state="other")])
    run_batches(ledger, 0, 3)
    assert ledger.states_over("t1", 0, 5, 15) == [(0, 10, '{"end":10}'), (10, 20, '{"end":20}')]
    assert ledger.states_over("t1", 0, 10, 11) == [(10, 20, '{"end":20}')]
    assert ledger.states_over("t1", 0, 30, 99) == ledger.states_over("t2", 0, 0, 99) == []
    ledger.results([result(8, 12, state="again")])
    assert [state for *_, state in ledger.states_over("t1", 0, 9, 10)] == ['{"end":10}', "again"]


@pytest.mark.sampled(1)
def test_summaries_keep_epochs_apart(short: Job) -> None:
    """An epoch rises as a batch begins, and a letter of it is retried much later."""
    ledger = short()
    ledger.claim("r1")
    epochs = [0, 0, 1, 1, 1, *[2] * 20]
    ledger.intents([intent(n * 10, n * 10 + 10) for n in range(len(epochs))])
    ledger.results([result(n * 10, n * 10 + 10, state=f'{{"base_epoch":{epoch}}}') for n, epoch in enumerate(epochs)])
    assert ledger.fold()
    found = {n: ledger.states_over("t1", 0, n * 10 + 5, n * 10 + 6) for n in range(len(epochs))}
    assert {n: {state for *_, state in over} for n, over in found.items()} == {
        n: {f'{{"base_epoch":{epoch}}}'} for n, epoch in enumerate(epochs)
    }
    assert found[0][0][:2] == (0, 20)
    assert ledger.totals()[0].next_offset == 250


def test_a_range_done_again_has_its_last_state(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    for state in ("first", "second"):
        ledger.intents([intent(0, 10)])
        ledger.results([result(0, 10, state=state)])
    assert ledger.states_at("t1", {0: 10}).get(0) == "second"


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
    assert job().states_at("t1", {0: 30}).get(0) == "after a gap"
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
    assert later.open_intents("t2") == [intent(0, 5, topic_id="t2")]


def test_history_is_whole_and_newest_first(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    one = result(
        0,
        10,
        counts=counts_of(0, 8, 1, deletes=2, tombstone=3, heartbeat=1),
        steps=(BackwardStep("regress", "shop\n1", 7, 5, BIG),),
    )
    one.counts.top = (1 << 127) + 5
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
    first = result(0, 10, counts=counts_of(0, 5, 1, deletes=1, a=1, b=2))
    ledger.results([first, result(0, 3, 1, counts=counts_of(0, 1))])
    ledger.intents([intent(0, 10)])
    ledger.results([result(0, 10, counts=counts_of(0, 7, 2, a=4), state="again", finished=9.0)])
    ledger.results([result(10, 20, counts=counts_of(0, 1, c=1), state="last", finished=5.0)])
    zero, one = ledger.totals()
    assert (zero.topic, zero.topic_id, zero.partition, zero.next_offset) == ("shop.orders", "t1", 0, 20)
    assert zero.counts == counts_of(0, 8, 2, 1_700_000_000_123, a=4, c=1)
    assert (zero.state, zero.finished) == ("last", 9.0)
    assert (one.partition, one.counts.rows) == (1, 1)


def test_topics_are_listed_last_read_first(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    for topic_id in ("t1", "t2", "t1", "t3"):
        ledger.intents([intent(0, 1, topic_id=topic_id)])
    assert ledger.topic_ids() == ["t3", "t1", "t2"]


FACTS = [
    TruncateFloor(0, 5, 0),
    TopicFacts("t1", 3, 0),
    TableRefilled("t1", 2, 5, BIG, 3, 1_800_000_000_000, str(BIG << 48), run="9c01"),
    RowsEdited("t1", 2, 5, "removed", 1, top=str(BIG), skip=(3, 4), left="-1"),
    Command("0a", "resync", "host", 7, "12", "2026-01-01 00:00:00 UTC", ended=True),
]


@pytest.mark.sampled(5)
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


def test_a_command_is_known_to_all_whoever_has_the_stream(job: Job) -> None:
    owner, begun = job(), Command("0a", "resync", "host", 7, "12", "2026-01-01 00:00:00 UTC")
    owner.claim("r1")
    assert owner.facts(Command) == []
    job().note(begun)
    assert owner.facts(Command) == [begun]
    job().note(replace(begun, ended=True))
    assert {command.ended for command in owner.facts(Command)} == {False, True}


def test_steps_are_those_of_the_partition_s_results_by_offset(job: Job) -> None:
    ledger = job()
    ledger.claim("r1")
    steps = [BackwardStep("redelivery", "s", offset, 1, BIG) for offset in (5, 9, 15)]
    ledger.results([result(10, 20, steps=(steps[2],)), result(0, 10, steps=tuple(steps[:2])), result(0, 10, 1)])
    ledger.results([result(0, 10, steps=tuple(steps[:2]))])
    assert job().steps("t1", 0) == steps
    assert job().steps("t1", 1) == job().steps("t2", 0) == []


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
    [anew], owner = ledger.intents([intent(100, 200)]), ledger.owner()
    assert owner is not None
    task.put_progress(RangeProgress("t1", 0, 100, 120, "again", claim=owner.number, batch=anew.batch))
    again = job().progress_of("t1", 0, 100)
    assert again is not None
    assert (again.end, again.state) == (120, "again")


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


def test_streams_share_a_table_without_seeing_each_other(client: Client, own_tables: str, stream: str) -> None:
    one = ClickHouseLedger(client, own_tables, "ledger", f"{stream}-one")
    two = ClickHouseLedger(client, own_tables, "ledger", f"{stream}-two")
    one.claim("r")
    two.claim("r")
    one.intents([intent(0, 10)])
    one.results([result(0, 10)])
    one.record(TruncateFloor(0, 1, 2))
    assert (two.open_intents("t1"), two.history(1), two.totals(), two.progress("t1")) == ([], [], [], {})
    assert (two.states_at("t1", {0: 10}).get(0), two.facts(TruncateFloor), two.topic_ids()) == (None, [], [])
    two.check_claim()
    one.check_claim()


HOSTILE = (
    'it\'s "hi" in\ntwo lines with a back\\slash',
    "'; DROP TABLE ledger; -- {stream:String} ü 日",
)


@pytest.mark.long
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
        counts = Counts(rows=1, kinds=Counter({name: 1}))
        ledger.results([FinishedRange(name, name, 0, n * 10, n * 10 + 10, counts, name)])
    ledger.put_progress(RangeProgress(name, 0, 120, 125, name))
    assert ledger.fold() == 10
    (total,) = ledger.totals()
    assert (total.topic, total.topic_id, total.state) == (name, name, name)
    assert total.counts == Counts(rows=12, kinds=Counter({name: 12}))
    assert ledger.progress(name) == {0: 120}
    assert ledger.state_before(name, 0, 100) == (100, name)
    assert ledger.progress_of(name, 0, 120) == RangeProgress(name, 0, 120, 125, name)
    assert ledger.topic_ids() == [name]
    assert known(other) == kept
