"""Run tasks on Spark's executors, through the DataFrame API only."""

import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from ch_sink.spark import sessions
from ch_sink.spark.probe import expect_equipped, runs_tasks
from ch_sink.stream.tasks import RangeTask, Task, TaskResult, tried
from ch_sink.wiring.worker import Work, fetched_together, garbage, packed, run_configured, run_group

_SCHEMA = "task long, result binary"
_NAMED = 3
"""Streams that the description of a job names."""


@dataclass(frozen=True)
class SparkExecutor:
    """One Spark task for each slot, which runs a group of tasks; results come back as rows, one for each task.

    Configurations hold secrets. They travel inside the pickled function: plans, the UI and event logs show no more of
    that than its name.
    """

    spark: SparkSession
    configs: Mapping[str, str] = field(repr=False)
    """Stream → JSON of its Config, secrets included. Streams may be added while it runs."""
    tag: str = field(default_factory=lambda: f"ch_sink-{uuid.uuid4().hex[:12]}")
    """Marks this application's Spark jobs among those of others in the same context."""

    def __call__(self, tasks: Sequence[Task], most: int | None = None) -> list[TaskResult]:
        """See ExecuteWithin."""
        groups = packed(tasks, self.slots, most)
        work = [[(self.configs[tasks[n].stream], tasks[n]) for n in group] for group in groups]
        sessions.tag(self.spark, self.tag)
        sessions.describe(self.spark, _description(tasks))
        numbers = self.spark.range(0, len(groups), 1, len(groups))
        rows = numbers.mapInArrow(_runner(groups, work), _SCHEMA).collect()
        found = {row.task: bytes(row.result) for row in rows}
        return [pickle.loads(found[number]) for number in range(len(tasks))]

    @property
    def slots(self) -> int:
        """How many tasks run at once."""
        return sessions.slots_of(self.spark)

    def cancel(self) -> None:
        """Cancel the running tasks of all calls; jobs of others in the same context go on."""
        sessions.cancel(self.spark, self.tag)

    def probe(self) -> bool:
        """Whether Spark still runs tasks. Raises what Spark raises."""
        return runs_tasks(self.spark)

    def expect_alive(self) -> None:
        """See ch_sink.spark.sessions.expect_alive."""
        sessions.expect_alive(self.spark)

    def keep_warm(self) -> None:
        """Run an empty task in each slot, unless executors are to come and go. Raises what Spark raises."""
        if self.spark.conf.get("spark.dynamicAllocation.enabled", "false") != "true":
            runs_tasks(self.spark, self.slots)

    def has_none(self) -> bool:
        """Whether no executor is left; always false for a local master."""
        return sessions.lacks_executors(self.spark)

    def expect_equipped(self) -> list[str]:
        """See ch_sink.spark.probe.expect_equipped."""
        sessions.tag(self.spark, self.tag)
        return expect_equipped(self.spark, self.slots)


def _description(tasks: Sequence[Task]) -> str:
    """What Spark's UI says of a job: the streams with their batches."""
    batches = {task.stream: task.batch for task in tasks if isinstance(task, RangeTask)}
    streams = dict.fromkeys(task.stream for task in tasks)
    named = [f"{name}: batch {batches[name]}" if name in batches else name for name in streams]
    more = f" and {len(named) - _NAMED} more streams" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more


def _runner(
    groups: Sequence[Sequence[int]], work: Sequence[Sequence[Work]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # Pickled apart, so that a worker unpickles the group only that it runs.
    pickled = [pickle.dumps(group) for group in work]

    def ch_sink_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                context = TaskContext.get()
                group = _tried(pickle.loads(pickled[number]), context.attemptNumber() if context is not None else 0)
                results = [pickle.dumps(result) for result in run_group(group, run_configured, fetched_together)]
                garbage().freeze()
                yield pa.RecordBatch.from_pydict({"task": list(groups[number]), "result": results})

    return ch_sink_tasks


def _tried(group: Sequence[Work], times: int) -> list[Work]:
    """The group as Spark starts it after so many failures: the tasks may have stored something each time."""
    return [(config, tried(task, times)) for config, task in group]
