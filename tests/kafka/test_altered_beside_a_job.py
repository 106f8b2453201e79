"""A table that `init --apply` alters while a job fills it."""

from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.kafka import fresh_topic
from tests.support.live_job import LiveJob
from tests.support.shop import Shop
from tests.support.sink import inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka]


def test_a_column_that_was_ignored_is_filled_as_soon_as_the_table_has_it(
    tmp_path: Path, kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    shop = Shop(tmp_path, kafka, clickhouse, client, database, fresh_topic("altered"))
    file = shop.add("t", evolve="ignore")
    shop.change("t", 5, colour="red")
    shop.flush()
    with LiveJob([file]) as job:
        job.until(lambda: not shop.differences())
        done = inside("init", file, "--apply")
        assert done.returncode == 0, done.stderr
        assert "changed    alter t" in done.stdout
        shop.rows["t"].clear()
        shop.change("t", 5, colour="blue")
        shop.flush()
        newest = f"SELECT count() AS n FROM {database}.t_current WHERE colour = 'blue'"
        job.until(lambda: client.rows(newest) == [{"n": len(shop.rows["t"])}], 20)
