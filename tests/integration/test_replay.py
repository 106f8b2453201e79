"""`replay` of any range leaves a right table as it is, and mends or fills others."""

import random
from dataclasses import replace

import pytest

from ch_sink.clickhouse import ClickHouseHandover, ClickHouseWriter, Client
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.errors import StreamFailed
from ch_sink.trust.own_tables import OwnTables
from ch_sink.trust.purge import purged
from ch_sink.trust.replay import replayed
from ch_sink.trust.subject import Subject
from tests.support.busy import ENGINES, feed_of
from tests.support.choose import some
from tests.support.hand import PLACEHOLDER, key_change, postgres
from tests.support.hand_commands import each_of, hand, timed
from tests.support.hand_steps import lose
from tests.support.hand_tables import ENGINES as ENGINES_BY_HAND
from tests.support.hand_tables import delete, insert, key, row, update
from tests.support.recorded import equal
from tests.support.trust import subject_of

pytestmark = pytest.mark.integration


def fed(client: Client, database: str, engine: str) -> Subject:
    feed = feed_of(client, database, "postgres", "acct", engine)
    feed.run(random.Random(1), longest=2000)
    feed.runner.stop()
    return subject_of(client, database, feed, "postgres-busy-json_plain", ("id", "k"))


@pytest.mark.parametrize(("engine", "times"), some([(e, n) for e in ENGINES for n in (1, 5)], [("collapsing", 1)]))
def test_any_range_leaves_the_table_as_it_is(client: Client, database: str, engine: str, times: int) -> None:
    subject, rng = fed(client, database, engine), random.Random(engine)
    topic = subject.topic.state("")
    for _ in range(times):
        bounds = {p: sorted((rng.randint(0, high), rng.randint(0, high))) for p, high in topic.high.items()}
        done = replayed(subject, {p: a for p, (a, _) in bounds.items()}, {p: b for p, (_, b) in bounds.items()})
        assert all(start <= bounds[p][0] for p, (start, _) in done.ranges.items())
        assert equal(client, database, "postgres-busy", "postgres", "acct") == []


@pytest.mark.long
def test_a_lost_row_comes_back_and_another_table_is_filled(client: Client, database: str) -> None:
    subject = fed(client, database, "replacing")
    high = subject.topic.state("").high
    client.command(f"CREATE TABLE {database}.other AS {database}.acct")
    done = replayed(subject, dict.fromkeys(high, 0), high, "other")
    assert done.table == f"{database}.other"
    rows = "SELECT count() AS n, sum(sipHash64(*)) AS h FROM (SELECT * EXCEPT(_version) FROM {} FINAL)"
    assert client.rows(rows.format(f"{database}.other")) == client.rows(rows.format(f"{database}.acct"))
    client.command(f"TRUNCATE TABLE {database}.acct")
    replayed(subject, dict.fromkeys(high, 0), high)
    assert equal(client, database, "postgres-busy", "postgres", "acct") == []


@pytest.mark.long
def test_a_table_of_changes_is_not_filled_twice(client: Client, database: str) -> None:
    subject = fed(client, database, "append")
    high = subject.topic.state("").high
    with pytest.raises(StreamFailed, match="would store them a second time"):
        replayed(subject, dict.fromkeys(high, 0), high)


class Killed(BaseException):
    """The process ends."""


@pytest.mark.parametrize("writes", some([(n,) for n in (0, 3, 10, 30)], [(10,)]))
def test_a_replay_that_is_killed_shows_no_row_that_was_purged(
    client: Client, database: str, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    subject = fed(client, database, "replacing")
    high = subject.topic.state("").high
    tables = (StateTable(client, database, f"ch_sink_{name}") for name in ("dead_letters", "handover", "pending"))
    own = OwnTables(client, subject.settings.name, *tables)
    assert purged(subject, own, high, apply=True, settle=0.0).rows > 0
    real, seen = ClickHouseWriter.write, []

    def write(self: ClickHouseWriter, *what: object, **more: object) -> int:
        if self._table.name == "acct":
            seen.append(1)
            if len(seen) > writes:
                raise Killed
        return real(self, *what, **more)  # type: ignore[arg-type]

    # Chunks so small that deletes are in later ones.
    small = replace(subject, settings=replace(subject.settings, chunk_offsets=100))
    monkeypatch.setattr(ClickHouseWriter, "write", write)
    with pytest.raises(Killed):
        replayed(small, dict.fromkeys(high, 0), high)
    assert equal(client, database, "postgres-busy", "postgres", "acct") == []
    monkeypatch.undo()
    replayed(subject, dict.fromkeys(high, 0), high)
    assert equal(client, database, "postgres-busy", "postgres", "acct") == []
    left = f"SELECT name FROM system.tables WHERE database = '{database}' AND name LIKE '%\\_\\_ch%'"
    assert client.rows(left) == []


KEPT = key_change(
    postgres("d", key(1), None, None, 200, 190), postgres("c", key(2), None, row(2, PLACEHOLDER), 200, 190)
)
"""The row's value is that of its old key."""


@each_of("engine", ENGINES_BY_HAND, "replacing", "collapsing")
@pytest.mark.parametrize("parts", [1, 2])
def test_a_range_that_begins_in_the_middle_of_a_key_change(
    client: Client, database: str, engine: str, parts: int
) -> None:
    """The delete half is before the range, or in another partition behind it."""
    first, later = (
        postgres("c", key(1), None, row(1, "long"), 100, 90),
        postgres("c", key(3), None, row(3, "x"), 300, 290),
    )
    events = [[first, *KEPT, later]] if parts == 1 else [[first, *KEPT[:2]], [KEPT[2], later]]
    it = hand(client, database, engine, *events)
    it.read((0, 1), (0, 3), *([(0, 4), (0, 5)] if parts == 1 else [(1, 1), (1, 2)]))
    before = it.view()
    assert before == [(2, "long"), (3, "x")]
    begin, end = ({0: 3}, {0: 5}) if parts == 1 else ({0: 3, 1: 0}, {0: 3, 1: 2})
    client.command(f"CREATE TABLE {database}.other AS {database}.t")
    kept = lambda table: ClickHouseHandover(client, database, "ch_sink_handover", it.feed.name, table)  # noqa: E731
    for into in ("other", ""):
        assert replayed(it.subject, begin, end, into, handover=kept).waiting == 0
    assert sorted(r["v"] for r in client.rows(f"SELECT v FROM {database}.other FINAL")) == ["long", "x"]
    lose(it, 2)
    replayed(it.subject, begin, end, handover=kept)
    assert it.view() == before
    lose(it, 2)
    client.command(f"TRUNCATE TABLE {database}.ch_sink_handover")
    assert replayed(it.subject, begin, end, handover=kept).waiting == 1
    assert it.view() == before[1:]


@each_of("engine", ENGINES_BY_HAND, "replacing", "collapsing")
def test_values_of_key_changes_of_which_the_range_has_a_part(client: Client, database: str, engine: str) -> None:
    """Of the second one it has the delete half, but not the row that the delete half is about."""
    halves = [
        key_change(
            postgres("d", key(old), None, None, 200, at), postgres("c", key(new), None, row(new, PLACEHOLDER), 200, at)
        )
        for old, new, at in ((1, 11, 190), (2, 12, 195))
    ]
    first = [postgres("c", key(i), None, row(i, f"of {i}"), 100, 80 + i) for i in (1, 2)]
    other = postgres("c", key(5), None, row(5, "other"), 150, 150)
    it = hand(client, database, engine, [*first, *halves[0][:2], *halves[1][:2]], [other, halves[0][2], halves[1][2]])
    it.read((0, 2), (0, 4), (0, 6), (1, 3))
    before = it.view()
    assert before == [(5, "other"), (11, "of 1"), (12, "of 2")]
    client.command(f"CREATE TABLE {database}.other AS {database}.t")
    kept = lambda table: ClickHouseHandover(client, database, "ch_sink_handover", it.feed.name, table)  # noqa: E731
    lose(it, 11, 12)
    for into in ("other", ""):
        done = replayed(it.subject, {0: 4, 1: 0}, {0: 6, 1: 3}, into, handover=kept)
        assert (done.ranges[0], done.dead_letters, done.waiting) == ((4, 6), 0, 0)
    assert it.view() == before
    there = client.rows(f"SELECT v FROM {database}.other FINAL WHERE id IN (5, 11, 12)")
    assert sorted(r["v"] for r in there) == ["of 1", "of 2", "other"]


@each_of("engine", ("time", "time-auto"), "time-auto")
def test_an_older_change_of_the_same_time_does_not_come_back(client: Client, database: str, engine: str) -> None:
    """MySQL states whole seconds. The later change is behind the range."""
    events = [insert(1, "a", 100), update(row(1, "a"), row(1, "b"), 110), insert(2, "x", 120), delete(row(2, "x"), 130)]
    it = timed(client, database, engine, events)
    it.read((0, 1), (0, 3), (0, 4))
    assert it.view() == [(1, "b")]
    for first, end in ((0, 1), (0, 3), (1, 3)):
        assert replayed(it.subject, {0: first}, {0: end}).ranges == {0: (first, 4)}
        assert it.view() == [(1, "b")]
