"""Busy streams under SIGKILL: a real process over real Kafka and real HTTP, killed at drawn moments.

The process is the job without Spark (`tests.support.plain_job`); `tests.job` kills the whole Spark job.
"""

import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client
from ch_sink.config import load
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.model.policy import policy_of
from tests.support.busy import ENGINES, decimal_and_time
from tests.support.fixtures import read_truth, topic_of, topics
from tests.support.kafka import fresh_topic, produce
from tests.support.recorded import equal
from tests.support.sink import ROOT, config_file
from tests.support.stream import make_table, schema_of

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(1500)]

POLICY = policy_of(truncate="apply")


class Job:
    """One process of the job; what it says is read as it comes."""

    def __init__(self, config: Path, batch: int, seed: str) -> None:
        self.begun = threading.Semaphore(0)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.plain_job", str(config), str(batch), seed],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("begin"):
                self.begun.release()
        self.begun.release(100)  # it has ended: nobody need wait for a batch that does not come

    def kill_in_batch(self, number: int, seconds: float) -> None:
        """SIGKILL so long after that batch of this process (1: its first) began, if there are so many left."""
        for _ in range(number):
            assert self.begun.acquire(timeout=120), "it does not begin a batch"
        time.sleep(seconds)
        self.process.kill()
        _, errors = self.process.communicate()
        assert self.process.returncode in (0, -signal.SIGKILL), errors[-3000:]

    def finish(self) -> None:
        _, errors = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, errors[-3000:]


def unfinished(ledger: ClickHouseLedger, topic_id: str) -> bool:
    """Whether ranges were begun that have no result to their end."""
    return bool(ledger.open_intents(topic_id))


@dataclass(frozen=True)
class Plan:
    """How often to kill, and how much a job does: offsets of a partition per batch, and per chunk of it."""

    kills: int
    batch: int
    chunk: int


FEW, MANY = Plan(1, 3000, 1000), Plan(10, 230, 60)


def every_engine(source: str) -> Any:
    return pytest.param([(source, engine) for engine in ENGINES], MANY, marks=pytest.mark.long, id=source)


@pytest.mark.parametrize(
    ("streams", "plan"),
    [
        pytest.param([("postgres", "collapsing")], FEW, id="a few"),
        every_engine("mariadb"),
        every_engine("postgres"),
    ],
)
def test_kills_leave_no_wrong_row(
    streams: list[tuple[str, str]],
    plan: Plan,
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: EmbeddedClickHouse,
    client: Client,
    database: str,
) -> None:
    """The streams at the same time, each with a job, a topic and a database of its own."""
    names = {stream: f"{database}_{'_'.join(stream).replace('-', '_')}" for stream in streams}
    for name in names.values():
        client.command(f"CREATE DATABASE {name}")
    with ThreadPoolExecutor(len(names)) as pool:
        killed = {
            stream: pool.submit(killed_stream, *stream, plan, tmp_path / name, kafka, clickhouse, client, name)
            for stream, name in names.items()
        }
    for stream, done in killed.items():
        count = done.result()
        assert count >= plan.kills / 2, f"{stream}: only {count} of {plan.kills} kills hit a range that was begun"
    for name in names.values():
        client.command(f"DROP DATABASE {name}")


def killed_stream(
    source: str,
    engine: str,
    plan: Plan,
    folder: Path,
    kafka: LocalKafka,
    clickhouse: EmbeddedClickHouse,
    client: Client,
    database: str,
) -> int:
    """Kill, run to the end, compare; how many kills hit a range that was begun."""
    folder.mkdir()
    stream, table = f"{source}-busy-json_plain", "acct"
    topic = fresh_topic(f"{database}.{stream}.{table}")
    kafka.create_topic(topic, 3)
    schema = schema_of(stream, table, decimal_and_time(table))
    make_table(client, database, table, schema, engine=engine, policy=POLICY, partition_by="k % 3")
    produce(kafka, topics(stream)[topic_of(stream, table)], topic)
    config = config_file(folder, kafka, clickhouse, topic, table, database, truncate="apply", chunk_offsets=plan.chunk)
    settings = load(config)
    ledger = ClickHouseLedger(client, settings.state_database, settings.state_tables.ledger, settings.stream_name)
    rng = random.Random(f"{source} {engine}")
    in_mid_work = 0
    for _ in range(plan.kills):
        # Some kills hit the batch that the kill before hit, others a later one. A batch takes about so long.
        Job(config, plan.batch, f"{rng.random()}").kill_in_batch(rng.choice([1, 1, 2, 3]), rng.random() * 0.8)
        known = ledger.topic_ids()  # none yet where the very first intents were not written
        in_mid_work += bool(known) and unfinished(ledger, known[0])
    Job(config, plan.batch, "last").finish()
    assert equal(client, database, f"{source}-busy", source, table) == []
    if engine in ("collapsing", "versioned-collapsing"):
        key = ", ".join(read_truth(f"{source}-busy")[table].key)
        totals = client.rows(f"SELECT sum(_sign) AS total FROM {database}.{table} GROUP BY {key}")
        assert {row["total"] for row in totals} <= {0, 1}
    return in_mid_work
