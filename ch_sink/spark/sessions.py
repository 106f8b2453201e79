"""What a Spark session says of its cluster, whoever made it. One of Spark Connect has no context to be asked."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 4096
"""Rows that are spread over the default parallelism; a cluster with more slots than this is used in part."""

_GROWTH = (
    "spark.dynamicAllocation.enabled",
    "spark.dynamicAllocation.maxExecutors",
    "spark.executor.cores",
    "spark.task.cpus",
)
"""The settings that say how many tasks are worth offering to a cluster that can grow."""


def context_of(spark: "SparkSession") -> Any:
    """The SparkContext of a classic session, None for one of Spark Connect."""
    return getattr(spark, "sparkContext", None)


def describe(spark: "SparkSession", text: str) -> None:
    """Let Spark's UI show this text beside the jobs of this thread. Spark Connect shows the plan only."""
    context = context_of(spark)
    if context is not None:
        context.setJobDescription(text)


def tag(spark: "SparkSession", name: str) -> None:
    """Mark the Spark jobs of this thread from now on."""
    context = context_of(spark)
    if context is not None:
        context.addJobTag(name)
    else:
        spark.addTag(name)


def cancel(spark: "SparkSession", name: str) -> None:
    """Cancel the Spark jobs that are marked so."""
    context = context_of(spark)
    if context is not None:
        context.cancelJobsWithTag(name)
    else:
        spark.interruptTag(name)


def slots_of(spark: "SparkSession") -> int:
    """How many tasks are worth offering: those that run at once, and more where that lets the cluster grow.

    Spark Connect is asked by a job of a few rows, which it spreads over its slots.
    """
    context = context_of(spark)
    if context is None:
        return max(1, spark.range(_ROWS).selectExpr("spark_partition_id() AS part").distinct().count())
    jvm = context._jsc.sc()
    # The default parallelism knows no cores that a task needs, is 2 at least, and may be set to something else.
    now = int(jvm.maxNumConcurrentTasks(jvm.resourceProfileManager().defaultResourceProfile()))
    # One by one: each batch asks, and a whole configuration comes from the JVM in hundreds of calls.
    found = {name: spark.conf.get(name, None) for name in _GROWTH}
    return offered(now, {name: value for name, value in found.items() if value is not None})


def offered(now: int, conf: Mapping[str, str]) -> int:
    """How many tasks to offer where so many run at once.

    With dynamic allocation Spark asks for executors while tasks wait, so there are twice as many, up to its limit.
    """
    if conf.get("spark.dynamicAllocation.enabled") != "true":
        return max(now, 1)
    tasks = int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1"))
    limit = float(conf.get("spark.dynamicAllocation.maxExecutors", "inf")) * max(tasks, 1)
    return max(now, int(min(2 * now, limit)), 1)


def lacks_executors(spark: "SparkSession") -> bool:
    """Whether no executor is left; false where that is not known."""
    context = context_of(spark)
    if context is None or str(context.master).startswith("local"):
        return False
    return len(context._jsc.sc().statusTracker().getExecutorInfos()) < 2


def expect_alive(spark: "SparkSession") -> None:
    """Raises what the way to the driver's JVM raises, or RuntimeError if the application has ended. It runs no task.

    Spark Connect is not asked: its next call finds out.
    """
    context = context_of(spark)
    if context is not None and context._jsc.sc().isStopped():
        raise RuntimeError("the application has ended")
