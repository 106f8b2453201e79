"""The streaming source plans ranges that Spark checkpoints, limits and runs again exactly."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from ch_sink.errors import DataLoss, TopicNotFound
from ch_sink.local.kafka.broker import LocalKafka
from ch_sink.spark.source import SourceFailure, read_ranges
from tests.support.fixtures import Recorded
from tests.support.kafka import fresh_topic, produce, values
from tests.support.sink import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


def _drain(spark: SparkSession, kafka: LocalKafka, topic: str, checkpoint: Path, **options: Any) -> list[list[Any]]:
    """Run until all that is there now was planned; the batches' ranges as [partition, start, end, lost]."""
    batches: list[list[Any]] = []

    def batch(ranges: DataFrame, _number: int) -> None:
        batches.append(sorted(list(row) for row in ranges.select("partition", "start", "end", "lost").collect()))

    ranges = read_ranges(spark, {"bootstrap.servers": kafka.bootstrap, "sasl.password": "hunter2"}, topic, **options)
    query = ranges.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query.foreachBatch(batch).start().awaitTermination()
    return batches


def _filled(kafka: LocalKafka, *counts: int) -> str:
    topic = fresh_topic("spark")
    kafka.create_topic(topic, len(counts))
    produce(kafka, [record for partition, count in enumerate(counts) for record in _some(topic, partition, count)])
    return topic


def _some(topic: str, partition: int, count: int) -> list[Recorded]:
    return values(topic, partition, (f"{i}" for i in range(count)))


def test_it_drains_within_its_limit_and_goes_on_from_the_checkpoint(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path
) -> None:
    topic = _filled(kafka, 250, 40)
    first = _drain(spark, kafka, topic, tmp_path, max_offsets=100, chunk_offsets=30)
    assert first == [[[0, 0, 60, 0], [1, 0, 40, 0]], [[0, 60, 150, 0]], [[0, 150, 250, 0]]]
    assert _drain(spark, kafka, topic, tmp_path) == []
    produce(kafka, _some(topic, 1, 5))
    assert _drain(spark, kafka, topic, tmp_path) == [[[1, 40, 45, 0]]]


def test_no_secret_in_the_plan_or_the_checkpoint(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> None:
    topic = _filled(kafka, 3)
    _drain(spark, kafka, topic, tmp_path)
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"hunter2" in text for text in kept)
    ranges = read_ranges(spark, {"bootstrap.servers": kafka.bootstrap, "sasl.password": "hunter2"}, topic)
    plan = ranges._jdf.queryExecution().toString() + ranges._jdf.queryExecution().logical().toString()
    assert "hunter2" not in plan


@pytest.mark.parametrize("start", [pytest.param("earliest", marks=pytest.mark.long), '{"0": 17}'])
def test_a_killed_batch_runs_the_same_ranges_again(kafka: LocalKafka, tmp_path: Path, start: str) -> None:
    topic = _filled(kafka, 90, 60)
    killed = _program(kafka, topic, tmp_path, start, "50", "1")
    assert killed.returncode == -9, killed.stderr
    before = [json.loads(line) for line in killed.stdout.splitlines()]
    assert [batch["batch"] for batch in before] == [0, 1]
    # More records came, and another limit holds: the batch that was under way is what it was.
    produce(kafka, _some(topic, 0, 30) + _some(topic, 1, 30))
    again = _program(kafka, topic, tmp_path, "latest", "1000")
    assert again.returncode == 0, again.stderr
    after = [json.loads(line) for line in again.stdout.splitlines()]
    assert after[0] == before[1]
    assert _covered([*before[:1], *after]) == {0: (17 if "17" in start else 0, 120), 1: (0, 90)}


def test_the_first_batch_killed_is_the_same_although_latest_has_moved(kafka: LocalKafka, tmp_path: Path) -> None:
    topic = _filled(kafka, 20)
    assert _program(kafka, topic, tmp_path, '{"0": 5}', "10", "0").returncode == -9
    produce(kafka, _some(topic, 0, 30))
    again = _program(kafka, topic, tmp_path, "latest", "1000")
    batches = [json.loads(line) for line in again.stdout.splitlines()]
    assert batches[0] == {"batch": 0, "ranges": [[0, 5, 10, 0]]}, again.stderr
    assert _covered(batches) == {0: (5, 50)}


def test_partitions_that_come_later_are_read_from_their_start(
    spark: SparkSession, broker: LocalKafka, tmp_path: Path
) -> None:
    topic = _filled(broker, 10)
    assert _drain(spark, broker, topic, tmp_path) == [[[0, 0, 10, 0]]]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    produce(broker, _some(topic, 2, 4) + _some(topic, 0, 1))
    assert _drain(spark, broker, topic, tmp_path) == [[[0, 10, 11, 0], [2, 0, 4, 0]]]


def test_a_topic_made_anew_stops_the_stream_unless_told_otherwise(
    spark: SparkSession, broker: LocalKafka, tmp_path: Path
) -> None:
    topic = _filled(broker, 10)
    _drain(spark, broker, topic, tmp_path)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(20)
    broker.create_topic(topic, 1)
    produce(broker, _some(topic, 0, 25))
    failure = SourceFailure(tmp_path / "failure")
    with pytest.raises(StreamingQueryException):
        _drain(spark, broker, topic, tmp_path, failure=failure)
    error = failure.read()
    assert isinstance(error, DataLoss)
    assert "was recreated" in error.message
    assert error.hint is not None
    assert error.hint.startswith("Its offsets begin again.")
    assert _drain(spark, broker, topic, tmp_path, topic_recreated="restart") == [[[0, 0, 25, 0]]]


def test_failures_keep_their_kind_and_their_hint(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> None:
    failure = SourceFailure(tmp_path / "failure")
    assert failure.read() is None
    with pytest.raises(StreamingQueryException):
        _drain(spark, kafka, "no.such.topic", tmp_path, failure=failure)
    error = failure.read()
    assert isinstance(error, TopicNotFound)
    assert error.message == f"topic no.such.topic does not exist at {kafka.bootstrap}"
    assert error.hint == "Check kafka.topic; Debezium creates a topic with its first event."
    assert failure.read() is None, "an error is for one start of the query"


def _program(
    kafka: LocalKafka, topic: str, checkpoint: Path, start: str, limit: str, kill: str = "-1"
) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "tests.support.range_stream",
        kafka.bootstrap,
        topic,
        str(checkpoint),
        start,
        limit,
    ]
    return subprocess.run([*command, kill], cwd=ROOT, capture_output=True, text=True, timeout=300)


def _covered(batches: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    """First and last offset of each partition; ranges must follow each other without a gap."""
    covered: dict[int, tuple[int, int]] = {}
    for batch in batches:
        for partition, start, end, _lost in batch["ranges"]:
            first, reached = covered.get(partition, (start, start))
            assert start == reached, f"partition {partition}: {start} follows {reached}"
            covered[partition] = (first, end)
    return covered


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]
