"""Waiting for the inserts of an earlier execution that the server still runs."""

import threading
import time
from contextlib import closing, suppress

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client, await_earlier_inserts, detect
from ch_sink.errors import ClickHouseError, ClickHouseUnavailable
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.policy import policy_of
from ch_sink.ports import Fence
from ch_sink.table.model import TargetTable
from tests.support.endpoint import await_query, settings_for

pytestmark = pytest.mark.integration


@pytest.fixture
def table(client: Client, database: str) -> TargetTable:
    client.command(f"CREATE TABLE {database}.t (id UInt64, _sign Int8) ENGINE = CollapsingMergeTree(_sign) ORDER BY id")
    return detect(client, database, "t", policy_of())


def begin(client: Client, own_tables: str, stream: str) -> Fence:
    return ClickHouseLedger(client, own_tables, "ledger", stream).begin("id", 0, None, "1/0")


def start(clickhouse: EmbeddedClickHouse, table: TargetTable, query_id: str) -> threading.Thread:
    """An insert that runs for half a minute, unless it is killed."""

    def insert() -> None:
        other = Client(settings_for(clickhouse.url))
        with suppress(ClickHouseError):
            other.command(
                f"INSERT INTO {table.qualified} SELECT number + sleepEachRow(1), 1 FROM numbers(30)",
                settings={"max_block_size": 1, "log_comment": f"{query_id}x"},
                again=False,
            )
        other.close()

    thread = threading.Thread(target=insert, daemon=True)
    thread.start()
    await_query(clickhouse, f"INSERT INTO {table.qualified} SELECT")
    with closing(Client(settings_for(clickhouse.url))) as client:
        # One that is still pending shows no settings; only the fence, which this one lacks, would stop it.
        named = f"SELECT query_id FROM system.processes WHERE startsWith(Settings['log_comment'], '{query_id}x')"
        while not client.rows(named):
            time.sleep(0.05)
    return thread


def test_an_insert_of_an_earlier_execution_is_ended_first(
    clickhouse: EmbeddedClickHouse, client: Client, table: TargetTable, own_tables: str, stream: str
) -> None:
    insert = start(clickhouse, table, begin(client, own_tables, stream).query_id)
    await_earlier_inserts(client, table, begin(client, own_tables, stream))
    insert.join(10)
    assert not insert.is_alive()
    assert client.rows(f"SELECT count() AS n FROM {table.qualified}") == [{"n": 0}]


def test_inserts_of_its_own_and_of_others_go_on(
    clickhouse: EmbeddedClickHouse, client: Client, table: TargetTable, own_tables: str, stream: str
) -> None:
    fence = begin(client, own_tables, stream)
    elsewhere = ClickHouseLedger(client, own_tables, "ledger", stream).begin("id", 10, None, "1/0")
    inserts = [start(clickhouse, table, f.query_id) for f in (fence, elsewhere)]
    await_earlier_inserts(client, table, fence, patience=5)
    assert all(insert.is_alive() for insert in inserts)
    while any(insert.is_alive() for insert in inserts):
        # More than once: an insert that is still pending has no kind yet.
        client.command("KILL QUERY WHERE query_kind = 'Insert' ASYNC")
        inserts[-1].join(0.2)


def test_nothing_is_looked_up_while_one_still_runs(
    clickhouse: EmbeddedClickHouse, client: Client, table: TargetTable, own_tables: str, stream: str
) -> None:
    insert = start(clickhouse, table, begin(client, own_tables, stream).query_id)
    with pytest.raises(ClickHouseUnavailable, match="still runs"):
        await_earlier_inserts(client, table, begin(client, own_tables, stream), patience=-1)
    insert.join(10)
