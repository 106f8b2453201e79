"""Rows that go or change between the moment when they were found to differ and the report."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust.repair import repaired
from ch_sink.trust.report import Report
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import FOUND, verified
from tests.support.hand import insert, key, postgres, row
from tests.support.hand_commands import hand
from tests.support.hand_steps import Rows, lose, plant

pytestmark = pytest.mark.integration


def test_a_report_names_the_rows_that_are_still_there(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", [insert(1, "a", 10), insert(2, "b", 20)])
    it.read_all()
    plant(it, 9, like=1)
    client.command(f"ALTER TABLE {database}.t UPDATE v = 'x' WHERE id < 3 SETTINGS mutations_sync = 2")
    with verified(it.subject, Options(patience=0)) as found:
        assert (found.report.extra, found.report.different, found.report.columns) == (1, 2, {"v": 2})
        lose(it, 1, 9)
        again = Report.of(found.differences, FOUND, 10, stream="s", table=it.subject.table, against="topic", rows=1)
    assert again.columns == {"v": 1}
    assert sorted((e.kind, e.key["id"], tuple(e.columns)) for e in again.examples) == [
        ("different", 1, ("v",)),
        ("different", 2, ("v",)),
    ]


BELOW = [postgres("c", key(1), None, row(1, "a"), 5, 6)] * 40


def test_a_first_change_that_comes_during_the_comparison_is_not_repaired_away(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", BELOW)
    it.source = Rows([(1, "a"), (2, "b")])
    resynced(it.refill, apply=True)

    def change() -> None:
        if len(it.feed.records[0]) == len(BELOW):
            it.topic([*BELOW, postgres("u", key(1), row(1, "a"), row(1, "z"), 20, 20)])
            it.read_all()

    it.source = Rows([(1, "a"), (2, "b")], then=change)
    done = repaired(it.subject, Options(patience=0, against="source"), apply=True)
    assert done.rows == 0
    assert it.view() == [(1, "z"), (2, "b")]
