"""Rows that go or change between the moment when they were found to differ and the report."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust.report import Report
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import FOUND, verified
from tests.support.hand import insert
from tests.support.hand_commands import hand
from tests.support.hand_steps import lose, plant

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
