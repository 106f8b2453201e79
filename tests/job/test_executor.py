"""Tasks on Spark: a result for each in its order, failures whole, and no secret in what Spark shows."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ch_sink.errors import StreamFailed
from ch_sink.order import State
from ch_sink.spark.executor import _SCHEMA, SparkExecutor, _description, _runner, _tried, tag
from ch_sink.stream.tasks import RangeTask, ReleaseTask, Task
from tests.model import LAYOUTS
from tests.support.harness import ENGINES, target_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECRET = "hunter2"
CONFIG = f'{{"clickhouse": {{"password": "{SECRET}"}}}}'
TABLE = target_table(next(iter(LAYOUTS.values())), ENGINES["replacing"])


def tasks(count: int) -> list[Task]:
    ranges: list[Task] = [RangeTask("s", "t", "id", p, TABLE, 5, 9, State()) for p in range(count)]
    return [*ranges, ReleaseTask("s", "t", "id", count, TABLE, State())]


def test_each_task_has_its_result_and_its_failure(spark: SparkSession) -> None:
    """The configuration is none, so every task fails while it opens its ports."""
    found = SparkExecutor(spark, {"s": CONFIG})(tasks(5))
    assert [result.partition for result in found] == list(range(6))
    for result in found:
        assert isinstance(result.failure, StreamFailed)
        assert "Traceback" in result.failure.trace  # type: ignore[attr-defined]
        assert result.failure.hint is not None


def test_as_many_tasks_are_offered_as_run_at_once(spark: SparkSession) -> None:
    assert SparkExecutor(spark, {}).slots == 2


def test_cancelling_ends_no_job_of_others(spark: SparkSession) -> None:
    executor = SparkExecutor(spark, {})

    def run(seconds: float, mark: str) -> int:
        def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            time.sleep(seconds)
            yield from batches

        tag(spark, mark)
        return len(spark.range(0, 1, 1, 1).mapInArrow(wait, "id long").collect())

    with ThreadPoolExecutor() as pool:
        own, others = pool.submit(run, 30, executor.tag), pool.submit(run, 2, "others")
        while len(spark.sparkContext.statusTracker().getActiveJobsIds()) < 2:
            time.sleep(0.02)
        executor.cancel()
        with pytest.raises(Exception, match="cancelled"):
            own.result(20)
        assert others.result(20) == 1


def test_plans_show_no_configuration(spark: SparkSession) -> None:
    executor = SparkExecutor(spark, {"s": CONFIG})
    frame = spark.range(0, 2, 1, 2).mapInArrow(_runner([[0], [1]], [[(CONFIG, task)] for task in tasks(1)]), _SCHEMA)
    plans = frame._jdf.queryExecution().toString()
    assert "ch_sink_tasks" in plans
    assert SECRET not in plans + repr(executor)


def test_spark_shows_streams_and_batches(spark: SparkSession) -> None:
    [task, _] = tasks(1)
    assert isinstance(task, RangeTask)
    SparkExecutor(spark, {"s": CONFIG})([replace(task, batch=12)])
    shown = spark.sparkContext._jsc.sc().statusStore().jobsList(None).apply(0).description().get()
    assert shown == "s: batch 12"


def test_spark_names_some_of_many_streams() -> None:
    many = [RangeTask(f"s{n}", "t", "id", 0, TABLE, 5, 9, State(), batch=n) for n in range(1, 6)]
    assert _description(many) == "s1: batch 1, s2: batch 2, s3: batch 3 and 2 more streams"
    assert _description([ReleaseTask("s", "t", "id", 0, TABLE, State())]) == "s"


def test_a_task_that_spark_starts_again_is_a_further_attempt() -> None:
    given: list[tuple[str, Task]] = [(CONFIG, task) for task in tasks(1)]
    assert [task.attempt for _, task in _tried(given, 0)] == [0, 0]
    assert [task.attempt for _, task in _tried(given, 2)] == [2, 2]
