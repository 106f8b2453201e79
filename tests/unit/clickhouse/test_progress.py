"""A task's word on how far its range came: valid until the range has a result."""

import pytest

from ch_sink.clickhouse import ClickHouseLedger, ClickHouseSettings, Client
from ch_sink.clickhouse.progress import ClickHouseProgress
from ch_sink.ports import RangeIntent, RangeResult
from ch_sink.spark.task import settle
from ch_sink.table.model import Engine, Family, TargetTable

pytestmark = pytest.mark.integration


def test_progress_counts_until_the_range_has_a_result(client: Client, own_tables: str, stream: str) -> None:
    progress = ClickHouseProgress(client, own_tables, "ledger", stream)
    ledger = ClickHouseLedger(client, own_tables, "ledger", stream)
    ledger.claim("run")
    assert progress.reached("id", 0, 100) is None
    ledger.intents([RangeIntent("t", "id", 0, 100, 200)])
    progress.put("id", 0, 100, 150, "one")
    progress.put("id", 0, 100, 180, "two")
    progress.put("id", 1, 100, 199, "another partition")
    assert progress.reached("id", 0, 100) == (180, "two")
    assert progress.reached("id", 0, 150) is None
    ledger.results([RangeResult("t", "id", 0, 100, 200, state="end")])
    assert progress.reached("id", 0, 100) is None  # read again on purpose: from its start
    progress.put("id", 0, 100, 120, "again")
    assert progress.reached("id", 0, 100) == (120, "again")
    ledger.release()


def test_settling_asks_a_question_the_server_can_answer(client: Client, database: str) -> None:
    table = TargetTable(database, "t", Engine(Family.COLLAPSING, "CollapsingMergeTree", sign_column="s"), ())
    rows = client.rows(
        "SELECT count() AS n FROM system.processes WHERE query_kind = 'Insert' AND position(query, {table:String}) > 0",
        {"table": table.qualified},
    )
    assert rows[0]["n"] == 0
    settle(client, table, patience=5)
    assert isinstance(client.settings, ClickHouseSettings)
