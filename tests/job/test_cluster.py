"""The job on a real Spark standalone cluster of two workers of one core."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.steady import Load, running_job
from tests.job.test_job import prepared
from tests.support.cluster import Cluster, cluster
from tests.support.kafka import produce
from tests.support.sink import ROOT, Place, inside

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


_PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
_WITHOUT_PACKAGES = ("PYTHONPATH", "PYSPARK", "VIRTUAL_ENV")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The repository as a user has it, in which commands of the documentation run."""
    root = tmp_path / "ch_sink"
    skip = shutil.ignore_patterns("__pycache__", "libscan.so.*")
    for name in ("ch_sink", "sql", "compose"):
        shutil.copytree(ROOT / name, root / name, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root / name)
    return root


def started(commands: str, spark: Cluster, folder: Path, env: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Commands of the page, in a shell: the master's address is this one, and the job ends by itself."""
    assert commands.count("shop.yaml") == commands.count("spark://host:7077") == 1
    text = commands.replace("spark://host:7077", spark.url).replace("shop.yaml", "shop.yaml --once")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.Popen(
        ["/bin/bash", "-euc", f'ch_sink() {{ python -m ch_sink "$@"; }}\n{text}'],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**env, "PATH": path},
    )


@pytest.mark.parametrize(
    "begin", ["spark-submit --master spark://host:7077 ch_sink/", "ch_sink run shop.yaml --master spark://"]
)
def test_the_documented_command_runs_tasks_on_both_workers(
    begin: str, place: Place, two_workers: Cluster, repository: Path
) -> None:
    stream, table = "mariadb-busy-json_plain", "acct"
    config, topic, records = prepared(place, stream, table, spark={"conf": {"spark.executor.memory": "600m"}})
    produce(place.kafka, records, topic)
    config.rename(repository / "shop.yaml")
    [command] = [found for found in re.findall(r"^`?([^ `][^`\n]*)", _PAGE, re.MULTILINE) if found.startswith(begin)]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    job = started(command, two_workers, repository, env)
    used: set[str] = set()
    while job.poll() is None:
        used.update(two_workers.executors().values())
        time.sleep(0.05)
    said, _ = job.communicate()
    assert job.returncode == 0, said
    assert used == {"worker-0", "worker-1"}
    assert place.differences("mariadb-busy", "mariadb", table) == []


@pytest.mark.timeout(1800)  # installs all packages, from an index
def test_the_documented_environment_is_all_that_executors_need(
    place: Place, two_workers: Cluster, repository: Path
) -> None:
    """The executors' own Python has nothing installed; all comes with the job."""
    stream, table = "postgres-busy-json_plain", "acct"
    config, topic, records = prepared(place, stream, table)
    produce(place.kafka, records, topic)
    config.rename(repository / "shop.yaml")
    [commands] = re.findall(r"^```\n(python -m venv .*?)^```", _PAGE, re.MULTILINE | re.DOTALL)
    env = {name: setting for name, setting in os.environ.items() if not name.startswith(_WITHOUT_PACKAGES)}
    versions = repository / "versions.txt"
    versions.write_text("".join(f"{name}=={version(name)}\n" for name in ("pyspark", "pandas")), encoding="utf-8")
    env["PIP_CONSTRAINT"] = str(versions)
    job = started(commands, two_workers, repository, env)
    used: set[str] = set()
    while job.poll() is None:
        used |= two_workers.pythons()
        time.sleep(0.3)
    said, _ = job.communicate()
    assert job.returncode == 0, said
    assert used == {"./sink/bin/python"}
    assert place.differences("postgres-busy", "postgres", table) == []


_COMING_AND_GOING = {
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.dynamicAllocation.maxExecutors": "3",
}


def test_executors_leave_while_nothing_comes_and_grow_with_a_backlog(place: Place) -> None:
    topic, partitions, log = f"{place.database}.shop.t", range(8), place.folder / "log"
    place.kafka.create_topic(topic, len(partitions))
    load, most = Load(place.kafka.bootstrap, [topic], partitions), 0
    load.spread(100)
    with cluster(workers=2, cores=2, memory="2g") as spark:
        settings = {"chunk_offsets": 500, "max_offsets_per_trigger": 100_000}
        config = place.config(topic, "t", spark={"master": spark.url, "conf": _COMING_AND_GOING}, **settings)
        assert inside("init", config, "--apply").returncode == 0
        with running_job(config, log, []) as job:
            for events in (0, 100, 400_000):
                load.spread(events)
                until = time.monotonic() + 120
                while (unread := load.sent - place.count("t FINAL")) or spark.executors():
                    assert job.poll() is None, log.read_text(encoding="utf-8")
                    most = max(most, len(spark.executors()))
                    # An executor takes seconds to start; the backlog must last that long.
                    if events > 100 and most < 3 and unread < 200_000 and time.monotonic() < until:
                        load.spread(100_000)
                    time.sleep(0.2)
    assert most == 3
    [row] = place.rows("SELECT count() AS n, uniqExact(id) AS ids, max(id) AS last FROM {db}.t FINAL")
    assert row == {"n": load.sent, "ids": load.sent, "last": load.sent}
