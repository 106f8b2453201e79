"""Spark fails: the job ends with one sentence, no stream is blamed, and the next start needs no `resume`."""

import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.model.policy import policy_of
from tests.job.test_job import prepared
from tests.support.cluster import Cluster, children, cluster
from tests.support.fixtures import topic_of, topics
from tests.support.kafka import produce
from tests.support.recorded import at_the_snapshot
from tests.support.sink import ROOT, Place, command, config_file, inside, statuses
from tests.support.stream import make_table

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

_STREAM, _TABLE = "mariadb-busy-json_plain", "acct"
_SMALL = {"conf": {"spark.executor.memory": "600m"}}


def started(config: Path, *more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "ch_sink", "run", str(config), *more],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(holds: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.05)


def next_job_makes_it_equal(place: Place, config: Path) -> None:
    [status] = statuses([config])
    assert (status["state"], status["error"]) == ("idle", None)
    done = inside("run", config, "--once")
    assert done.returncode == 0, done.stderr
    assert place.differences("mariadb-busy", "mariadb", _TABLE) == []


@pytest.mark.long
def test_a_killed_jvm_ends_the_job_and_stops_no_stream(place: Place) -> None:
    config, topic, records = prepared(place, _STREAM, _TABLE, "collapsing", spark={"master": "local[1]"})
    produce(place.kafka, records[:1000], topic)
    job = started(config)
    until(lambda: place.count(_TABLE) > 0, job)
    [jvm] = [pid for pid, words in children(job.pid).items() if b"SparkSubmit" in words]
    os.kill(jvm, signal.SIGKILL)
    produce(place.kafka, records[1000:], topic)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 1
    assert "error: Spark stopped working: " in said
    assert "stopped:" not in said
    assert "Traceback" not in said
    next_job_makes_it_equal(place, config)


@pytest.mark.long
def test_a_jvm_that_is_killed_while_nothing_comes_ends_the_job_too(place: Place) -> None:
    config, topic, records = prepared(place, _STREAM, _TABLE, "collapsing", spark={"master": "local[1]"})
    produce(place.kafka, records, topic)
    job = started(config)
    until(lambda: place.differences("mariadb-busy", "mariadb", _TABLE) == [], job)
    time.sleep(3)  # its last batch ends
    [jvm] = [pid for pid, words in children(job.pid).items() if b"SparkSubmit" in words]
    os.kill(jvm, signal.SIGKILL)
    killed = time.monotonic()
    said, _ = job.communicate(timeout=60)
    assert time.monotonic() - killed < 30
    assert job.returncode == 1
    assert said.count("error: ") == said.count("error: Spark stopped working: ") == 1
    assert "stopped:" not in said
    assert "Traceback" not in said
    next_job_makes_it_equal(place, config)


@pytest.mark.long
def test_a_master_that_dies_takes_nothing_with_it(place: Place) -> None:
    """Executors live on without their master."""
    config, topic, records = prepared(place, _STREAM, _TABLE, "collapsing", spark=_SMALL)
    with cluster(workers=2) as spark:
        produce(place.kafka, records[:1000], topic)
        job = started(config, "--master", spark.url)
        until(lambda: place.count(_TABLE) > 0, job)
        spark.kill("master")
        produce(place.kafka, records[1000:], topic)
        until(lambda: place.differences("mariadb-busy", "mariadb", _TABLE) == [], job)
        job.terminate()
        assert job.wait(60) == 143


@pytest.mark.long
def test_a_worker_that_dies_in_mid_batch_is_replaced_by_the_other(place: Place) -> None:
    config, topic, records = prepared(place, _STREAM, _TABLE, "collapsing", spark=_SMALL, chunk_offsets=200)
    with cluster(workers=2) as spark:
        produce(place.kafka, records, topic)
        job = started(config, "--once", "--master", spark.url)
        until(lambda: place.count(_TABLE) > 0, job)
        spark.kill("worker-0")
        said, _ = job.communicate(timeout=240)
    assert job.returncode == 0, said
    assert place.differences("mariadb-busy", "mariadb", _TABLE) == []


@pytest.mark.long
def test_spark_submit_that_is_ended_takes_its_driver_with_it(place: Place) -> None:
    config, topic, records = prepared(place, _STREAM, _TABLE, "collapsing")
    produce(place.kafka, records[:1000], topic)
    with cluster(workers=1) as spark:
        job = submitted(spark, config)
        until(lambda: place.count(_TABLE) > 0, job)
        drivers = [pid for pid, words in children(job.pid).items() if b"job.py" in words]
        assert drivers
        job.terminate()
        job.communicate(timeout=60)
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in drivers) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not any(Path(f"/proc/{pid}").exists() for pid in drivers), "the driver is an orphan"
    produce(place.kafka, records[1000:], topic)
    next_job_makes_it_equal(place, config)


@pytest.mark.long
def test_speculation_copies_no_task(place: Place) -> None:
    """The setting is the job's own; where a context has it on all the same, copies fence each other off."""
    config, topic, records = prepared(place, _STREAM, _TABLE, "collapsing", chunk_offsets=200)
    produce(place.kafka, records, topic)
    with cluster(workers=2) as spark:
        settings = ["spark.speculation=true", "spark.speculation.multiplier=1.01", "spark.speculation.quantile=0.1"]
        job = submitted(spark, config, "--once", conf=settings)
        said, _ = job.communicate(timeout=240)
    assert job.returncode == 0, said
    assert place.differences("mariadb-busy", "mariadb", _TABLE) == []


def submitted(spark: Cluster, config: Path, *more: str, conf: Sequence[str] = ()) -> "subprocess.Popen[str]":
    options = [word for setting in ("spark.executor.memory=600m", *conf) for word in ("--conf", setting)]
    words = ["--master", spark.url, *options, str(ROOT / "ch_sink/spark/job.py"), "--config", str(config), *more]
    return subprocess.Popen(
        [str(spark.submit), *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.long
def test_executors_without_packages_are_named_in_one_sentence(place: Place, tmp_path: Path) -> None:
    config, topic, records = prepared(place, _STREAM, _TABLE)
    produce(place.kafka, records, topic)
    venv.create(tmp_path / "bare", with_pip=False)
    with cluster(workers=1) as spark:
        bare = {"PYSPARK_PYTHON": str(tmp_path / "bare" / "bin" / "python"), "PYTHONPATH": ""}
        done = command("run", config, "--once", "--master", spark.url, **bare)
    assert done.returncode == 2
    assert "error: the executors cannot run tasks: ModuleNotFoundError: No module named" in done.stderr
    assert "docs/cluster.md" in done.stderr
    assert len(done.stderr.splitlines()) < 12, done.stderr
    next_job_makes_it_equal(place, config)


def lacks_columns(
    folder: Path, kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str, source: str
) -> Path:
    """A stream whose table lacks columns that the source gets, and that may not add them."""
    stream, place = f"{source}-json_schema", f"{database}_{source}"
    client.command(f"CREATE DATABASE {place}")
    kafka.create_topic(f"{place}.ac", 3)
    make_table(client, place, "ac", at_the_snapshot(stream, "ac"), policy=policy_of())
    produce(kafka, topics(stream)[topic_of(stream, "ac")], f"{place}.ac")
    (folder / source).mkdir()
    return config_file(folder / source, kafka, clickhouse, f"{place}.ac", "ac", place, evolve="fail", stream=source)


@pytest.mark.long
def test_every_stream_that_failed_is_reported_in_a_few_lines(
    tmp_path: Path, kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> None:
    configs = [
        lacks_columns(tmp_path, kafka, clickhouse, client, database, source) for source in ("mariadb", "postgres")
    ]
    done = command("run", *configs, "--once")
    assert done.returncode == 1
    for source in ("mariadb", "postgres"):
        assert f"ERROR   {source} stopped: the change event at offset" in done.stderr, done.stderr
    assert "Add them to the table" in done.stderr
    assert "error: 2 of 2 streams stopped: " in done.stderr
    assert "Exception" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) < 12, done.stderr
