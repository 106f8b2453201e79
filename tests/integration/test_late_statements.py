"""Statements that mark rows of a collapsing table, sent again while the first ones still run."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client
from ch_sink.clickhouse.table_admin import ClickHouseTableAdmin
from ch_sink.errors import ChSinkError
from ch_sink.model.policy import policy_of
from ch_sink.ports import Fence
from ch_sink.trust.repair import repaired
from ch_sink.trust.subject import Options
from tests.support.hand import insert
from tests.support.hand_commands import Hand, hand
from tests.support.hand_steps import Rows

pytestmark = pytest.mark.integration


def stored(client: Client, database: str) -> Hand:
    it = hand(client, database, "collapsing", [insert(1, "a", 100), insert(2, "b", 110)])
    it.read_all()
    return it


@contextmanager
def still_running(client: Client, database: str, fence: Fence) -> Iterator[None]:
    """A statement of this execution, whose answer did not come, cancels both rows within the next seconds."""
    slow = (
        f"INSERT INTO {database}.t (id, v, _version, _sign) SELECT id, v, _version, -1 FROM {database}.t "
        "WHERE sleepEachRow(0.7) = 0"
    )

    def run() -> None:
        with suppress(ChSinkError):
            client.command(slow, again=False, query_id=fence.query_id)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        running = f"SELECT count() AS n FROM system.processes WHERE position(query, '{database}.t (id') > 0"
        while client.rows(running)[0]["n"] < 2:  # itself, and the question
            assert thread.is_alive()
        yield
    finally:
        thread.join()


def sums(client: Client, database: str) -> list[int]:
    found = client.rows(f"SELECT toInt64(sum(_sign)) AS n FROM {database}.t GROUP BY id ORDER BY id")
    return [int(row["n"]) for row in found]


def test_a_truncate_ends_an_earlier_one_that_still_runs(client: Client, database: str, own_tables: str) -> None:
    it = stored(client, database)
    ledger = ClickHouseLedger(client, own_tables, "ledger", f"late_{database}")
    claim = ledger.claim("run")
    admin = ClickHouseTableAdmin(client, database, "t", policy_of(truncate="apply"))
    with still_running(client, database, ledger.begin("id", 0, claim, "earlier")):
        admin.truncate(it.feed.admin.table, 1 << 120, "_version", lambda: [ledger.begin("id", 0, claim, "later")])
    assert (it.view(), sums(client, database)) == ([], [0, 0])


def test_a_repair_ends_an_earlier_one_that_still_runs(client: Client, database: str) -> None:
    it = stored(client, database)
    it.source = Rows([])
    subject = it.subject
    topic = subject.topic.state(subject.settings.topic)
    claim = subject.ledger.claim("repair-earlier")
    earlier = subject.ledger.begin(topic.topic_id, 0, claim, "repair")
    subject.ledger.release()
    with still_running(client, database, earlier):
        repaired(subject, Options(patience=0, against="source", condition="true"), apply=True)
    assert (it.view(), sums(client, database)) == ([], [0, 0])
