"""The ledgers of many streams in one insert: each keeps what it would keep alone, and a lost claim concerns one."""

from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client, write_together
from ch_sink.errors import ChSinkError, LedgerConflict, TakenBack
from ch_sink.memory import MemoryLedger
from ch_sink.model.counts import Counts
from ch_sink.ports import FinishedRange, RangeIntent, TopicFacts, TruncateFloor
from ch_sink.stream.claims import forget
from ch_sink.stream.rounds import Intend, Record

pytestmark = pytest.mark.integration


def intents(stream: str, start: int) -> list[RangeIntent]:
    return [RangeIntent(stream, "id", p, start, start + 10, 50_000, 1 << 26) for p in range(2)]


def results(stream: str, start: int) -> list[FinishedRange]:
    return [
        FinishedRange(stream, "id", p, start, start + 10, Counts(rows=p + start), f"{stream}-{start}") for p in range(2)
    ]


def claimed(client: Client, database: str, streams: str) -> dict[str, ClickHouseLedger]:
    made = {stream: ClickHouseLedger(client, database, "ledger", stream) for stream in streams}
    for stream, ledger in made.items():
        ledger.claim(f"run-{stream}")
    return made


def test_streams_that_write_together_keep_what_each_would_keep_alone(client: Client, own_tables: str) -> None:
    ledgers = claimed(client, own_tables, "abc")
    alone = {stream: MemoryLedger(stream) for stream in "abc"}
    for stream, memory in alone.items():
        memory.claim(f"run-{stream}")
    # The second batch is begun twice, so that its ranges have a second attempt.
    for begun, finished in ((0, True), (10, False), (10, True), (20, False)):
        answers = write_together([Intend(ledger, intents(s, begun)) for s, ledger in ledgers.items()])
        wanted = {stream: memory.intents(intents(stream, begun)) for stream, memory in alone.items()}
        for answer, ranges in zip(answers, wanted.values(), strict=True):
            assert isinstance(answer, list)
            assert [(r.start, r.end, r.attempt) for r in answer] == [(r.start, r.end, r.attempt) for r in ranges]
        if finished:
            assert write_together([Record(x, results(s, begun)) for s, x in ledgers.items()]) == [None] * 3
            for stream, memory in alone.items():
                memory.results(results(stream, begun))
    for stream, memory in alone.items():
        fresh = ClickHouseLedger(client, own_tables, "ledger", stream)
        assert fresh.progress("id") == memory.progress("id") == {0: 20, 1: 20}
        assert [r.start for r in fresh.open_intents("id")] == [r.start for r in memory.open_intents("id")] == [20, 20]
        assert fresh.states_at("id", {1: 20}).get(1) == f"{stream}-10"
        assert [(t.partition, t.counts) for t in fresh.totals()] == [(t.partition, t.counts) for t in memory.totals()]


def test_they_cost_one_look_and_one_insert(client: Client, own_tables: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers = claimed(client, own_tables, "ghijkl")
    write_together([Intend(ledger, intents(s, 0)) for s, ledger in ledgers.items()])
    write_together([Record(ledger, results(s, 0)) for s, ledger in ledgers.items()])
    asked: list[str] = []
    for name in ("rows", "insert", "command", "arrow"):
        original = getattr(Client, name)

        def counted(self: Client, *given: Any, _name: str = name, _original: Any = original, **more: Any) -> Any:
            asked.append(_name)
            return _original(self, *given, **more)

        monkeypatch.setattr(Client, name, counted)
    write_together([Intend(ledger, intents(s, 10)) for s, ledger in ledgers.items()])
    write_together([Record(ledger, results(s, 10)) for s, ledger in ledgers.items()])
    assert asked == ["rows", "insert"] * 2


def test_a_stream_that_was_lost_writes_nothing_and_the_others_do(client: Client, own_tables: str) -> None:
    ledgers = claimed(client, own_tables, "xyz")
    forget("y", "run-y")
    ClickHouseLedger(client, own_tables, "ledger", "y").claim("another job")
    answers = write_together([Intend(ledger, intents(s, 0)) for s, ledger in ledgers.items()])
    assert isinstance(answers[1], LedgerConflict)
    assert isinstance(answers[0], list)
    again = write_together([Record(ledger, results(s, 0)) for s, ledger in ledgers.items()])
    assert (again[0], again[2]) == (None, None)
    assert isinstance(again[1], LedgerConflict)
    assert {s: ledger.progress("id") for s, ledger in ledgers.items()} == {
        "x": {0: 10, 1: 10},
        "y": {},
        "z": {0: 10, 1: 10},
    }


def test_an_insert_that_fails_fails_for_all_and_ledgers_in_memory_are_written_apart(
    client: Client, own_tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = claimed(client, own_tables, "pq")
    memory = MemoryLedger("m")
    memory.claim("run-m")

    def refuse(*_given: Any, **_more: Any) -> None:
        raise ChSinkError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Client, "insert", refuse)
        answers = write_together(
            [Intend(memory, intents("m", 0)), *(Intend(ledger, intents(s, 0)) for s, ledger in ledgers.items())]
        )
    assert isinstance(answers[0], list)
    assert [str(answer) for answer in answers[1:]] == ["no space left"] * 2
    assert all(ledger.open_intents("id") == [] for ledger in ledgers.values())


@pytest.mark.long
def test_an_owner_does_not_ask_for_what_it_knows_is_not_there(
    client: Client, own_tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many new streams, opening each would be some twenty questions; whoever does not own the stream asks them."""
    owner, other = (ClickHouseLedger(client, own_tables, "ledger", "fresh") for _ in range(2))
    owner.claim("run")
    asked: list[str] = []
    original = Client.rows

    def counted(self: Client, sql: str, *given: Any, **more: Any) -> Any:
        asked.append(sql)
        return original(self, sql, *given, **more)

    monkeypatch.setattr(Client, "rows", counted)

    def read(ledger: ClickHouseLedger) -> list[object]:
        return [
            ledger.facts(TopicFacts),
            ledger.facts(TruncateFloor),
            ledger.topic_ids(),
            ledger.progress("id"),
            ledger.open_intents("id"),
            ledger.states_at("id", {0: 10}).get(0),
            ledger.totals(),
        ]

    assert read(owner) == read(other)
    from_owner = len(asked)
    assert read(owner)[:2] == [[], []]
    assert len(asked) == from_owner, "the owner asks nothing"
    owner.record(TopicFacts("id", 2, 0))
    owner.intents(intents("fresh", 0))
    assert read(owner) == read(other)
    assert owner.facts(TopicFacts) == [TopicFacts("id", 2, 0)]
    assert [r.end for r in owner.open_intents("id")] == [10, 10]
    owner.results(results("fresh", 0))
    owner.record(TruncateFloor(1, 2, 3))
    assert read(owner) == read(other)
    assert owner.progress("id") == {0: 10, 1: 10}
    forget("fresh", "run")
    again = ClickHouseLedger(client, own_tables, "ledger", "fresh")
    again.claim("later")
    assert read(again) == read(other)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("written", ["intent", "result"])
@pytest.mark.parametrize("streams", ["u", "vw"])
def test_a_ledger_that_was_taken_back_is_noticed_before_the_next_write(
    client: Client, own_tables: str, streams: str, written: str
) -> None:
    ledgers = claimed(client, own_tables, streams)
    write_together([Intend(ledger, intents(s, 0)) for s, ledger in ledgers.items()])
    if written == "result":
        write_together([Record(ledger, results(s, 0)) for s, ledger in ledgers.items()])
    first, after = next(iter(ledgers)), 10 if written == "result" else 0
    client.command(f"DELETE FROM {own_tables}.ledger WHERE stream = '{first}' AND entry = '{written}'")
    answers = write_together([Intend(ledger, intents(s, after)) for s, ledger in ledgers.items()])
    assert isinstance(answers[0], TakenBack)
    assert all(isinstance(answer, list) for answer in answers[1:])
    with pytest.raises(TakenBack, match=f"the ledger of stream {first} lacks what this job has recorded"):
        ledgers[first].results(results(first, after))
    ledgers[first].claim(f"run-{first}")
    assert ledgers[first].intents(intents(first, 0))
