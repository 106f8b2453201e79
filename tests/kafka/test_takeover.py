"""Jobs that are frozen in mid-batch while others, on other hosts, take the stream over, and that wake up then."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.model.policy import policy_of
from tests.support.busy import decimal_and_time
from tests.support.fixtures import read_truth, topic_of, topics
from tests.support.kafka import fresh_topic, produce
from tests.support.recorded import equal
from tests.support.sink import ROOT, config_file
from tests.support.stream import make_table, schema_of

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

POLICY = policy_of(truncate="apply")
SOURCE, TABLE = "postgres", "acct"


class Pod:
    """The job on a host of its own, frozen before its nth insert (0: never)."""

    def __init__(self, config: Path, number: int, freeze: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.plain_job", str(config), "3000", "1", f"pod-{number}", str(freeze)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def await_freezing(self) -> None:
        """Until the kernel says that it is stopped."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        deadline = time.monotonic() + 120
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < deadline, "it has fewer inserts"
            time.sleep(0.05)

    def wake_up(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> tuple[int, str]:
        """Exit code and what it wrote."""
        _, errors = self.process.communicate(timeout=300)
        return self.process.returncode, errors


@pytest.mark.parametrize(
    ("engine", "frozen"),
    [
        pytest.param("collapsing", [4], marks=pytest.mark.long),
        pytest.param("append", [4, 9], marks=pytest.mark.long),
        pytest.param("versioned-collapsing", [2, 3, 5, 8, 13, 21], marks=pytest.mark.long),
        pytest.param("collapsing", [2, 3, 5, 8, 13, 21], marks=pytest.mark.long),
    ],
)
def test_frozen_jobs_that_wake_up_after_their_successors_store_nothing(
    engine: str,
    frozen: list[int],
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: EmbeddedClickHouse,
    client: Client,
    database: str,
) -> None:
    stream = f"{SOURCE}-busy-json_plain"
    topic = fresh_topic(f"{database}.{stream}.{TABLE}")
    kafka.create_topic(topic, 3)
    schema = schema_of(stream, TABLE, decimal_and_time(TABLE))
    make_table(client, database, TABLE, schema, engine=engine, policy=POLICY, partition_by="k % 3")
    client.command(f"SYSTEM STOP MERGES {database}.{TABLE}")
    produce(kafka, topics(stream)[topic_of(stream, TABLE)], topic)
    config = config_file(tmp_path, kafka, clickhouse, topic, TABLE, database, chunk_offsets=100, truncate="apply")
    pods = []
    for number, insert in enumerate(frozen):
        pods.append(Pod(config, number, insert))
        pods[-1].await_freezing()
    code, errors = Pod(config, len(pods)).end()
    assert code == 0, errors[-3000:]
    for pod in pods:
        pod.wake_up()
    ended = [pod.end() for pod in pods]
    assert all(code != 0 and "no longer owns stream" in errors for code, errors in ended), ended
    assert equal(client, database, f"{SOURCE}-busy", SOURCE, TABLE) == []
    key = ", ".join(read_truth(f"{SOURCE}-busy")[TABLE].key)
    if engine == "append":
        counts = f"SELECT count() AS n, uniqExact(_version, _sign, {key}) AS different FROM {database}.{TABLE}"
        [found] = client.rows(counts)
        assert found["n"] == found["different"]
        return
    totals = client.rows(f"SELECT sum(_sign) AS total FROM {database}.{TABLE} GROUP BY {key}")
    assert {row["total"] for row in totals} <= {0, 1}
