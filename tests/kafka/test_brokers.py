"""One of three brokers is killed and comes back while a job runs: nothing to do by hand, nothing lost or twice."""

import base64
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ch_sink.clickhouse import Client
from ch_sink.errors import BrokerUnavailable
from ch_sink.local import free_port
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.stream.pace import Pauses
from tests.support.kafka import fresh_topic
from tests.support.live_job import LiveJob
from tests.support.shop import Shop

_HEAP_MB = 256


class Node(LocalKafka):
    """A broker that is also one of the controllers."""

    def __init__(self, number: int, folder: Path, ports: Sequence[tuple[int, int]], cluster: str) -> None:
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, (_, port) in enumerate(ports, start=1))
        copies = {
            f"{topic}.{setting}": value
            for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
            for setting, value in (("replication.factor", "3"), ("min.isr", "2"))
            if (topic, setting) != ("offsets.topic", "min.isr")
        }
        settings = {
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "min.insync.replicas": "2",
            # A broker that is killed is missed after some seconds.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "1000",
            **copies,
        }
        super().__init__(path=folder, kind="kafka", heap_mb=_HEAP_MB, settings=settings)
        self._ports = ports[number - 1]
        self._cluster = cluster

    def _format(self, java: Path, classpath: str, properties: Path) -> None:
        if (self.folder / "topics" / "meta.properties").exists():
            return
        tool = ["kafka.tools.StorageTool", "format", "-t", self._cluster, "-c", str(properties)]
        subprocess.run([str(java), "-cp", classpath, *tool], check=True, capture_output=True, timeout=120)


class KafkaCluster:
    """Made by `kafka_cluster`; has what tests use of a `LocalKafka`."""

    kind = "kafka"

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)
        # Kept: one that is garbage-collected cancels its pending answers.
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap})

    @property
    def bootstrap(self) -> str:
        """All three addresses."""
        return ",".join(node.bootstrap for node in self.nodes)

    def create_topic(self, name: str, partitions: int = 3) -> None:
        """A topic of which each broker has a copy; two have an event before it counts as written."""
        self._admin.create_topics([NewTopic(name, partitions, 3)])[name].result(60)
        self.until_led(name, partitions)

    def leaders(self, topic: str) -> dict[int, int]:
        """Partition → the number of the broker that leads it, -1 while none does."""
        found = self._admin.list_topics(topic, timeout=20).topics[topic]
        return {n: p.leader for n, p in found.partitions.items()}

    def until_led(self, topic: str, partitions: int) -> None:
        deadline = time.monotonic() + 60
        while len(found := self.leaders(topic)) < partitions or -1 in found.values():
            assert time.monotonic() < deadline, found
            time.sleep(0.1)

    def until_whole(self, topics: Sequence[str]) -> None:
        """Wait until all brokers have all copies again."""
        deadline = time.monotonic() + 120
        while True:
            places = [p for t in topics for p in self._admin.list_topics(t, timeout=20).topics[t].partitions.values()]
            if places and all(len(p.isrs) == len(self.nodes) for p in places):
                return
            assert time.monotonic() < deadline, [(p.id, p.isrs) for p in places]
            time.sleep(0.2)


@contextmanager
def kafka_cluster() -> Iterator[KafkaCluster]:
    """Start three brokers. Raises BrokerUnavailable where none can be started."""
    folder = Path(tempfile.mkdtemp(prefix="ch_sink-kafka-"))
    cluster = "C" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
    ports = [(free_port(), free_port()) for _ in range(3)]
    nodes = [Node(n, folder / str(n), ports, cluster) for n in (1, 2, 3)]
    try:
        # Together: one alone has no quorum.
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(Node.start, nodes))
        yield KafkaCluster(nodes)
    finally:
        for node in nodes:
            node.halt(graceful=False)
        shutil.rmtree(folder, ignore_errors=True)


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
