"""What a Spark session says of its cluster, whoever made it. One of Spark Connect has no context to be asked."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["context_of", "describe", "lacks_executors", "slots_of"]

_ROWS = 4096
"""Rows that are spread over the default parallelism; a cluster with more slots than this is used in part."""


def context_of(spark: "SparkSession") -> Any:
    """The SparkContext of a classic session, None for one of Spark Connect."""
    return getattr(spark, "sparkContext", None)


def describe(spark: "SparkSession", text: str) -> None:
    """Let Spark's UI show this text beside the jobs of this thread. Spark Connect shows the plan only."""
    context = context_of(spark)
    if context is not None:
        context.setJobDescription(text)


def slots_of(spark: "SparkSession") -> int:
    """How many tasks run at once. Spark Connect is asked by a job of a few rows, which it spreads over its slots."""
    context = context_of(spark)
    if context is not None:
        return int(context.defaultParallelism)
    return max(1, spark.range(_ROWS).selectExpr("spark_partition_id() AS part").distinct().count())


def lacks_executors(spark: "SparkSession") -> bool:
    """Whether no executor is left; false where that is not known."""
    context = context_of(spark)
    if context is None or str(context.master).startswith("local"):
        return False
    return len(context._jsc.sc().statusTracker().getExecutorInfos()) < 2
