"""Real databases, Kafka, Kafka Connect with Debezium, and a schema registry, started once for these tests.

What this machine cannot have is skipped, and the skip says what and why.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from ch_sink.local.kafka import LocalKafka
from tests.real.scenario import JSON, Format
from tests.real.stand.connect import Connect, Registry
from tests.real.stand.daemon import Missing
from tests.real.stand.mariadb import MariaDB
from tests.real.stand.postgres import PostgreSQL
from tests.real.writers import Source


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/real/"):
            for mark in (pytest.mark.real, pytest.mark.slow, pytest.mark.kafka, pytest.mark.spark):
                item.add_marker(mark)


@dataclass
class Stand:
    """The parts that could be started; ``missing`` tells why the others are not here."""

    kafka: LocalKafka
    connect: Connect
    sources: list[Source]
    formats: dict[str, Format]
    missing: dict[str, str]


@pytest.fixture(scope="session")
def stand(broker: LocalKafka) -> Iterator[Stand]:
    """Kafka, Kafka Connect, and each database and format that this machine has or lets install."""
    missing: dict[str, str] = {}
    with ExitStack() as parts:
        try:
            connect = Connect(broker.bootstrap)
        except Missing as why:
            pytest.skip(f"no Kafka Connect with Debezium: {why}")
        parts.callback(connect.stop)
        sources: list[Source] = []
        kinds: tuple[tuple[str, Callable[[], Source]], ...] = (("mariadb", MariaDB), ("postgres", PostgreSQL))
        for name, kind in kinds:
            try:
                source = kind()
            except Missing as why:
                missing[name] = f"no {name}: {why}"
                continue
            parts.callback(source.stop)
            source.start()
            sources.append(source)
        if not sources:
            pytest.skip("; ".join(missing.values()))
        formats = {"json": JSON}
        try:
            registry = Registry()
        except Missing as why:
            missing["avro"] = f"no schema registry: {why}"
        else:
            parts.callback(registry.stop)
            registry.start()
            formats["avro"] = Format("avro", registry.converters(), {"schema.registry.url": registry.url})
        connect.start()
        yield Stand(broker, connect, sources, formats, missing)
