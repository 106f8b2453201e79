"""Three Kafka brokers that form one cluster: each topic is on all of them, and any one of them may die."""

import base64
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from ch_sink.local import free_port
from ch_sink.local.kafka import LocalKafka

__all__ = ["KafkaCluster", "kafka_cluster"]

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
