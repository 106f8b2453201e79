"""Run tasks on Spark's executors, through the DataFrame API only."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import SparkSession

from ch_sink.spark.wiring import run_configured
from ch_sink.stream.tasks import Task, TaskResult

__all__ = ["SparkExecutor"]

_SCHEMA = "task long, result binary"


@dataclass(frozen=True)
class SparkExecutor:
    """One Spark task for each task; results come back as rows.

    Configurations hold secrets. They travel inside the pickled function: plans, the UI and event logs show no more of
    that than its name.
    """

    spark: SparkSession
    configs: Mapping[str, str] = field(repr=False)
    """Stream → JSON of its Config, secrets included."""

    def __call__(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """See Execute."""
        work = [(self.configs[task.stream], task) for task in tasks]
        numbers = self.spark.range(0, len(tasks), 1, len(tasks))
        found = {row.task: bytes(row.result) for row in numbers.mapInArrow(_runner(work), _SCHEMA).collect()}
        return [pickle.loads(found[number]) for number in range(len(tasks))]

    def cancel(self) -> None:
        """Cancel the running tasks of all calls."""
        self.spark.sparkContext.cancelAllJobs()


def _runner(
    work: Sequence[tuple[str, Task]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def ch_sink_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(run_configured(*work[number]))
                yield pa.RecordBatch.from_pydict({"task": [number], "result": [result]})

    return ch_sink_tasks
