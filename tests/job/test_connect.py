"""Tasks on a session of Spark Connect, which has no SparkContext."""

from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.spark.executor import SparkExecutor
from tests.job.test_executor import CONFIG, tasks

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.long
def test_tasks_run_without_a_spark_context(connect: Any) -> None:
    assert not hasattr(connect, "sparkContext")
    executor = SparkExecutor(connect, {"s": CONFIG})
    assert executor.slots == 2
    assert executor.expect_equipped() == []
    assert not executor.has_none()
    found = executor(tasks(5))
    assert [result.partition for result in found] == list(range(6))
    assert all(isinstance(result.failure, StreamFailed) for result in found)
    executor.cancel()
    assert executor.probe()
