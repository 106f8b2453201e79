"""Run tasks on Spark's executors, through the DataFrame API only; and what a session says of its cluster.

A session of Spark Connect has no context to be asked. The first job of a few rows (`expect_equipped`) also starts the
Python workers and compiles the plan that every batch has, so that the first batch finds both ready.
"""

import pickle
import platform
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from ch_sink import __version__
from ch_sink.decode.native.library import library
from ch_sink.errors import ConfigError
from ch_sink.spark.session import DAEMON_FAILED, cause
from ch_sink.stream.tasks import RangeTask, Task, TaskResult, tried
from ch_sink.wiring.worker import Work, fetched_together, garbage, packed, run_configured, run_group

_SCHEMA = "task long, result binary"
_NAMED = 3
"""Streams that the description of a job names."""
_ROWS = 4096
"""Rows that are spread over the default parallelism; a cluster with more slots than this is used in part."""
_GROWTH = (
    "spark.dynamicAllocation.enabled",
    "spark.dynamicAllocation.maxExecutors",
    "spark.executor.cores",
    "spark.task.cpus",
)
"""The settings that say how many tasks are worth offering to a cluster that can grow."""
_HINT = (
    "Install the driver's Python version and the packages of ch-sink on the executors, or ship an environment "
    "(docs/cluster.md, What executors need)."
)


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
        tag(self.spark, self.tag)
        if (context := context_of(self.spark)) is not None:
            context.setJobDescription(_description(tasks))
        numbers = self.spark.range(0, len(groups), 1, len(groups))
        rows = numbers.mapInArrow(_runner(groups, work), _SCHEMA).collect()
        found = {row.task: bytes(row.result) for row in rows}
        return [pickle.loads(found[number]) for number in range(len(tasks))]

    @property
    def slots(self) -> int:
        """How many tasks are worth offering: those that run at once, and more where that lets the cluster grow.

        Spark Connect is asked by a job of a few rows, which it spreads over its slots.
        """
        spark, context = self.spark, context_of(self.spark)
        if context is None:
            return max(1, spark.range(_ROWS).selectExpr("spark_partition_id() AS part").distinct().count())
        jvm = context._jsc.sc()
        # The default parallelism knows no cores that a task needs, is 2 at least, and may be set to something else.
        now = int(jvm.maxNumConcurrentTasks(jvm.resourceProfileManager().defaultResourceProfile()))
        # One by one: each batch asks, and a whole configuration comes from the JVM in hundreds of calls.
        found = {name: spark.conf.get(name, None) for name in _GROWTH}
        return offered(now, {name: value for name, value in found.items() if value is not None})

    def cancel(self) -> None:
        """Cancel the running tasks of all calls; jobs of others in the same context go on."""
        context = context_of(self.spark)
        context.cancelJobsWithTag(self.tag) if context is not None else self.spark.interruptTag(self.tag)

    def probe(self) -> bool:
        """Whether Spark still runs tasks. Raises what Spark raises."""
        return runs_tasks(self.spark)

    def expect_alive(self) -> None:
        """Raises what the way to the driver's JVM raises, or RuntimeError if the application has ended.

        It runs no task. Spark Connect is not asked: its next call finds out.
        """
        context = context_of(self.spark)
        if context is not None and context._jsc.sc().isStopped():
            raise RuntimeError("the application has ended")

    def keep_warm(self) -> None:
        """Run an empty task in each slot, unless executors are to come and go. Raises what Spark raises."""
        if self.spark.conf.get("spark.dynamicAllocation.enabled", "false") != "true":
            runs_tasks(self.spark, self.slots)

    def has_none(self) -> bool:
        """Whether no executor is left; false for a local master, and where that is not known."""
        context = context_of(self.spark)
        if context is None or str(context.master).startswith("local"):
            return False
        return len(context._jsc.sc().statusTracker().getExecutorInfos()) < 2

    def expect_equipped(self) -> list[str]:
        """Compare the executors' Python with the driver's, by a task for each slot; returns what is worth a warning.

        Raises ConfigError if tasks cannot work there. Another exception is Spark's own failure.
        """
        tag(self.spark, self.tag)
        slots = self.slots
        try:
            numbers = self.spark.range(0, slots, 1, slots)
            rows = numbers.mapInArrow(_equipment, "part string, found string, host string").collect()
        except Exception as error:
            if "Traceback" not in str(error) and DAEMON_FAILED not in str(error):
                raise
            raise ConfigError(f"the executors cannot run tasks: {cause(error)}", hint=_HINT) from error
        own = _own_equipment()
        other = {
            row.part: f"the executor on {row.host} has {row.part} {row.found}, the driver {own[row.part]}"
            for row in rows
            if row.found != own[row.part]
        }
        for part in ("Python", "ch_sink"):
            if part in other:
                raise ConfigError(other[part], hint=_HINT)
        return list(other.values())


def _description(tasks: Sequence[Task]) -> str:
    """The description of a job in Spark's UI: the streams with their batches."""
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


def context_of(spark: SparkSession) -> Any:
    """The SparkContext of a classic session, None for one of Spark Connect."""
    return getattr(spark, "sparkContext", None)


def tag(spark: SparkSession, name: str) -> None:
    """Mark the Spark jobs of this thread from now on."""
    context = context_of(spark)
    context.addJobTag(name) if context is not None else spark.addTag(name)


def offered(now: int, conf: Mapping[str, str]) -> int:
    """How many tasks to offer where so many run at once.

    With dynamic allocation Spark asks for executors while tasks wait, so there are twice as many, up to its limit.
    """
    if conf.get("spark.dynamicAllocation.enabled") != "true":
        return max(now, 1)
    tasks = int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1"))
    limit = float(conf.get("spark.dynamicAllocation.maxExecutors", "inf")) * max(tasks, 1)
    return max(now, int(min(2 * now, limit)), 1)


def runs_tasks(spark: SparkSession, tasks: int = 1) -> bool:
    """Whether Spark runs so many tasks of one row in Python workers. Raises what Spark raises."""
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(_same, "id long").collect()
    return sorted(row.id for row in rows) == list(range(tasks))


def _own_equipment() -> dict[str, str]:
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "ch_sink": __version__,
        "pyarrow": pa.__version__,
        "compiled scanner": "yes" if library() is not None else "no",
    }


def _equipment(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            own = _own_equipment()
            hosts = [platform.node()] * len(own)
            yield pa.RecordBatch.from_pydict({"part": list(own), "found": list(own.values()), "host": hosts})


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
