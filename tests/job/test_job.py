"""The main job on recorded streams: Kafka, Spark, ClickHouse, as a user runs it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ch_sink.config import load
from ch_sink.model.policy import policy_of
from ch_sink.spark.job import run_streams
from ch_sink.spark.session import default_java_options
from ch_sink.wiring.streams import rewind_stream
from tests.support.busy import decimal_and_time
from tests.support.choose import some
from tests.support.fixtures import Recorded, registry_schemas, topic_of, topics
from tests.support.kafka import produce
from tests.support.recorded import KEYLESS, STREAMS, tables
from tests.support.registry_server import registry_server
from tests.support.sink import ROOT, Place, inside
from tests.support.stream import make_table, schema_of, typed_stream

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
POLICY = policy_of(truncate="apply")


def prepared(
    place: Place, stream: str, table: str, engine: str = "replacing", **more: object
) -> tuple[Path, str, list[Recorded]]:
    """A fresh topic, the table that ``init`` makes of the stream with schemas, and the configuration."""
    topic = f"{place.database}.{stream}.{table}"
    place.kafka.create_topic(topic, 1 if table in KEYLESS else 3)
    keep = decimal_and_time(table) if "busy" in stream else None
    source = stream if "busy" in stream else typed_stream(stream, table)
    engine = "append" if table in KEYLESS else engine
    make_table(place.client, place.database, table, schema_of(source, table, keep), engine=engine, policy=POLICY)
    config = place.config(topic, table, truncate="apply", **more)
    return config, topic, topics(stream)[topic_of(stream, table)]


@pytest.mark.long
@pytest.mark.parametrize("stream", some(((s,) for s in STREAMS), [("mariadb-avro",)]))
def test_every_topic_of_a_stream_equals_its_source(stream: str, place: Place, spark: SparkSession) -> None:
    found = {t: prepared(place, stream, t) for t in tables(stream)}
    for _, topic, records in found.values():
        produce(place.kafka, records, topic)
    source = stream.split("-")[0]
    with registry_server(registry_schemas(source)) as server:
        address = [f"kafka.schema.registry.url={server.url}"] if stream.endswith("-avro") else []
        run_streams([load(config, address) for config, _, _ in found.values()], once=True)
    assert [d for t in found for d in place.differences(source, stream, t)] == []


@pytest.mark.long
def test_many_runs_at_random_offsets_and_a_second_reading(place: Place, spark: SparkSession) -> None:
    stream, table = "postgres-json_plain", "kc"
    config, topic, records = prepared(place, stream, table, max_offsets_per_trigger=10)
    rng, at = random.Random(5), 0
    while at < len(records):
        step = rng.randint(10, 40)
        produce(place.kafka, records[at : at + step], topic)
        at += step
        run_streams([load(config)], once=True)
    assert place.differences("postgres", stream, table) == []
    [summary] = run_streams([load(config)], once=True)
    assert summary.counts.records == 0
    before = place.count(f"{table} FINAL")
    rewind_stream(load(config))
    [summary] = run_streams([load(config)], once=True)
    assert summary.counts.records == len(records)
    assert place.count(f"{table} FINAL") == before
    assert place.differences("postgres", stream, table) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "engine", "goals"),
    [
        ("mariadb", "replacing", [1200]),
        pytest.param("mariadb", "replacing", [100, 1200, 2400], marks=pytest.mark.long),
        pytest.param("postgres", "collapsing", [100, 1200, 2400], marks=pytest.mark.long),
    ],
)
def test_a_job_killed_in_mid_batch_goes_on_where_it_was(
    source: str, engine: str, goals: list[int], place: Place
) -> None:
    stream, table = f"{source}-busy-json_plain", "acct"
    config, topic, records = prepared(
        place,
        stream,
        table,
        engine,
        chunk_offsets=200,
        max_offsets_per_trigger=3000,
    )
    place.client.command(f"SYSTEM STOP MERGES {place.database}.{table}")  # so that its rows say how far the job is
    produce(place.kafka, records, topic)
    rng, killed = random.Random(source), 0
    for goal in goals:  # of some 3,500 rows, or twice as many with signs
        job = subprocess.Popen(
            [sys.executable, "-m", "ch_sink", "run", str(config), "--once"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        deadline = time.monotonic() + 180
        while job.poll() is None and place.count(table) < goal and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(rng.random() * 0.3)
        killed += job.poll() is None
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
    assert killed == len(goals)
    run_streams([load(config)], once=True)
    assert place.differences(f"{source}-busy", source, table) == []
    shown = inside("status", config, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)


@pytest.mark.long
def test_spark_submit_and_run_give_the_same(place: Place) -> None:
    stream, table = "mariadb-json_schema-kc", "kc"
    config, topic, records = prepared(place, stream, table)
    produce(place.kafka, records, topic)
    submit = Path(sys.executable).parent / "spark-submit"
    done = subprocess.run(
        [
            *(str(submit), "--master", "local[2]", "--driver-java-options", default_java_options()),
            *(str(ROOT / "ch_sink/spark/job.py"), "--config", str(config), "--once"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=place.folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert place.differences("mariadb", stream, table) == []


@pytest.mark.long
def test_a_corrupt_record_among_good_ones_becomes_a_dead_letter(place: Place, spark: SparkSession) -> None:
    stream, table = "mariadb-json_plain", "kc"
    config, topic, records = prepared(place, stream, table)
    bad = Recorded(topic, 1, 0, 1, b'{"id":7,"k":7}', b'{"before":null,"after":{"id":7,"k"', ())
    produce(place.kafka, [*records[:20], bad, *records[20:]], topic)
    [summary] = run_streams([load(config)], once=True)
    assert summary.counts.dead_letters == 1
    assert place.differences("mariadb", stream, table) == []
    [letter] = place.rows("SELECT partition, key, value, reason FROM {db}.ch_sink_dead_letters FINAL")
    assert (letter["partition"], letter["key"]) == (1, '{"id":7,"k":7}')
    assert letter["reason"]
