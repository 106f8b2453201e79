"""The product as a user runs it: configuration files, ``ch_sink`` commands in processes of their own."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from ch_sink.cli import main
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka.broker import LocalKafka

__all__ = ["ROOT", "command", "config_file", "inside", "statuses"]

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
    shown = json.loads(done.stdout)
    return shown if isinstance(shown, list) else [shown]
