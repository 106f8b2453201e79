"""`replay` of any range leaves a right table as it is, and mends or fills others."""

import random
from dataclasses import replace

import pytest

from ch_sink.clickhouse import ClickHouseWriter, Client
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.errors import StreamFailed
from ch_sink.trust.own_tables import OwnTables
from ch_sink.trust.purge import purged
from ch_sink.trust.replay import replayed
from ch_sink.trust.subject import Subject
from tests.support.busy import ENGINES, feed_of
from tests.support.choose import some
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
