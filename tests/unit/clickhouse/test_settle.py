"""Waiting for the inserts of a killed attempt."""

import pytest

from ch_sink.clickhouse import ClickHouseSettings, Client, wait_for_inserts
from ch_sink.table.model import Engine, Family, TargetTable

pytestmark = pytest.mark.integration


def test_settling_asks_a_question_the_server_can_answer(client: Client, database: str) -> None:
    table = TargetTable(database, "t", Engine(Family.COLLAPSING, "CollapsingMergeTree", sign_column="s"), ())
    rows = client.rows(
        "SELECT count() AS n FROM system.processes WHERE query_kind = 'Insert' AND position(query, {table:String}) > 0",
        {"table": table.qualified},
    )
    assert rows[0]["n"] == 0
    wait_for_inserts(client, table, patience=5)
    assert isinstance(client.settings, ClickHouseSettings)
