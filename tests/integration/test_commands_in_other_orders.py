"""Commands on tables whose versions are times or Kafka offsets, and after a change of those."""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pytest

from ch_sink.clickhouse import Client
from ch_sink.memory import MemoryLedger
from ch_sink.model.policy import policy_of
from ch_sink.pipeline.target import Target
from ch_sink.ports import DeadLetter, FinishedRange, TopicFacts
from ch_sink.stream.partition_states import States
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.wiring.letters import LetterRetry
from tests.support.choose import some
from tests.support.hand import Event
from tests.support.hand_commands import MARKING, TIMED, Hand, each_of, hand, timed, with_policy
from tests.support.hand_steps import EVENTS, Rows, lose, position
from tests.support.hand_tables import ENGINES, Make, delete, insert, row, update

pytestmark = [pytest.mark.integration, pytest.mark.long]
"""`make test` draws sequences of the same commands: test_any_command_sequence."""


def at(event: Event, second: int) -> Event:
    value = event.value or {}
    return replace(event, value={**value, "source": {**value["source"], "ts_ms": 1_657_655_632_000 + 1000 * second}})


T = [
    at(insert(1, "a", 100), 0), at(insert(2, "b", 110), 1), at(update(row(1, "a"), row(1, "aa"), 120), 2),
    at(insert(3, "c", 130), 3), at(delete(row(2, "b"), 140), 4), at(update(row(3, "c"), row(3, "cc"), 150), 5),
]  # fmt: skip


END = [(1, "aa"), (3, "cc")]
"""What the table has in the end."""


@pytest.mark.parametrize(
    ("engine", "against"),
    some(product(TIMED, ["topic", "source"]), [("time", "source"), ("time-auto", "topic")]),
)
def test_changes_follow_a_repair(
    client: Client, database: str, engine: str, against: Literal["topic", "source"]
) -> None:
    it = timed(client, database, engine, T)
    it.read((0, 2))
    lose(it, 2)
    it.source = Rows([(1, "a"), (2, "b")])
    done = repaired(it.subject, Options(patience=0, against=against), apply=True)
    assert (done.rows, done.left) == (1, 0)
    it.read_all()
    assert it.view() == END
    assert it.verify() == (0, 0, 0)
    it.source = Rows(END)
    assert it.verify_source() == (0, 0, 0)


@each_of("engine", TIMED, "time-auto")
def test_a_resync_over_unread_changes(client: Client, database: str, engine: str) -> None:
    it = timed(client, database, engine, T)
    it.read((0, 2), (0, 4))
    it.source = Rows([(1, "aa"), (2, "b"), (3, "c")], settles=position(131))
    resynced(it.refill, apply=True)
    it.read_all()
    expect_kept(it, END)


@each_of("engine", TIMED, "time", "narrow")
def test_a_resync_against_the_topic_of_timed_rows(client: Client, database: str, engine: str) -> None:
    it = timed(client, database, engine, T)
    it.read((0, 2), (0, 4), (0, 6))
    expect_kept(it, END)
    resynced(it.refill, apply=True, against="topic")
    expect_kept(it, END)


def expect_kept(it: Hand, rows: Iterable[tuple[int, str]]) -> None:
    assert it.view() == rows
    assert it.verify() == (0, 0, 0)


@each_of("engine", MARKING, "sign")
def test_repairs_and_resyncs_while_the_strategy_changes(client: Client, database: str, engine: str) -> None:
    changes = update(row(1, "old"), row(1, "mid"), 110), update(row(1, "mid"), row(1, "new"), 120)
    events = [insert(1, "old", 100), *changes, insert(2, "b", 130)]
    it = hand(client, database, engine, events)
    it.read((0, 1), (0, 2), (0, 3))
    it = with_policy(it, version_strategy="kafka_offset")
    it.read((0, 4))
    it.source = Rows([(1, "new"), (2, "b"), (5, "lost")])
    assert repaired(it.subject, Options(patience=0, against="source"), apply=True).rows == 1
    more = [*events, delete(row(5, "lost"), 140), update(row(2, "b"), row(2, "bb"), 150)]
    it.topic(more)
    it.read_all()
    assert it.view() == [(1, "new"), (2, "bb")]
    it.source = Rows([(1, "new"), (2, "bb")], settles=position(160))
    resynced(it.refill, apply=True)
    assert it.verify_source() == (0, 0, 0)
    it = with_policy(it)
    it.topic([*more, update(row(2, "bb"), row(2, "bbb"), 170)])
    it.read_all()
    assert it.view() == [(1, "new"), (2, "bbb")]
    assert it.verify() == (0, 0, 0)


@each_of("engine", MARKING, "replacing")
def test_a_letter_of_before_the_strategy_changed(make: Make, engine: str) -> None:
    """A later change of the key, read before the strategy changed, wins over the letter."""
    fed, ledger = make(engine), MemoryLedger("s")
    ledger.claim("x")
    ledger.record(TopicFacts("id", 1, 0))
    bad, good = insert(2, "bad", 110), update(row(2, "bad"), row(2, "good"), 120)
    fed.log[0] = list(enumerate([insert(1, "a", 100), bad, good, insert(3, "c", 130)]))

    def read(first: int, reached: int, end: int) -> None:
        fed.apply(0, first, end)
        ledger.results([FinishedRange("t", "id", 0, reached, end, state=fed.states[0].to_json())])

    read(0, 0, 1)
    read(2, 1, 3)
    fed.policy = policy_of(truncate="apply", on_bad_record="fail", version_strategy="kafka_offset")
    fed.target = Target.of(fed.table, fed.policy)
    fed.restart()
    read(3, 3, 4)
    before = fed.view()
    assert before == [(1, "a"), (2, "good"), (3, "c")]
    fed.restart()
    key, value = json.dumps(bad.key).encode(), json.dumps(bad.value).encode()
    letter = DeadLetter("t", 0, 1, 1_700_000_000_000, key, value, (), "decode", "v", "x")
    done = LetterRetry(fed.sink(0), ledger, States(ledger, "id", 1, None).at(0, 4)).run([letter])
    assert list(done.failed) == [1]
    assert fed.view() == before


@each_of("engine", ENGINES, "replacing", "collapsing")
def test_changes_of_a_new_server_follow_a_resync_at_once(client: Client, database: str, engine: str) -> None:
    """Kafka's offsets order the changes: those of a server whose positions begin anew are as new as any other."""
    it = hand(client, database, engine, EVENTS, version_strategy="kafka_offset")
    it.read((0, 5))
    now: list[tuple[int, Any]] = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
    it.source = Rows(now, settles=position(141))
    resynced(it.refill, apply=True)
    it.topic([*EVENTS, update(row(1, "a"), row(1, "aa"), 10), delete(row(2, "b"), 20), insert(6, "f", 30)])
    it.read_all()
    now = [(1, "aa"), *now[2:], (6, "f")]
    assert it.view() == now
    it.source = Rows(now, settles=position(31))
    assert it.verify() == it.verify_source() == (0, 0, 0)
    resynced(it.refill, apply=True)
    assert it.view() == now


def test_unread_changes_of_the_former_server_do_not_follow_those_of_the_new_one_in_a_resync(
    client: Client, database: str
) -> None:
    """Times order the changes: of positions of both servers nothing tells which the rows show."""
    events = [
        insert(1, "a", 100),
        update(row(1, "a"), row(1, "b"), 120, ts_ms=1_657_655_633_000),
        update(row(1, "b"), row(1, "c"), 20, ts_ms=1_657_655_634_000),
    ]
    it = timed(client, database, "time", events)
    it.read((0, 1))
    it.source = Rows([(1, "c")], settles=position(31))
    resynced(it.refill, apply=True)
    assert it.view() == [(1, "c")]
    assert it.verify() == it.verify_source() == (0, 0, 0)
