"""One of three brokers is killed and comes back while a job runs: nothing to do by hand, nothing lost or twice."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import BrokerUnavailable
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.stream.pace import Pauses
from tests.support.kafka import fresh_topic
from tests.support.kafka_cluster import KafkaCluster, kafka_cluster
from tests.support.live_job import LiveJob
from tests.support.shop import Shop

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def three_brokers() -> Iterator[KafkaCluster]:
    try:
        with kafka_cluster() as cluster:
            yield cluster
    except BrokerUnavailable as error:
        pytest.skip(f"needs real brokers: {error}")


def read(shop: Shop) -> int:
    """Events of the append tables that are stored."""
    tables = [t for t, engine in shop.engines.items() if engine == "append"]
    return sum(int(shop.client.rows(f"SELECT count() AS n FROM {shop.database}.{t}")[0]["n"]) for t in tables)


def test_each_broker_in_turn_is_killed_and_comes_back(
    three_brokers: KafkaCluster, tmp_path: Path, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    shop = Shop(tmp_path, three_brokers, clickhouse, client, database, fresh_topic("three"))  # type: ignore[arg-type]
    engines = ("replacing", "collapsing", "versioned", "append")
    files = [shop.add(engine, engine, partitions=3) for engine in engines]
    topics = [shop.topic(table) for table in shop.rows]
    end = threading.Event()

    def change() -> None:
        while not end.wait(0.02):
            for table in shop.rows:
                shop.change(table)

    changing = threading.Thread(target=change, daemon=True)
    with LiveJob(files, pauses=Pauses(0.1, 1.0)) as job:
        changing.start()
        try:
            for node in three_brokers.nodes:
                before = read(shop)
                job.until(lambda before=before: read(shop) > before)
                number = int(node._settings["node.id"])
                assert number in three_brokers.leaders(topics[0]).values(), "it leads nothing that could be missed"
                node.halt(graceful=False)
                # The other two lead its partitions after some seconds, and the job goes on without it.
                time.sleep(8)
                missing = read(shop)
                job.until(lambda missing=missing: read(shop) > missing + 50)
                assert number not in three_brokers.leaders(topics[0]).values()
                node.start()
                three_brokers.until_whole(topics)
                time.sleep(6)  # leaders move back
        finally:
            end.set()
            changing.join()
        shop.flush()
        job.until(lambda: not shop.differences())
        job.until(lambda: {s.state for s in job.states().values()} == {"running"})
    assert job.failures == {}
