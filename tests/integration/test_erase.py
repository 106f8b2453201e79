"""`erase` removes every stored trace of one key, touches no other, and no filling brings it back."""

import json
import os
import random
import socket
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client, execute
from ch_sink.clickhouse.dead_letters import ClickHouseDeadLetters
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.errors import LedgerConflict, StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.ports import DeadLetter, FinishedRange, RowsEdited
from ch_sink.stream.claims import born
from ch_sink.table.rollup import Rollup, RollupChoice
from ch_sink.trust import one_key as procedure
from ch_sink.trust import purge
from ch_sink.trust.one_key import erased
from ch_sink.trust.own_tables import OwnTables, delete_rows
from ch_sink.trust.purge import purged
from ch_sink.trust.subject import Subject
from ch_sink.trust.successor import SUFFIX
from tests.support.busy import ENGINES, feed_of
from tests.support.hand import OWN, Event, delete, insert, row
from tests.support.hand_commands import MARKING, each_of, final_by_default, hand, made
from tests.support.hand_steps import EVENTS, lose
from tests.support.kills import Killed
from tests.support.state_tables import create_statement
from tests.support.stream import Feed
from tests.support.trust import subject_of

pytestmark = pytest.mark.integration
KEY = ("id", "k")


def fed(client: Client, database: str, engine: str) -> tuple[Feed, Subject, OwnTables]:
    feed = feed_of(client, database, "postgres", "acct", engine, first=400)
    subject = subject_of(client, database, feed, "postgres-busy-json_plain", KEY)
    names = ("dead_letters", "handover", "pending")
    tables = [StateTable(client, database, f"ch_sink_{name}") for name in names]
    return feed, subject, OwnTables(client, feed.name, *tables)


def read(feed: Feed) -> None:
    feed.run(random.Random(1), longest=2000)
    feed.runner.stop()


def rows(client: Client, database: str, *, alive: bool) -> list[dict[str, Any]]:
    """Keys of the table that are alive, or of which only deleted rows are left."""
    live = f"SELECT id, k FROM {database}.acct_current"
    found = live if alive else f"SELECT DISTINCT id, k FROM {database}.acct WHERE (id, k) NOT IN ({live})"
    return client.rows(f"{found} ORDER BY id, k")


def held(client: Client, database: str, key: dict[str, Any]) -> int:
    where = f"id = {key['id']} AND toString(k) = '{key['k']}'"
    return int(client.rows(f"SELECT count() AS n FROM {database}.acct WHERE {where}")[0]["n"])


def everything(client: Client, database: str) -> list[dict[str, Any]]:
    return client.rows(f"SELECT * FROM {database}.acct_current ORDER BY ALL")


def test_a_deleted_key_leaves_all_tables_and_stays_away(client: Client, database: str) -> None:
    feed, subject, own = fed(client, database, "replacing")
    read(feed)
    key = rows(client, database, alive=False)[0]
    life_of_others = everything(client, database)
    letter = letter_of(feed, key)
    feed.letters_of.put([letter], "")
    feed.letters_of.settle([(letter.partition, letter.offset)], "dropped")
    told = erased(subject, own, key, apply=False)
    assert told.rows[f"{database}.acct"] == held(client, database, key) > 0
    assert told.rows[f"{database}.ch_sink_dead_letters"] > 0
    assert "the topic holds" in told.remains[0]
    broken = iter([True, False])

    def dies(client: Client, table: str, condition: str, **more: Any) -> None:
        delete_rows(client, table, condition, **more)
        if next(broken, False):
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(procedure, "delete_rows", dies)
        with pytest.raises(Killed):
            erased(subject, own, key, apply=True)
        assert sum(erased(subject, own, key, apply=True).rows.values()) > 0
    assert set(erased(subject, own, key, apply=True).rows.values()) == {0}
    assert held(client, database, key) == 0
    assert everything(client, database) == life_of_others
    assert all(str(key["id"]) != fact.top for fact in feed.book.facts(RowsEdited))


def test_the_stream_stores_no_row_of_the_key_while_it_is_removed(client: Client, database: str) -> None:
    """It would be removed with the others."""
    it = hand(client, database, "replacing", [*EVENTS, delete(row(1, "a"), 150)])
    it.read_all()
    seen: list[Any] = []

    def beside(client: Client, table: str, condition: str, **more: Any) -> None:
        it.topic([*EVENTS, delete(row(1, "a"), 150), insert(1, "new", 160)])
        with pytest.raises(LedgerConflict):
            it.read_all()
        seen.append(it.subject.states.read([it.feed.name])[it.feed.name].request)
        delete_rows(client, table, condition, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(procedure, "delete_rows", beside)
        erased(it.subject, it.own, {"id": 1}, apply=True)
    assert seen
    assert {(request.wanted, request.by.split(" by ")[0]) for request in seen} == {("pause", "ch_sink purge")}
    it.read_all()
    assert (1, "new") in it.view()


@pytest.mark.long
def test_a_key_that_was_part_of_a_swap_leaves_the_states_of_the_ledger(client: Client, database: str) -> None:
    feed, subject, own = fed(client, database, "replacing")
    read(feed)
    ledger = f"{database}.states"
    execute(client, [create_statement("ledger", database, "states")])
    own = replace(own, ledger=StateTable(client, database, "states"))
    key = rows(client, database, alive=False)[0]
    letter = letter_of(feed, key)
    assert letter.key is not None
    mine, other = letter.key.hex(), b'{"id": 0}'.hex()
    swaps: list[dict[str, str]] = [{mine: "1"}, {mine: "1", other: "2"}, {other: "2", mine: "1"}, {other: "2"}]
    for number, (stream, doubled) in enumerate([*((own.stream, swap) for swap in swaps), ("else", swaps[0])]):
        state = State(doubled=doubled, closed=doubled).to_json()
        client.command(
            f"INSERT INTO {ledger} (stream, entry, end_offset, state) "
            f"VALUES ('{stream}', 'result', {number}, '{state}')"
        )
    assert erased(subject, own, key, apply=False).rows[ledger] == 3
    assert erased(subject, own, key, apply=True).rows[ledger] == 3
    assert ledger not in erased(subject, own, key, apply=True).rows
    found = client.rows(f"SELECT stream, state FROM {ledger} ORDER BY end_offset")
    states = [State.from_json(str(row["state"])) for row in found]
    assert all(state.doubled == state.closed for state in states)
    assert [state.doubled for state in states] == [{}, {other: "2"}, {other: "2"}, {other: "2"}, {mine: "1"}]
    # While the transaction goes on, the stream has to remember it.
    part, end = letter.partition, subject.topic.state("").high[letter.partition]
    topic = subject.topic.state("")
    feed.book.claim("test")
    open_swap = State(doubled={mine: "1"}).to_json()
    feed.book.results([FinishedRange(feed.topic, topic.topic_id, part, end, end, state=open_swap)])
    feed.book.release()
    with pytest.raises(StreamFailed, match="swap of keys"):
        erased(subject, own, key, apply=True)


def letter_of(feed: Feed, key: dict[str, Any]) -> DeadLetter:
    """A record of the key, as a dead letter."""
    for partition, records in feed.records.items():
        for offset, raw in zip(records.offsets.tolist(), records.keys, strict=True):
            if raw is not None and json.loads(raw) == key:
                return DeadLetter(feed.topic, partition, offset, 0, raw, b"value", (), "decode", None, "poison")
    raise LookupError(key)


def test_letters_of_a_former_topic_stay_and_those_of_another_stream_are_named(client: Client, database: str) -> None:
    """The former topic had another row's record at the offset of the key's event."""
    it = hand(client, database, "replacing", [*EVENTS, delete(row(1, "a"), 150)])
    it.read_all()
    [place] = [(p, o) for p, r in it.feed.records.items() for o, k in zip(r.offsets.tolist(), r.keys, strict=True)
               if k is not None and json.loads(k) == {"id": 1}][:1]  # fmt: skip
    topic_id = it.feed.letters_of.topic_id
    for stream, topic, key in ((it.feed.name, "former", b'{"id": 2}'), ("before", topic_id, b'{"id": 1}')):
        letters = ClickHouseDeadLetters(client, database, "ch_sink_dead_letters", stream, topic)
        letters.put([DeadLetter(it.feed.topic, *place, 0, key, b"value", (), "decode", None, "poison")], "")
    found = erased(it.subject, it.own, {"id": 1}, apply=True)
    [said] = [text for text in found.remains if "for stream before" in text]
    left = client.rows(f"SELECT stream, topic_id FROM {database}.ch_sink_dead_letters ORDER BY stream")
    assert {(row["stream"], row["topic_id"]) for row in left} == {(it.feed.name, "former"), ("before", topic_id)}
    client.command(said.partition("for good: ")[2], settings={"mutations_sync": 2})
    left = client.rows(f"SELECT stream FROM {database}.ch_sink_dead_letters")
    assert [row["stream"] for row in left] == [it.feed.name]


@pytest.mark.long
@pytest.mark.parametrize(
    "engine", [pytest.param(e, marks=() if e == "collapsing" else pytest.mark.long) for e in ENGINES]
)
def test_a_row_that_lives_is_erased_only_on_demand(client: Client, database: str, engine: str) -> None:
    feed, subject, own = fed(client, database, engine)
    read(feed)
    key = rows(client, database, alive=True)[0]
    with pytest.raises(StreamFailed, match="the row is not deleted"):
        erased(subject, own, key, apply=True)
    assert held(client, database, key) > 0
    erased(subject, own, key, apply=True, live=True)
    assert held(client, database, key) == 0
    assert key not in rows(client, database, alive=True)


def test_what_would_come_back_at_once_is_refused(client: Client, database: str) -> None:
    feed, subject, own = fed(client, database, "replacing")
    feed.chunk(0, 5)
    key = client.rows(f"SELECT id, k FROM {database}.acct LIMIT 1")[0]
    feed.runner.stop()
    with pytest.raises(StreamFailed, match=r"is not stored yet|the row is not deleted"):
        erased(subject, own, key, apply=True)
    with pytest.raises(StreamFailed, match="the given key has"):
        erased(subject, own, {"id": 1}, apply=True)
    with pytest.raises(StreamFailed, match="does not fit"):
        erased(subject, own, {**key, "id": "x"}, apply=True)


@each_of("engine", MARKING, "replacing")
def test_a_user_who_reads_with_final_by_default(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FINAL hides marks and what is below them: tables looked as if they were taken back, and nothing was purged."""
    events = [*EVENTS[:2], delete(row(2, "b"), 130)]
    it = hand(final_by_default(client), database, engine, events)
    it.read((0, 2), (0, 3))
    it.read_all()
    it.topic([*events, insert(4, "d", 140)])
    it.read((0, 4))
    steps: list[str] = []

    def removed(client: Client, table: str, condition: str) -> None:
        # Subqueries of a mutation have the settings of the server's default profile.
        sql = f"SELECT count() AS n FROM (SELECT * FROM {table} SETTINGS final = 0) WHERE {condition}"
        steps.append(str(client.rows(sql, settings={"final": 1})[0]["n"]))
        delete_rows(client, table, condition)

    monkeypatch.setattr(purge, "delete_rows", removed)
    assert purged(it.subject, it.own, {0: 4}, apply=True, settle=0.0).rows == 2
    assert (steps, [r[0] for r in it.stored()]) == (["1", "1"], [1, 4])


def test_an_erasure_names_dead_letters_that_have_no_key(client: Client, database: str) -> None:
    """Configured columns are the key: what cannot be read may be of any row."""
    poison = Event(None, {**(EVENTS[0].value or {}), "after": {"id": "secret", "v": "a"}})
    events = [Event(None, e.value) for e in (*EVENTS[:2], delete(row(1, "a"), 120))]
    chosen = policy_of(key_columns=("id",))
    it = made(client, database, OWN["replacing"], chosen, [[events[0], poison, *events[1:]]])
    it.read((0, 4))
    assert (it.view(), it.feed.letters) == ([(2, "b")], 1)
    remains = erased(it.subject, it.own, {"id": 1}, apply=True).remains
    assert remains[-1].startswith("1 dead letter without a Kafka key may belong to any row")


def test_what_killed_commands_left_goes_with_the_row_and_rollups_are_named(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", [*EVENTS, delete(row(5, "e"), 150)])
    it.read((0, 6))
    client.command(f"CREATE TABLE {database}.t{SUFFIX} AS {database}.t")
    shadow = f"CREATE TABLE {database}.t__ch_sink_shadow AS {database}.t COMMENT 'made by {socket.gethostname()}"
    client.command(f"{shadow} {os.getppid()} {born(os.getppid())}'")
    with pytest.raises(StreamFailed, match="verifying or repairing this table now"):
        erased(it.subject, it.own, {"id": 5}, apply=True)
    assert [r for r in it.stored() if r[0] == 5] != []
    client.command(f"DROP TABLE {database}.t__ch_sink_shadow SYNC")
    client.command(f"{shadow} 999999 1'")
    rollup = Rollup(RollupChoice("by_v", ()), database, "t", "_sign", (), (), ())
    done = erased(replace(it.subject, rollups=(rollup,)), it.own, {"id": 5}, apply=True)
    assert any(text.startswith("by_v: rollups keep") for text in done.remains)
    assert (
        client.rows(f"SELECT name FROM system.tables WHERE database = '{database}' AND startsWith(name, 't__')") == []
    )


def test_rows_of_another_stream_do_not_count_as_left_by_an_erasure(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", [*EVENTS, delete(row(5, "e"), 150)])
    it.read((0, 2), (0, 6))
    client.command(
        f"INSERT INTO {database}.t SELECT 100, 'o', _version + toUInt128(1152921504606846976), 0 "
        f"FROM {database}.t WHERE id = 4 LIMIT 1"
    )
    erased(replace(it.subject, condition="id < 100"), it.own, {"id": 5}, apply=True)
    results = list(it.feed.book._book.results)
    lose(it, 100)  # the other stream erases its row
    it.read_all()
    assert [r for r in it.stored() if r[0] == 5] == []
    assert it.feed.book._book.results == results
