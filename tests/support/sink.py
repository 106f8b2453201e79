"""The product as a user runs it: configuration files, ``ch_sink`` commands in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka.broker import LocalKafka

__all__ = ["ROOT", "command", "config_file"]

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
        "checkpoint": str(folder / "checkpoints" / table),
        **more,
    }
    path = folder / f"{table}.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


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


def statuses(configs: Sequence[Path]) -> list[Any]:
    """What ``status --json`` says of the streams."""
    done = command("status", *configs, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["streams"] if isinstance(json.loads(done.stdout), dict) else json.loads(done.stdout)
