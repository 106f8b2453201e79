"""Rows that were repaired from the source lose to every later change, and win over every earlier one."""

from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust import repair
from ch_sink.trust.fold import Fold
from ch_sink.trust.one_key import erased
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options, states_at
from tests.support.hand import Event
from tests.support.hand_commands import MARKING, Hand, each_of, hand
from tests.support.hand_steps import (
    EVENTS,
    LACKS,
    Rows,
    backup,
    expect_refused,
    killed,
    lose,
    put_back,
    repaired_from_source,
    restore,
)
from tests.support.hand_tables import delete, insert, row, update

pytestmark = pytest.mark.integration

Row = tuple[int, str | None]

FOUR = [insert(1, "a", 10), insert(2, "b", 20), insert(3, "c", 30), insert(4, "d", 40)]


def of_database(op: str, before: Any, after: Any, database: str, pos: int) -> Event:
    """A change of one of SQL Server's databases, whose positions do not compare with the others'."""
    block = {
        "connector": "sqlserver", "name": "srv", "ts_ms": 1_657_655_632_000, "snapshot": "false", "db": database,
        "schema": "dbo", "table": "t", "change_lsn": f"{pos:08x}:00000001:0002",
        "commit_lsn": f"{pos:08x}:00000001:0005", "event_serial_no": 1,
    }  # fmt: skip
    key = {"id": (after or before)["id"]}
    return Event(key, {"before": before, "after": after, "source": block, "op": op, "ts_ms": 1_657_655_632_066})


@each_of("engine", MARKING, "sign")
@pytest.mark.parametrize(
    ("rows", "later", "then"),
    [
        ([(1, "a"), (3, "c")], ("c", 2, None, "new"), [(1, "a"), (2, "new"), (3, "c")]),
        ([(1, "a"), (2, "b"), (3, "c"), (9, "x")], ("u", 9, "x", "xx"), [(1, "a"), (2, "b"), (3, "c"), (9, "xx")]),
        ([(1, "a"), (2, "q"), (3, "c")], ("u", 2, "q", "qq"), [(1, "a"), (2, "qq"), (3, "c")]),
    ],
    ids=["extra", "missing", "different"],
)
def test_a_later_change_of_a_database_that_is_far_behind_another_wins(
    client: Client, database: str, engine: str, rows: list[Row], later: tuple[str, int, Any, Any], then: list[Row]
) -> None:
    first = [
        of_database("c", None, row(1, "a"), "db2", 10),
        of_database("c", None, row(2, "b"), "db2", 20),
        of_database("c", None, row(3, "c"), "db1", 1000),
    ]
    op, id_, old, new = later
    change = of_database(op, row(id_, old) if old else None, row(id_, new), "db2", 40)
    it = hand(client, database, engine, [*first, change])
    it.read((0, 3))
    repaired_from_source(it, *rows)
    it.feed.at = {0: 3}
    it.read((0, 4))
    assert it.view() == then


def test_a_comparison_waits_for_the_database_that_is_behind(client: Client, database: str) -> None:
    events = [
        of_database("c", None, row(1, "a"), "db1", 1000),
        of_database("c", None, row(2, "b"), "db2", 20),
    ]
    it = hand(client, database, "replacing", events)
    it.read((0, 2))
    subject = it.subject
    [(_, (_, state))] = states_at(subject, "id", {0: 2}).items()
    own = state.sources["srv/db2"].commit
    assert 0 < own < state.sources["srv/db1"].commit
    # Positions that are followed beside versions by offset say nothing of what the rows show.
    for ordered, reached in ((state, own), (replace(state, strategy="kafka_offset"), 0)):
        fold = Fold(client, subject.table, subject.settings, subject.topic, subject.decoder)
        fold.begin({0: 2}, {0: (2, ordered)})
        assert fold.commit() == reached
        fold.close()


@each_of("engine", ["replacing", "versioned", "collapsing"], "collapsing")
def test_a_later_change_of_a_database_that_had_sent_nothing_wins(client: Client, database: str, engine: str) -> None:
    """The repair brings a row of the second database before its snapshot does."""
    first = of_database("c", None, row(1, "a"), "db1", 1000)
    later = [
        of_database("r", None, row(2, "b"), "db2", 10),
        of_database("u", row(2, "b"), row(2, "bb"), "db2", 20),
    ]
    it = hand(client, database, engine, [first, *later])
    it.read((0, 1))
    repaired_from_source(it, (1, "a"), (2, "b"))
    it.feed.at = {0: 1}
    it.read((0, 3))
    assert it.view() == [(1, "a"), (2, "bb")]


@each_of("engine", [*MARKING, "versioned"], "replacing")
@pytest.mark.parametrize("more", [{}, {"version_strategy": "kafka_offset"}], ids=["positions", "offsets"])
@each_of("now", [[(6, "z")], []], [])
def test_a_repair_wins_over_the_last_change_that_the_table_had_lost(
    client: Client, database: str, engine: str, now: list[Row], more: dict[str, str]
) -> None:
    events = [insert(1, "a", 10), insert(6, "x", 100), update(row(6, "x"), row(6, "y"), 110)]
    it = hand(client, database, engine, events, **more)
    it.read((0, 2))
    backup(it)
    it.read((0, 3))
    put_back(it, 6)
    repaired_from_source(it, (1, "a"), *now)
    assert it.view() == [(1, "a"), *now]


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


def filled_anew(it: Hand, then: list[Row]) -> None:
    """The remedy that the error names."""
    it.source = Rows(then)
    resynced(it.refill, apply=True)
    it.read_all()
    assert it.view() == then
    assert it.verify_source() == (0, 0, 0)
    it.read_all()


@each_of("engine", MARKING, "replacing")
def test_a_repair_that_wrote_nothing_stops_no_stream(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = hand(client, database, engine, FOUR)
    it.read((0, 3))
    it.source = Rows([(1, "a"), (2, "z"), (3, "c")])
    with killed(monkeypatch, repair, "statements"):
        repaired(it.subject, Options(patience=0, against="source"), apply=True)
    it.read_all()
    assert it.view() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


@each_of("engine", MARKING, "replacing")
def test_a_table_of_after_a_repair_is_restored(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, FOUR)
    it.read((0, 2))
    repaired_from_source(it, (1, "a"), (2, "z"))
    backup(it)
    it.feed.at = {0: 2}
    it.read((0, 4))
    restore(it)
    expect_refused(it, LACKS, "resync CONFIG --apply`")
    filled_anew(it, [(1, "a"), (2, "z"), (3, "c"), (4, "d")])


@each_of("engine", MARKING, "replacing")
def test_a_table_that_lost_its_newest_row_after_a_repair(client: Client, database: str, engine: str) -> None:
    """The repaired row is below the last change of the partition that lags; the newest row is lost."""
    other = [insert(6, "x", 100), update(row(6, "x"), row(6, "y"), 110), insert(7, "q", 120)]
    it = hand(client, database, engine, [insert(1, "a", 10)], other)
    it.read((0, 1), (1, 2))
    it.read((1, 3))
    repaired_from_source(it, (1, "a"), (7, "q"))
    lose(it, 7)
    expect_refused(it, LACKS, "resync CONFIG --apply`")
    filled_anew(it, [(1, "a"), (7, "q")])


@each_of("engine", ["replacing", "sign", "versioned"], "replacing")
def test_a_row_that_is_repaired_from_the_topic_gets_its_own_version(client: Client, database: str, engine: str) -> None:
    """The other partition has no record yet, so that a row of the source would get the lowest version."""
    it = hand(client, database, engine, FOUR, [])
    it.read_all()
    before = it.stored()
    lose(it, 4)
    done = repaired(it.subject, Options(patience=0), apply=True)
    assert (done.rows, done.left) == (1, 0)
    assert it.stored() == before
    it.read_all()
