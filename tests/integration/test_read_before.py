"""What a job that is started again learns of its topics from the ledger."""

from pathlib import Path

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client, execute
from ch_sink.config import load_job
from ch_sink.discovery.job_topics import ReadBefore
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.ports import Terms
from tests.support.ledgers import intent
from tests.support.state_tables import create_statement

pytestmark = [pytest.mark.integration]

LEDGER = "ch_sink_ledger"


def test_topics_are_known_with_the_source_tables_that_their_streams_read_last(
    tmp_path: Path, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(
        "kafka: {topics: 'shop.*', bootstrap.servers: '127.0.0.1:1'}\n"
        f"clickhouse: {{url: '{clickhouse.url}', database: {database}, table: '{{table}}'}}\n"
    )
    jobs = [load_job(path, (), {})]
    assert ReadBefore()(jobs) == set()
    execute(client, [create_statement("ledger", database, LEDGER)])
    for stream, source_tables, reads in (
        ("one", ("orders", "d.p.orders"), True),
        ("whole", ("",), True),
        ("waits", ("d.q.orders",), False),
    ):
        for source_table in source_tables:
            ledger = ClickHouseLedger(client, database, LEDGER, stream)
            ledger.claim(f"{stream}-{source_table}", Terms(source_table=source_table))
            if reads:
                ledger.intents([intent(0, 1)])
            ledger.release()
    assert ReadBefore()(jobs) == {("shop.orders", "d.p.orders"), ("shop.orders", "")}
