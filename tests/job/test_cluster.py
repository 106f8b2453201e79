"""The job on a real Spark standalone cluster of two workers of one core."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job.test_job import prepared
from tests.support.cluster import Cluster, cluster
from tests.support.kafka import produce
from tests.support.packed import packed_environment
from tests.support.sink import ROOT, Place

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Cluster]:
    with cluster(workers=2) as found:
        yield found


@pytest.mark.parametrize(("source", "engine"), [("mariadb", "replacing"), ("postgres", "collapsing")])
def test_an_executor_killed_in_mid_batch_leaves_the_table_equal(
    source: str, engine: str, place: Place, two_workers: Cluster
) -> None:
    stream, table = f"{source}-busy-json_plain", "acct"
    config, topic, records = prepared(
        place, stream, table, engine, chunk_offsets=200, spark={"conf": {"spark.executor.memory": "600m"}}
    )
    place.client.command(f"SYSTEM STOP MERGES {place.database}.{table}")  # so that its rows say how far the job is
    produce(place.kafka, records, topic)
    job = subprocess.Popen(
        [sys.executable, "-m", "ch_sink", "run", str(config), "--once", "--master", two_workers.url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline, killed = time.monotonic() + 240, 0
    while job.poll() is None and killed < 2 and time.monotonic() < deadline:
        if place.count(table) > 400 * (killed + 1) and two_workers.executors():
            two_workers.kill_executor()
            killed += 1
            time.sleep(1.0)
        time.sleep(0.01)
    said, _ = job.communicate(timeout=300)
    assert job.returncode == 0, said
    assert killed, "the job was over before an executor was killed"
    place.client.command(f"SYSTEM START MERGES {place.database}.{table}")
    assert place.differences(f"{source}-busy", source, table) == [], said


def test_a_job_is_submitted_with_a_packed_environment(place: Place, two_workers: Cluster, tmp_path: Path) -> None:
    """The executors' Python has nothing installed; all comes with the job."""
    stream, table = "postgres-busy-json_plain", "acct"
    config, topic, records = prepared(place, stream, table)
    produce(place.kafka, records, topic)
    archive = packed_environment(tmp_path)
    options = ["--master", two_workers.url, "--archives", f"{archive}#sink", "--executor-memory", "600m"]
    options += [
        "--conf",
        "spark.pyspark.python=./sink/bin/python",
        "--conf",
        f"spark.pyspark.driver.python={sys.executable}",
    ]
    job = subprocess.Popen(
        [str(two_workers.submit), *options, str(ROOT / "ch_sink/spark/job.py"), "--config", str(config), "--once"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={name: setting for name, setting in os.environ.items() if not name.startswith(("PYTHONPATH", "PYSPARK"))},
    )
    used: set[str] = set()
    while job.poll() is None:
        used |= two_workers.pythons()
        time.sleep(0.05)
    said, _ = job.communicate()
    assert job.returncode == 0, said
    assert used == {"./sink/bin/python"}
    assert place.differences("postgres-busy", "postgres", table) == [], said


def documented(begin: str, spark: Cluster, config: Path) -> list[str]:
    """The command of docs/cluster.md that begins so, for this cluster and this file."""
    text = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    [command] = {found for found in re.findall(r"^(?:.*`)?(\w[^`\n]*)", text, re.MULTILINE) if found.startswith(begin)}
    ours = {
        "spark-submit": [str(spark.submit)],
        "ch_sink": [sys.executable, "-m", "ch_sink"],
        "spark://host:7077": [spark.url],
        "shop.yaml": [str(config), "--once"],
    }
    return [word for part in shlex.split(command) for word in ours.get(part, [part])]


@pytest.mark.parametrize("begin", ["spark-submit --master spark://", "ch_sink run shop.yaml --master spark://"])
def test_the_documented_command_runs_tasks_on_both_workers(begin: str, place: Place, two_workers: Cluster) -> None:
    stream, table = "mariadb-busy-json_plain", "acct"
    config, topic, records = prepared(place, stream, table, spark={"conf": {"spark.executor.memory": "600m"}})
    produce(place.kafka, records, topic)
    job = subprocess.Popen(
        documented(begin, two_workers, config),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
    )
    used: set[str] = set()
    while job.poll() is None:
        used.update(two_workers.executors().values())
        time.sleep(0.05)
    assert job.returncode == 0, job.communicate()[0]
    assert used == {"worker-0", "worker-1"}
    assert place.differences("mariadb-busy", "mariadb", table) == []


_GROWING = """
import sys, time
from ch_sink.spark.executor import SparkExecutor
from ch_sink.spark.session import build_session

conf = {
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "3",
}
session = build_session("growing", sys.argv[1], conf)

def work(batches):
    time.sleep(2)
    yield from batches

slots = 0
while slots < 3:
    slots = SparkExecutor(session, {}).slots
    print(slots, flush=True)
    session.range(0, slots, 1, slots).mapInArrow(work, "id long").collect()
session.stop()
"""


def test_work_brings_executors_where_they_come_and_go() -> None:
    """Spark asks for executors while tasks wait for one."""
    with cluster(workers=2, cores=2, memory="2g") as spark:
        found = subprocess.run(
            [sys.executable, "-c", _GROWING, spark.url], cwd=ROOT, capture_output=True, text=True, timeout=240
        )
    assert found.returncode == 0, found.stderr
    offered = [int(slots) for slots in found.stdout.split()]
    assert offered[0] == 1
    assert offered[-1] == 3
