"""The product as a user runs it: configuration files, ``ch_sink`` commands in processes of their own."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from ch_sink.cli import main
from ch_sink.clickhouse import Client
from ch_sink.config import Config, load_job
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.tasks import Task, TaskResult
from ch_sink.wiring.streams import SharedTopics, stream_ports, stream_settings
from ch_sink.wiring.worker import run_configured
from tests.support.recorded import equal

ROOT = Path(__file__).resolve().parent.parent.parent


def config_file(
    folder: Path,
    kafka: LocalKafka,
    clickhouse: EmbeddedClickHouse,
    topic: str,
    table: str,
    database: str,
    properties: Mapping[str, str] | None = None,
    **more: Any,
) -> Path:
    """One stream's YAML file, as the README shows it; ``properties`` are further ones of Kafka."""
    settings: dict[str, Any] = {
        "kafka": {"topic": topic, "bootstrap.servers": kafka.bootstrap, **(properties or {})},
        "clickhouse": {"url": clickhouse.url, "database": database, "table": table},
        **more,
    }
    path = folder / f"{table}.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Place:
    """Where a stream of a test runs: Kafka, ClickHouse with a database of its own, and a folder for files."""

    folder: Path
    kafka: LocalKafka
    clickhouse: EmbeddedClickHouse
    client: Client
    database: str

    def config(self, topic: str, table: str, **more: Any) -> Path:
        """The YAML file of a stream from this Kafka into this database."""
        return config_file(self.folder, self.kafka, self.clickhouse, topic, table, self.database, **more)

    def differences(self, source: str, stream: str, table: str) -> list[str]:
        """What of the table differs from the source's final rows."""
        return equal(self.client, self.database, source, stream, table)

    def count(self, table: str) -> int:
        return int(self.rows(f"SELECT count() AS n FROM {{db}}.{table}")[0]["n"])

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Rows of a query; ``{db}`` is the test's database."""
        return [dict(row) for row in self.client.rows(sql.replace("{db}", self.database))]


@pytest.fixture
def place(tmp_path: Path, kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str) -> Place:
    return Place(tmp_path, kafka, clickhouse, client, database)


def command(*words: str | Path, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``ch_sink …`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "ch_sink", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )


def inside(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``ch_sink …`` in this process: the same words, streams and exit code in a fraction of the time."""
    out, errors = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(errors):
        try:
            main([str(word) for word in words])
            code: Any = 0
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess([*words], code or 0, out.getvalue(), errors.getvalue())


def statuses(configs: Sequence[Path]) -> list[Any]:
    """What ``status --json`` says of the streams."""
    done = inside("status", *configs, "--json")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["streams"])


def run_inline(config: Path, most: int | None = None) -> None:
    """Apply what the topic holds now, at most so many offsets of it."""
    run_stream(load_job(config).only(), most)


def run_stream(settings: Config, most: int | None = None) -> None:
    """The same of one stream of a file."""
    text = settings.to_task_json()

    def execute(tasks: Sequence[Task]) -> list[TaskResult]:
        return [run_configured(text, task) for task in tasks]

    with closing(SharedTopics()) as topics:
        ports = stream_ports(settings, topics)
        coordinator = Coordinator(stream_settings(settings), ports)
        coordinator.open()
        while ranges := coordinator.plan(ports.topics.state(settings.kafka.topic), most):
            coordinator.run_batch(ranges, execute)
            if most is not None:
                break
        coordinator.close()
