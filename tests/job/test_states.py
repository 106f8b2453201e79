"""A job as its user runs it, Spark included: paused, stopped, mended and resumed by commands of other processes."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.kafka import fresh_topic
from tests.support.shop import Shop
from tests.support.sink import ROOT, command, inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


class Run:
    """``ch_sink run`` in a process of its own."""

    def __init__(self, log: Path, *words: str | Path) -> None:
        self.log = log
        log.touch()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ch_sink", "run", *map(str, words), "--log-file", str(log), "--log-format", "json"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def until(self, seen: Callable[[], object], seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not seen():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def start(*words: str | Path) -> Run:
        started.append(Run(tmp_path / f"log-{len(started)}", *words))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.mark.long
def test_a_job_is_steered_from_outside_and_a_restart_keeps_the_states(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: EmbeddedClickHouse,
    client: Client,
    database: str,
    run: Callable[..., Run],
) -> None:
    shop = Shop(tmp_path, kafka, clickhouse, client, database, fresh_topic("steer"))
    files = [shop.add("orders"), shop.add("users", "collapsing")]

    def states() -> dict[str, str]:
        shown = inside("status", *files, "--json")
        assert shown.returncode == 0, shown.stderr
        return {s["stream"]: s["state"] for s in json.loads(shown.stdout)["streams"]}

    def send(table: str, **columns: Any) -> None:
        shop.change(table, 10, **columns)
        shop.flush()

    assert states() == {"orders": "idle", "users": "idle"}
    send("orders")
    send("users")
    job = run(*files)
    job.until(lambda: not shop.differences())
    assert states() == {"orders": "running", "users": "running"}

    assert command("pause", *files, "--only", "users").returncode == 0
    job.until(lambda: states()["users"] == "paused" and any("users paused by" in x["message"] for x in job.lines()))
    send("users")
    send("orders", colour="red")
    job.until(lambda: states()["orders"] == "stopped")
    assert list(shop.differences()) == ["orders", "users"]
    assert job.end() == 143
    assert states() == {"orders": "stopped", "users": "paused"}

    again = run(*files)
    again.until(lambda: any("orders is stopped: " in x["message"] for x in again.lines()))
    time.sleep(3)
    assert states() == {"orders": "stopped", "users": "paused"}
    assert list(shop.differences()) == ["orders", "users"]
    client.command(f"ALTER TABLE {database}.orders ADD COLUMN colour Nullable(String)")
    assert command("resume", *files).returncode == 0
    again.until(lambda: not shop.differences())
    again.until(lambda: states() == {"orders": "running", "users": "running"})
    assert again.end() == 143
    assert states() == {"orders": "idle", "users": "idle"}
    said = {x["message"].partition(" ")[0]: x["level"] for x in job.lines() if x.get("stream") == "orders"}
    assert said == {"orders": "error"}


@pytest.mark.long
def test_once_ends_with_1_when_a_stream_stops_and_the_others_are_read(
    tmp_path: Path, kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    shop = Shop(tmp_path, kafka, clickhouse, client, database, fresh_topic("fast"))
    files = [shop.add("well"), shop.add("ill")]
    shop.change("well", 10)
    shop.change("ill", 10, colour="red")
    shop.flush()
    done = command("run", *files, "--once")
    assert done.returncode == 1, done.stderr
    assert list(shop.differences()) == ["ill"]
    assert "ill stopped: " in done.stderr
    assert "'colour'" in done.stderr
    assert "Traceback" not in done.stderr
