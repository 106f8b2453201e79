"""A table of several topics that loses rows: no new table can take its place, so `repair` alone has to do."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.trust.purge import purged
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options, Subject
from tests.support.hand import APPEND, OWN, Event, delete, insert, row
from tests.support.hand_commands import MARKING, Hand, each_of, made
from tests.support.hand_steps import (
    LACKS,
    Rows,
    empty,
    expect_refused,
    lose,
)

pytestmark = pytest.mark.integration

EVENTS = [insert(1, "a", 100), insert(2, "b", 110), insert(3, "c", 120), delete(row(2, "b"), 130)]
NOW = [(1, "a"), (3, "c")]


class Shared(Hand):
    """One of the topics of a table."""

    @property
    def subject(self) -> Subject:
        return replace(super().subject, condition="place = 'eu'", key=("place", "id"))


def shared(client: Client, database: str, engine: str) -> Shared:
    clause, own = OWN[engine]
    chosen = policy_of(on_bad_record="fail", add=(("place", "'eu'"),), source_columns=("place",))
    it = made(client, database, (clause, f"place String, {own}"), chosen, [EVENTS], "ORDER BY (place, id)")
    return Shared(client, database, it.feed)


def repair(it: Shared, against: Literal["source", "topic"], rows: Sequence[tuple[int, str]], where: str = "") -> None:
    it.source = Rows(rows)
    options = Options(patience=0, against=against, condition=where)
    done = repaired(it.subject, options, apply=True)
    assert (done.left, done.too_new) == (0, 0)


@each_of("engine", ("replacing", "sign"), "replacing", "sign")
@pytest.mark.parametrize("against", ["source", "topic"])
def test_a_table_that_was_emptied_by_hand_is_repaired_and_goes_on(
    client: Client, database: str, engine: str, against: Literal["source", "topic"]
) -> None:
    it = shared(client, database, engine)
    it.read_all()
    empty(it)
    expect_refused(it, LACKS, "repair CONFIG --apply`")
    with pytest.raises(StreamFailed, match="has the rows of several topics"):
        resynced(it.refill, apply=True)
    repair(it, against, NOW)
    it.topic([*EVENTS, insert(4, "d", 140), delete(row(1, "a"), 150)])
    it.read_all()
    assert it.view() == [(3, "c"), (4, "d")]
    empty(it)
    expect_refused(it, LACKS, "repair CONFIG --apply`")


def test_a_repair_of_some_rows_does_not_hide_that_others_are_lost(client: Client, database: str) -> None:
    it = shared(client, database, "replacing")
    it.read_all()
    empty(it)
    with pytest.raises(StreamFailed, match=LACKS):
        repair(it, "topic", NOW, where="id = 1")
    expect_refused(it, LACKS, "repair CONFIG --apply`")


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
