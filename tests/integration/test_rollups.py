"""Rollups of a busy stream: beside its table, compared by `verify`, filled by `resync`, `repair` and the job."""

import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed, TableError
from ch_sink.table.rollup import RollupChoice
from ch_sink.trust.repair import repaired
from ch_sink.trust.report import Report, lines
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from tests.integration.test_resync import Case, lose_deletes
from tests.support.busy import feed_of
from tests.support.kills import Kill
from tests.support.stream import Feed
from tests.support.trust import subject_of

pytestmark = pytest.mark.integration

BY_OWNER = RollupChoice(
    "by_owner",
    (("owner", "owner"), ("month", "toYYYYMM(updated)")),
    sums=(("worth", "price"), ("n", "n")),
    avgs=(("mean", "price"),),
    count="accounts",
    where="k % 5 != 4",
)
RECORDS = 200
"""Of each partition: rollups are compared with their own table."""
BY_K = RollupChoice("by_k", (("k", "k % 3"),), count="rows")
SAME = (
    "SELECT owner, toYYYYMM(updated) AS month, sum(price) AS worth, sum(n) AS n, avg(price) AS mean, "
    "toInt64(count()) AS accounts FROM {0}.acct_current WHERE k % 5 != 4 GROUP BY owner, month ORDER BY ALL"
)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that differs is looked at again without waiting long."""
    monkeypatch.setattr("ch_sink.trust.rollups._PAUSE", 0.02)


def fed(client: Client, database: str, engine: str = "collapsing", *rollups: RollupChoice) -> Feed:
    """Half of the records is read; a life ended between the rollup's insert and the table's."""
    feed = feed_of(client, database, "mariadb", "acct", engine, first=RECORDS, rollups=rollups or (BY_OWNER, BY_K))
    kills = (Kill("after insert", nth=1), Kill("after insert", nth=2))
    for partition, end in feed.ends.items():
        feed.chunk(partition, end // 2, *kills)
        kills = ()
    return feed


def read(client: Client, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(str(value) for value in row.values()) for row in client.rows(sql)]


def wrong(client: Client, database: str) -> list[tuple[Any, ...]]:
    """Groups of by_owner that are not those of the table's rows."""
    have = read(client, f"SELECT * FROM {database}.by_owner_current ORDER BY ALL")
    want = read(client, SAME.format(database))
    assert len(want) > 5
    return [row for row in have if row not in want] + [row for row in want if row not in have]


def report_of(client: Client, database: str, feed: Feed) -> Report:
    with verified(subject_of(client, database, feed, "mariadb-busy-json_plain", ("id", "k")), Options()) as found:
        return found.report


@pytest.mark.parametrize("engine", ["collapsing", pytest.param("versioned-collapsing", marks=pytest.mark.long)])
def test_readers_see_what_group_by_gives(client: Client, database: str, engine: str) -> None:
    feed = fed(client, database, engine)
    assert wrong(client, database) == []
    feed.run()
    feed.runner.stop()
    assert wrong(client, database) == []
    client.command(f"OPTIMIZE TABLE {database}.by_owner FINAL")
    assert wrong(client, database) == []
    report = report_of(client, database, feed)
    found = {one["rollup"]: (one["groups"] > 1, one["different"]) for one in report.as_json()["rollups"]}
    assert found == {"by_owner": (True, 0), "by_k": (True, 0)}
    assert report.equal


@pytest.mark.long
def test_groups_that_differ_are_named_and_filled_by_a_repair(client: Client, database: str) -> None:
    feed = fed(client, database)
    feed.runner.stop()
    client.command(f"INSERT INTO {database}.by_k (k, _rows) VALUES (77, 3)")
    report = report_of(client, database, feed)
    assert (report.equal, report.rows_differ) == (False, False)
    assert [(r.rollup, r.different) for r in report.rollups] == [("by_owner", 0), ("by_k", 1)]
    assert "    k=77, _rows=3" in lines(report)
    subject = subject_of(client, database, feed, "mariadb-busy-json_plain", ("id", "k"))
    repaired(subject, Options(), apply=False)
    assert not report_of(client, database, feed).equal
    repaired(subject, Options(), apply=True)
    assert report_of(client, database, feed).equal


@pytest.mark.long
def test_resync_and_repair_leave_rollups_of_the_new_rows(client: Client, database: str) -> None:
    feed = fed(client, database)
    it = Case(client, database, feed)
    feed.runner.stop()
    lose_deletes(it)
    repaired(it.refill.subject, Options(), apply=True)
    assert wrong(client, database) == []
    it.client.command(
        f"INSERT INTO {database}.acct SELECT * REPLACE(id + 910000000 AS id) FROM {database}.acct ORDER BY id LIMIT 30"
    )
    assert not report_of(client, database, feed).equal
    resynced(it.refill, apply=True, against="source")
    assert wrong(client, database) == []
    assert it.rows("SELECT count() FROM {}_current WHERE id > 800000000") == [(0,)]


@pytest.mark.long
def test_a_rollup_that_is_new_or_changed_is_filled_when_the_stream_opens(client: Client, database: str) -> None:
    feed = fed(client, database, "collapsing", BY_K)
    feed.runner.stop()
    for rollup in (BY_OWNER, replace(BY_OWNER, where="k > 2"), replace(BY_OWNER, by=BY_OWNER.by[:1]), BY_OWNER):
        feed.admin.inner = replace(feed.admin.inner, rollups=(rollup, BY_K))
        feed.runner.run_release()
        feed.runner.stop()
        assert report_of(client, database, feed).equal
    assert wrong(client, database) == []
    feed.run()
    assert wrong(client, database) == []


@pytest.mark.long
def test_a_rollup_that_was_taken_out_for_a_while_is_filled_again(client: Client, database: str) -> None:
    feed = fed(client, database)
    feed.runner.stop()
    kept, feed.admin.inner = feed.admin.inner, replace(feed.admin.inner, rollups=())
    feed.run()
    feed.runner.stop()
    assert wrong(client, database) != []
    feed.admin.inner = kept
    feed.runner.run_release()
    assert wrong(client, database) == []


@pytest.mark.long
@pytest.mark.parametrize("released", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_rollup_beside_a_restored_table_and_ledger_is_filled_again(
    client: Client, database: str, released: bool
) -> None:
    """The backup was made between two jobs, or while one had the stream."""
    feed = fed(client, database)
    if released:
        feed.runner.stop()
    book = deepcopy(feed.book._book)
    client.command(f"CREATE TABLE {database}.backup AS {database}.acct")
    client.command(f"ALTER TABLE {database}.backup ATTACH PARTITION ALL FROM {database}.acct")
    feed.run()
    feed.runner.stop()
    feed.book._book = book
    client.command(f"EXCHANGE TABLES {database}.acct AND {database}.backup")
    assert wrong(client, database) != []
    feed.runner.run_release()
    assert wrong(client, database) == []


@pytest.mark.long
def test_a_rollup_is_not_filled_again_behind_a_job_that_has_ended_well(client: Client, database: str) -> None:
    feed = fed(client, database)
    feed.run()
    feed.runner.stop()
    filled = client.rows(f"SELECT uuid FROM system.tables WHERE database = '{database}' AND name = 'by_owner'")
    feed.runner.run_release()
    feed.runner.stop()
    feed.runner.run_release()
    after = client.rows(f"SELECT uuid FROM system.tables WHERE database = '{database}' AND name = 'by_owner'")
    assert after == filled


def test_a_name_that_another_table_has_is_refused(client: Client, database: str) -> None:
    client.command(f"CREATE TABLE {database}.by_k (k Int64) ENGINE = MergeTree ORDER BY k")
    with pytest.raises(TableError, match=r"rollups.by_k: .*by_k` exists, and is not a rollup of"):
        fed(client, database)


def test_a_users_own_view_is_not_replaced(client: Client, database: str) -> None:
    client.command(f"CREATE VIEW {database}.by_k_current AS SELECT 1 AS mine")
    with pytest.raises(TableError, match=r"rollups.by_k: .*by_k_current` exists, and is not a rollup of"):
        fed(client, database)


@pytest.mark.long
def test_a_column_that_the_source_drops_stops_the_stream(client: Client, database: str) -> None:
    feed = fed(client, database)
    for partition, records in feed.records.items():
        lean = [value and re.sub(rb'"price":[^,}]*,', b"", value) for value in records.values]  # type: ignore[arg-type]
        feed.records[partition] = replace(records, values=lean)
    feed.runner.ports.topics.partitions.update(feed.records)  # type: ignore[attr-defined]
    with pytest.raises(StreamFailed, match=r"rollup by_owner uses column 'price' .* lacks"):
        feed.run()
