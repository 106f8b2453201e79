"""Marks that were purged and keys that were erased, and what repairs and emptied tables make of that."""

from dataclasses import replace

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.trust import purge
from ch_sink.trust.one_key import erased
from ch_sink.trust.own_tables import delete_rows
from ch_sink.trust.purge import purged
from ch_sink.trust.resync import resynced
from tests.support.hand import Event
from tests.support.hand_commands import MARKING, Hand, each_of, final_by_default, hand, made
from tests.support.hand_steps import (
    EVENTS,
    LACKS,
    Rows,
    backup,
    empty,
    expect_refused,
    lose,
    put_back,
    repaired_from_source,
)
from tests.support.hand_tables import APPEND, OWN, delete, insert, row, update

pytestmark = pytest.mark.integration


@each_of("engine", MARKING, "replacing")
def test_the_repair_of_a_row_that_came_back_in_the_only_partition(client: Client, database: str, engine: str) -> None:
    it = hand(
        client, database, engine, [insert(6, "x", 100), update(row(6, "x"), row(6, "y"), 110), insert(7, "q", 120)]
    )
    it.read((0, 1))
    backup(it)
    it.read((0, 3))
    put_back(it, 6)
    repaired_from_source(it, (7, "q"))
    it.topic([insert(6, "x", 100), update(row(6, "x"), row(6, "y"), 110), insert(7, "q", 120), insert(6, "new", 130)])
    it.feed.at = {0: 3}
    it.read_all()
    assert it.view() == [(6, "new"), (7, "q")]


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


def of_two_topics(client: Client, database: str, engine: str, *events: Event, **policy: str) -> Hand:
    """A stream that has read these events into a table whose highest version is that of another topic's row."""
    clause, own = OWN.get(engine, APPEND)
    chosen = policy_of(on_bad_record="fail", add=(("w", "'eu'"),), source_columns=("w",), **policy)
    it = made(client, database, (clause, f"w String, {own}"), chosen, [events], "ORDER BY (w, id)")
    it.read((0, len(events)))
    later = "SELECT * REPLACE (7 AS id, 'us' AS w, _version + toUInt128(1000000000000000) AS _version)"
    first = f"(SELECT * FROM {database}.t WHERE id = 1 LIMIT 1)"
    client.command(f"INSERT INTO {database}.t {later} FROM {first}")
    return it


@each_of("engine", MARKING, "replacing")
def test_a_stream_notices_lost_rows_of_its_own_below_those_of_another_topic(
    client: Client, database: str, engine: str
) -> None:
    it = of_two_topics(client, database, engine, *EVENTS[:2])
    it.read_all()
    lose(it, 2)
    expect_refused(it, LACKS, "repair CONFIG --apply`")


def test_a_history_of_two_topics_that_lost_rows_of_one_stops_its_stream(client: Client, database: str) -> None:
    it = of_two_topics(client, database, "append", *EVENTS[:2])
    it.read_all()
    lose(it, 2)
    with pytest.raises(StreamFailed, match=LACKS):
        it.read_all()


@each_of("engine", MARKING, "sign")
def test_a_purge_leaves_the_highest_version_of_the_streams_own_rows(client: Client, database: str, engine: str) -> None:
    it = of_two_topics(client, database, engine, *EVENTS[:2], delete(row(2, "b"), 130), version_strategy="kafka_offset")
    mine = replace(it.subject, key=("w", "id"), condition="w = 'eu'")
    purged(mine, it.own, {0: 3}, apply=True, settle=0.0)
    it.read_all()


@each_of("engine", MARKING, "replacing")
def test_an_emptied_table_is_noticed_after_the_newest_row_was_erased(
    client: Client, database: str, engine: str
) -> None:
    it = hand(client, database, engine, [*EVENTS, delete(row(5, "e"), 150)])
    it.read((0, 2), (0, 6))
    erased(it.subject, it.own, {"id": 5}, apply=True)
    it.read_all()  # the erasure alone is not taken for a loss
    before = it.view()
    assert before == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    empty(it)
    expect_refused(it, LACKS, "resync CONFIG --apply`")


@each_of("engine", MARKING, "sign")
def test_an_erasure_right_after_a_filling(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, EVENTS)
    it.read((0, 2), (0, 5))
    resynced(it.refill, apply=True, against="topic")
    erased(it.subject, it.own, {"id": 5}, apply=True, live=True)
    it.read_all()
    assert it.view() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    empty(it)
    expect_refused(it, LACKS, "resync CONFIG --apply`")


@each_of("engine", MARKING, "replacing")
def test_a_table_filled_after_an_erasure_is_not_compared_with_what_that_left(
    client: Client, database: str, engine: str
) -> None:
    it = hand(client, database, engine, [*EVENTS, delete(row(5, "e"), 150)])
    it.read((0, 2), (0, 6))
    erased(it.subject, it.own, {"id": 5}, apply=True)
    it.source = Rows([(1, "a")])
    resynced(it.refill, apply=True, against="source")
    it.read_all()
    assert it.view() == [(1, "a")]


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
