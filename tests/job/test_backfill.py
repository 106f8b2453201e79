"""`backfill` as a user runs it: a topic that begins with a snapshot, on Spark, also killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from pyspark.sql import SparkSession

from ch_sink.config import load
from ch_sink.spark.job import run_streams
from tests.support.hand import postgres
from tests.support.kafka import fresh_topic, produce, recorded
from tests.support.sink import ROOT, Place, inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


def row(key: int) -> dict[str, object]:
    return {"id": key, "customer": key % 7, "status": f"state {key % 3}", "amount": f"{key / 100:.2f}"}


def prepared(place: Place, name: str, rows: int, **more: object) -> tuple[str, object]:
    """A topic with a snapshot of so many rows and some changes behind it, and an empty table of seven partitions."""
    topic = fresh_topic(name)
    place.kafka.create_topic(topic, 1)
    events = [postgres("r", {"id": i}, None, row(i), None, 1000) for i in range(rows)]
    events += [
        postgres("u", {"id": i}, row(i), row(i) | {"status": "paid"}, 2000, 2000 + i) for i in range(0, rows, 100)
    ]
    events += [postgres("d", {"id": i}, row(i), None, 9000, 9000 + i) for i in range(1, rows, 100)]
    produce(place.kafka, recorded(topic, events), topic)
    place.client.command(
        f"CREATE TABLE {place.database}.{name} (id Int64, customer Int32, status String, amount String, "
        "_version UInt128, _is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id "
        "PARTITION BY id % 7 SETTINGS non_replicated_deduplication_window = 1000"
    )
    config = place.config(topic, name, chunk_offsets=1000, spark={"master": "local[2]"}, **more)
    assert inside("init", config, "--apply").returncode == 0
    return topic, config


def expect_equal(place: Place, name: str, rows: int) -> None:
    kept = [i for i in range(rows) if i % 100 != 1]
    found = place.rows(f"SELECT id, status FROM {{db}}.{name} FINAL WHERE _is_deleted = 0 ORDER BY id")
    assert [r["id"] for r in found] == kept
    assert all(r["status"] == ("paid" if r["id"] % 100 == 0 else f"state {r['id'] % 3}") for r in found)


def test_a_snapshot_is_shuffled_into_one_block_for_each_partition(place: Place, spark: SparkSession) -> None:
    _, config = prepared(place, "orders", 6000)
    done = inside("backfill", config, "--apply", "--json")
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["streams"]
    assert (found["rows"], found["start"], found["blocks"]) == (6000, {"0": 6000}, 7)
    assert "[########################] 100 %  6 000 of 6 000 records" in done.stderr
    run_streams([load(config)], once=True)
    expect_equal(place, "orders", 6000)
    assert inside("verify", config).returncode == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_is_killed_again_and_again_and_goes_on(place: Place) -> None:
    """SIGKILL of the command and all its processes, at moments that come later each time."""
    rows = 60_000
    _, config = prepared(place, "killed", rows)
    command = [sys.executable, "-m", "ch_sink", "backfill", str(config), "--apply", "--wave", "10000"]
    for number in range(40):
        job = subprocess.Popen(
            command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            job.wait(6 + number)
            break
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            time.sleep(0.5)
            assert place.count("killed") == 0
    assert job.returncode == 0, job.communicate()[0]
    assert number > 0
    assert place.count("killed") == rows
    run_streams([load(config)], once=True)
    expect_equal(place, "killed", rows)
