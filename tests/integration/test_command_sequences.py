"""Sequences of commands after which the table has to be what its source is."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.memory import MemoryLedger
from ch_sink.ports import CLOCKS, DeadLetter, FinishedRange, RowsEdited, TableRefilled, TopicFacts
from ch_sink.stream.partition_states import States
from ch_sink.trust.one_key import erased
from ch_sink.trust.purge import purged
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.wiring.letters import LetterRetry
from tests.support.hand import HandFed
from tests.support.hand_commands import MARKING, Hand, each_of, hand, recreated
from tests.support.hand_steps import Rows
from tests.support.hand_tables import ENGINES, Make, delete, insert, row, update

pytestmark = pytest.mark.integration


TWICE = update(row(1, "old"), row(1, "mid"), 110), update(row(1, "mid"), row(1, "new"), 120)


@each_of("engine", ENGINES, "replacing")
@pytest.mark.parametrize("policy", [{}, {"version_strategy": "kafka_offset"}])
def test_a_resync_against_the_topic_of_a_recreated_topic(
    client: Client, database: str, engine: str, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = recreated(client, database, engine, monkeypatch, [insert(1, "old", 100), *TWICE], **policy)
    it.read((0, 2), (0, 3), (0, 4))
    before = it.view()
    assert before == [(1, "new"), (9, "x")]
    assert it.verify() == (0, 0, 0)
    resynced(it.refill, apply=True, against="topic")
    assert it.view() == before
    assert it.verify() == (0, 0, 0)


def moved(client: Client, database: str, engine: str) -> Hand:
    """Kafka offsets order the changes; key 1 has moved to a partition that was added."""
    former = [insert(9, "x", 50), insert(8, "y", 60), insert(7, "y", 70), insert(1, "old", 100)]
    it = hand(client, database, engine, former, version_strategy="kafka_offset")
    it.read((0, 2), (0, 4))
    it.topic(former, [update(row(1, "old"), row(1, "new"), 110)])
    it.read((1, 1))
    assert it.view() == MOVED
    return it


MOVED = [(1, "new"), (7, "y"), (8, "y"), (9, "x")]


@each_of("engine", ENGINES, "collapsing")
def test_verify_with_added_partitions(client: Client, database: str, engine: str) -> None:
    it = moved(client, database, engine)
    with pytest.raises(StreamFailed, match="got more partitions"):
        it.verify()
    assert it.view() == MOVED


@each_of("engine", ENGINES, "sign")
def test_repair_with_added_partitions(client: Client, database: str, engine: str) -> None:
    it = moved(client, database, engine)
    with pytest.raises(StreamFailed, match="got more partitions"):
        repaired(it.subject, Options(patience=0), apply=True)
    assert it.view() == MOVED


@each_of("engine", ENGINES, "versioned")
def test_resync_with_added_partitions(client: Client, database: str, engine: str) -> None:
    it = moved(client, database, engine)
    with pytest.raises(StreamFailed, match="got more partitions"):
        resynced(it.refill, apply=True, against="topic")
    assert it.view() == MOVED


@each_of("engine", ENGINES, "replacing")
@pytest.mark.parametrize("stepped", [False, True])
def test_verify_with_partitions_that_were_added_after_a_fail_over(
    client: Client, database: str, engine: str, stepped: bool
) -> None:
    """Positions of the new server are lower. The added partition shows no step back."""
    server = {"file": "mysql-bin.000002"} if stepped else {}
    pos = 100 if stepped else 2000
    former = [insert(1, "old", 1000), insert(9, "x", 1010), update(row(1, "old"), row(1, "a"), pos, **server)]
    it = hand(client, database, engine, former)
    it.read((0, 2), (0, 3))
    it.topic(former, [update(row(9, "x"), row(9, "xx"), pos + 10, **server)])
    it.read((1, 1))
    assert it.view() == [(1, "a"), (9, "xx")]
    if stepped:
        with pytest.raises(StreamFailed, match="got more partitions, and the positions of its changes have stepped"):
            it.verify()
        with pytest.raises(StreamFailed, match="stepped back"):
            resynced(it.refill, apply=True, against="topic")
        it.source = Rows([(1, "a"), (9, "xx")])
        assert it.verify_source() == (0, 0, 0)
    else:
        assert it.verify() == (0, 0, 0)


@each_of("engine", ENGINES, "collapsing")
def test_a_repair_after_a_recreated_topic(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = recreated(client, database, engine, monkeypatch, [insert(1, "old", 100), *TWICE, insert(5, "z", 130)])
    it.read((0, 2), (0, 3), (0, 5))
    before = it.view()
    newest = f"FROM {database}.t WHERE id = 1 ORDER BY _version DESC LIMIT 1"
    if engine == "replacing":
        it.client.command(
            f"INSERT INTO {database}.t SELECT * REPLACE(_version + 1 AS _version, 1 AS _is_deleted) {newest}"
        )
    elif engine == "sign":
        it.client.command(f"INSERT INTO {database}.t SELECT * REPLACE(_version + 1 AS _version, -1 AS _sign) {newest}")
    else:
        it.client.command(f"ALTER TABLE {database}.t DELETE WHERE id = 1 SETTINGS mutations_sync = 2")
    assert it.view() != before
    done = repaired(it.subject, Options(patience=0), apply=True)
    assert (done.rows, done.too_new, done.left) == (1, 0, 0)
    assert it.view() == before


def test_a_resync_against_the_topic_leaves_an_erased_key_out(client: Client, database: str) -> None:
    events = [insert(1, "secret", 100), insert(2, "b", 110), delete(row(1, "secret"), 120), insert(3, "c", 130)]
    it = hand(client, database, "replacing", events)
    it.read((0, 2), (0, 4))
    erased(it.subject, it.own, {"id": 1}, apply=True)
    assert [r for r in it.stored() if r[0] == 1] == []
    it.feed.runner.settings = replace(it.feed.runner.settings, chunk_offsets=1)
    resynced(it.refill, apply=True, against="topic")
    assert [r for r in it.stored() if r[0] == 1] == []


SENT = 1_700_000_000_000


def letter_of(fed: HandFed, offset: int, kind: str = "decode") -> DeadLetter:
    (event,) = [e for o, e in fed.log[0] if o == offset]
    return DeadLetter(
        "t", 0, offset, SENT, json.dumps(event.key).encode(), json.dumps(event.value).encode(), (), kind, "v", "x"
    )


@each_of("engine", MARKING, "replacing")
def test_a_letter_below_the_position_at_which_the_table_was_filled(make: Make, engine: str) -> None:
    """The connector sent both late, behind the filling: the delete is dropped as loaded, and so is the letter."""
    fed, ledger = make(engine), MemoryLedger("s")
    ledger.claim("x")
    ledger.record(TopicFacts("id", 1, 0))
    a = insert(1, "a", 100)
    position = 1 << 62
    fed.log[0] = list(enumerate([a, insert(2, "bad", 110), delete(row(2, "bad"), 120)]))
    fed.apply(0, 0, 1)
    ledger.results([FinishedRange("t", "id", 0, 0, 1, state=fed.states[0].to_json())])
    # The records came after the rows were read: `shows` does not decide, the position does.
    ledger.record(TableRefilled("id", 0, 1, position=position, epoch=0, until=SENT + CLOCKS))
    fed.restart()
    fed.states[0] = States(ledger, "id", 1, None).at(0, 1)
    assert fed.states[0].loaded.position == position
    fed.apply(0, 2, 3)
    ledger.results([FinishedRange("t", "id", 0, 1, 3, state=fed.states[0].to_json())])
    assert fed.view() == [(1, "a")]
    fed.restart()
    retry = LetterRetry(
        fed.sink(0),
        ledger,
        States(ledger, "id", 1, None).at(0, 3),
    )
    retry.run([letter_of(fed, 1)])
    assert fed.view() == [(1, "a")]


def test_a_retry_after_a_purge_and_a_repeated_stretch(make: Make) -> None:
    """The stretch came again after the purge: its delete is recognised and leaves no mark; its letter stays open."""
    fed, ledger = make("replacing"), MemoryLedger("s")
    ledger.claim("x")
    bad, gone = insert(2, "bad", 110), delete(row(2, "bad"), 120)
    fed.log[0] = list(enumerate([insert(1, "a", 100), bad, gone, insert(3, "c", 130), bad, gone, insert(4, "d", 140)]))
    for start, end in ((0, 1), (2, 4)):
        fed.apply(0, start, end)
        ledger.results([FinishedRange("t", "id", 0, start, end, state=fed.states[0].to_json())])
    fed.client.command(f"ALTER TABLE {fed.name} DELETE WHERE id = 2 SETTINGS mutations_sync = 2")  # the purge
    ledger.record(RowsEdited("id", 0, 4, "removed"))
    before = [(1, "a"), (3, "c"), (4, "d")]
    fed.apply(0, 5, 7)
    ledger.results([FinishedRange("t", "id", 0, 4, 7, state=fed.states[0].to_json())])
    assert fed.view() == before
    fed.restart()
    assert list(LetterRetry(fed.sink(0), ledger, fed.states[0]).run([letter_of(fed, 4)]).failed) == [4]
    assert fed.view() == before


@each_of("engine", ENGINES, "sign")
@pytest.mark.parametrize("policy", [{}, {"version_strategy": "kafka_offset"}])
def test_verify_after_a_first_load_once_old_results_were_folded(
    client: Client, database: str, engine: str, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger no longer knows the state at the offset at which the table was filled."""
    events = [
        insert(1, "old", 100),
        *(insert(10 + i, "a", 110 + i) for i in range(1, 9)),
        update(row(1, "old"), row(1, "new"), 200),
    ]
    it = recreated(client, database, engine, monkeypatch, events, **policy)
    it.read((0, 2))
    it.feed.book.claim("fact")
    it.feed.book.record(TableRefilled("second", 0, 2, until=SENT + CLOCKS))
    it.feed.book.keep(2)
    it.feed.book.release()
    for end in range(3, 12):
        it.read((0, end))
    it.feed.book.claim("fold")
    monkeypatch.setattr("ch_sink.memory.ledger.fold_due", lambda *_: 3)
    it.feed.book.release()
    assert it.verify() == (0, 0, 0)


@each_of("engine", ENGINES, "versioned")
def test_purge_and_repair_after_a_resync_against_a_recreated_topic(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart, further changes and a purge behind the same filling."""
    events = [
        insert(1, "old", 100),
        update(row(1, "old"), row(1, "new"), 120),
        insert(2, "b", 130),
        delete(row(2, "b"), 140),
        insert(3, "c", 150),
    ]
    it = recreated(client, database, engine, monkeypatch, events)
    it.read((0, 2), (0, 5))
    resynced(it.refill, apply=True, against="topic")
    it.read((0, 6))
    assert it.verify() == (0, 0, 0)
    before = it.view()
    assert before == [(1, "new"), (3, "c"), (9, "x")]
    purged(it.subject, it.own, {0: 6}, apply=True, settle=0.0)
    assert it.view() == before
    it.client.command(f"ALTER TABLE {database}.t DELETE WHERE id = 1 SETTINGS mutations_sync = 2")
    done = repaired(it.subject, Options(patience=0), apply=True)
    assert (done.rows, done.left, done.too_new) == (1, 0, 0)
    assert it.view() == before
