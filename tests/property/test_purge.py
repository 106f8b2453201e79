"""Purging deleted rows between the batches of drawn histories changes nothing that readers ever see.

The histories send old stretches again, step back in position, move rows between places and change keys. Each runs
twice, side by side, once with a purge after each batch; what could not be purged yet stays.
"""

from collections.abc import Callable

import pytest

from ch_sink.clickhouse import ClickHouseDeadLetters, ClickHouseLedger, ClickHousePending, Client
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.decode import Decoder
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.ports import DeadLetter, PendingRecord
from ch_sink.stream.ports import StreamSettings
from ch_sink.trust import purge as procedure
from ch_sink.trust.own_tables import OwnTables, delete_rows
from ch_sink.trust.purge import Purged, purged
from ch_sink.trust.subject import Subject
from tests.model.reference import difference
from tests.support.cases import Case, drawn
from tests.support.fault_scripts_engine import EngineRun
from tests.support.harness import batches_of, topic_of
from tests.support.kills import Killed
from tests.support.memory_stream import MemoryStreamStates
from tests.support.trust import TopicInMemory

pytestmark = [pytest.mark.integration, pytest.mark.slow]

POLICY = policy_of(truncate="apply", on_bad_record="fail")
CASE = Case(700, "sign", "adverse")
MORE = [
    Case(seed, engine, knobs)
    for knobs in ("adverse", "truncates", "gtid replay", "long", "oracle, adverse")
    for engine in ("replacing", "sign")
    for seed in range(700, 710)
    if (seed, engine, knobs) != (700, "sign", "adverse")
]


def subject_of(run: EngineRun, client: Client, own_tables: str, case: Case) -> tuple[Subject, OwnTables]:
    history, _ = drawn(case)
    stream, table = f"model/{run.table.name}", run.table.target
    ledger = ClickHouseLedger(client, own_tables, "ledger", stream)
    topic = topic_of(history)
    subject = Subject(
        client,
        StreamSettings(stream, topic.name, POLICY),
        table,
        tuple(history.table.key),
        tuple(table.source_columns),
        own_tables,
        TopicInMemory(topic),  # type: ignore[arg-type]
        lambda now, want: Decoder(now, POLICY, want_before=want),
        ledger,
        MemoryStreamStates(),
    )
    names = ("dead_letters", "handover", "pending")
    return subject, OwnTables(client, stream, *(StateTable(client, own_tables, name) for name in names))


def purge(run: EngineRun, client: Client, own_tables: str, case: Case, *, apply: bool = True) -> Purged:
    """Purge what is below all that was applied, however young it is."""
    subject, own = subject_of(run, client, own_tables, case)
    applied = subject.reached(topic_of(drawn(case)[0]).topic_id).applied
    return purged(subject, own, applied, apply=apply, settle=0.0)


def alive(run: EngineRun) -> list[str]:
    return sorted(map(repr, run.table.view()))


@pytest.mark.parametrize(
    "case",
    [CASE, *(pytest.param(c, marks=pytest.mark.long) for c in MORE)],
    ids=lambda c: f"{c.engine}-{c.knobs}-{c.seed}".replace(" ", "_"),
)
def test_no_row_comes_back_after_a_purge(client: Client, database: str, own_tables: str, case: Case) -> None:
    history, plan = drawn(case)
    runs = [EngineRun(client, database, own_tables, history, case.engine, POLICY) for _ in range(2)]
    removed = 0
    for batch in batches_of(plan, collapsing=False):
        for run in runs:
            run.runner.run([batch])
        removed += purge(runs[0], client, own_tables, case).rows
        assert alive(runs[0]) == alive(runs[1])
    for run in runs:
        run.runner.stop()
    assert difference(history, runs[0].table.view()) == ""
    if case == CASE:
        assert removed
        assert len(runs[0].table.raw()) < len(runs[1].table.raw())


@pytest.fixture
def whole(client: Client, database: str, own_tables: str) -> tuple[EngineRun, Case]:
    """A history that has been read whole."""
    history, plan = drawn(CASE)
    run = EngineRun(client, database, own_tables, history, CASE.engine, POLICY)
    run.run(plan)
    return run, CASE


@pytest.mark.long
def test_a_purge_that_is_broken_off_hides_and_shows_nothing(
    client: Client, own_tables: str, whole: tuple[EngineRun, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, case = whole
    seen, raw = alive(run), len(run.table.raw())
    told = purge(run, client, own_tables, case, apply=False)
    assert told.rows > 0
    assert len(run.table.raw()) == raw
    with monkeypatch.context() as patch:
        patch.setattr(procedure, "delete_rows", broken_off_after_one())
        with pytest.raises(Killed):
            purge(run, client, own_tables, case)
    assert alive(run) == seen
    purge(run, client, own_tables, case)
    assert alive(run) == seen
    assert len(run.table.raw()) == raw - told.rows
    assert purge(run, client, own_tables, case).rows == 0


def broken_off_after_one() -> Callable[..., None]:
    done: list[str] = []

    def delete(client: Client, table: str, condition: str) -> None:
        if done:
            raise Killed
        done.append(condition)
        delete_rows(client, table, condition)

    return delete


@pytest.mark.long
def test_what_may_still_store_older_changes_refuses_a_purge(
    client: Client, own_tables: str, whole: tuple[EngineRun, Case]
) -> None:
    run, case = whole
    subject, own = subject_of(run, client, own_tables, case)
    letter = DeadLetter("t", 0, 0, 0, b"k", b"v", (), "decode", None, "poison")
    letters = ClickHouseDeadLetters(client, own_tables, "dead_letters", own.stream, "id")
    letters.put([letter], "")
    with pytest.raises(StreamFailed, match=r"1 dead letter .* can still be retried"):
        purge(run, client, own_tables, case)
    letters.settle([(0, 0)], "dropped")
    waiting = PendingRecord(0, 0, b"k", b"v", (), 0, 0)
    pending = ClickHousePending(client, own_tables, "pending", own.stream)
    pending.put("id", 0, [waiting], "")
    assert purge(run, client, own_tables, case).rows == 0
    pending.resolve("id", 0, [0])
    assert purged(subject, own, {}, apply=True, settle=0.0).rows == 0  # all is too young
    high = dict.fromkeys(subject.topic.state("").high, 1 << 60)
    assert purged(subject, own, high, apply=True).rows == 0  # results of this minute
    assert purge(run, client, own_tables, case, apply=False).rows > 0


@pytest.mark.long
def test_a_stream_that_opens_again_finds_the_table_whole(
    client: Client, own_tables: str, whole: tuple[EngineRun, Case]
) -> None:
    """The highest version is looked at: without it the stream would stop."""
    run, case = whole
    subject, _ = subject_of(run, client, own_tables, case)
    purge(run, client, own_tables, case)
    before = len(subject.ledger.history(1000))
    run.runner.run([])
    run.runner.stop()
    assert len(subject.ledger.history(1000)) == before


def test_collapsing_tables_need_no_purge(client: Client, database: str, own_tables: str) -> None:
    case = Case(700, "collapsing", "adverse")
    run = EngineRun(client, database, own_tables, drawn(case)[0], case.engine, POLICY)
    assert "merges remove them" in purge(run, client, own_tables, case).note
