"""Where the suite runs: a local Kafka, and the embedded ClickHouse or a server of the user's."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer

from benchmarks.suite.formats import Record
from benchmarks.suite.workloads import Workload
from ch_sink.clickhouse import ClickHouseSettings, Client, connect, execute
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.registry_server import RegistryServer, registry_server
from tests.support.state_tables import create_statement

__all__ = ["DATABASE", "PARTITIONS", "Place", "place"]

DATABASE = "ch_sink_bench"
PARTITIONS = 4


@dataclass
class Place:
    """Servers and a folder."""

    kafka: LocalKafka
    url: str
    client: Client
    registry: RegistryServer
    folder: Path

    def fill(self, topic: str, records: Iterable[Record]) -> int:
        """Create a topic and write records; returns the bytes of keys and values."""
        self.kafka.create_topic(topic, PARTITIONS)
        # Idempotent: a retried batch must not overtake the next one, as no connector lets it.
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 50, "enable.idempotence": True})
        size = 0
        for record in records:
            size += len(record.key) + len(record.value or b"")
            while True:
                try:
                    partition = record.number % PARTITIONS
                    producer.produce(topic, record.value, record.key, partition=partition, headers=record.headers)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(300)
        return size

    def table(self, workload: Workload, name: str) -> None:
        """A fresh table."""
        self.client.command(f"DROP TABLE IF EXISTS {DATABASE}.{name}")
        self.client.command(workload.create(DATABASE, name))
        if rows := workload.fill(DATABASE, name):
            self.client.command(rows)

    def config(self, workload: Workload, topic: str, table: str, **more: Any) -> Path:
        """The stream's file."""
        settings: dict[str, Any] = {
            "kafka": {"topic": topic, "bootstrap.servers": self.kafka.bootstrap},
            "clickhouse": {"url": self.url, "database": DATABASE, "table": table},
            "spark": {"master": "local[2]"},
            **_deep(workload.settings),
            **more,
        }
        if workload.form == "avro":
            settings["kafka"]["schema.registry.url"] = self.registry.url
        path = self.folder / f"{table}.yaml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return path


def _deep(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {k: dict(v) if isinstance(v, Mapping) else v for k, v in settings.items()}


@contextmanager
def place(url: str | None) -> Iterator[Place]:
    """Start what is needed. ``url``: a ClickHouse server, whose database ``ch_sink_bench`` is dropped."""
    with ExitStack() as parts:
        # Never the mock, and with its code optimised as in production.
        kafka = parts.enter_context(LocalKafka(kind="kafka", lasting=True))
        server = url or parts.enter_context(EmbeddedClickHouse()).url
        client = connect(ClickHouseSettings(url=server))
        client.command(f"DROP DATABASE IF EXISTS {DATABASE}")
        client.command(f"CREATE DATABASE {DATABASE}")
        names = ("ledger", "dead_letters", "handover", "pending")
        execute(client, [create_statement(name, DATABASE, f"ch_sink_{name}") for name in names])
        registry = parts.enter_context(registry_server({}))
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="ch_sink-bench-")))
        yield Place(kafka, server, client, registry, folder)
