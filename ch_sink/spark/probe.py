"""A Spark job of a few rows: whether Spark runs tasks at all, and whether its executors have what tasks need.

The first such job also starts the Python workers and compiles the plan that every batch has, so that the first batch
finds both ready.
"""

import platform
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ch_sink import __version__
from ch_sink.decode.native.library import library
from ch_sink.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HINT = (
    "Install the driver's Python version and the packages of ch-sink on the executors, or ship an environment "
    "(docs/cluster.md, What executors need)."
)
_DAEMON = "Error from python worker:"
"""What Spark puts before the words of a Python process that ended before it could start workers."""


def runs_tasks(spark: "SparkSession", tasks: int = 1) -> bool:
    """Whether Spark runs so many tasks of one row in Python workers. Raises what Spark raises."""
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(_same, "id long").collect()
    return sorted(row.id for row in rows) == list(range(tasks))


def expect_equipped(spark: "SparkSession", slots: int) -> list[str]:
    """Compare the executors' Python with the driver's, by a task for each slot; returns what is worth a warning.

    Raises ConfigError if tasks cannot work there. Another exception is Spark's own failure.
    """
    try:
        rows = (
            spark.range(0, slots, 1, slots).mapInArrow(_equipment, "part string, found string, host string").collect()
        )
    except Exception as error:
        if "Traceback" not in str(error) and _DAEMON not in str(error):
            raise
        raise ConfigError(f"the executors cannot run tasks: {cause(error)}", hint=_HINT) from error
    own = _own_equipment()
    other = {row.part: (row.found, row.host) for row in rows if row.found != own[row.part]}
    for part in ("Python", "ch_sink"):
        if part in other:
            found, host = other[part]
            raise ConfigError(f"the executor on {host} has {part} {found}, the driver {own[part]}", hint=_HINT)
    return [
        f"the executor on {host} has {part} {found}, the driver {own[part]}" for part, (found, host) in other.items()
    ]


def cause(error: Exception) -> str:
    """The line of Spark's message that says what happened: the last one of Python's traceback, else the first.

    Spark puts a phrase of its own before a worker's traceback, and the JVM's stack behind it. The words of a process
    that could not start workers are indented, and followed by its path.
    """
    text = str(error)
    if _DAEMON in text:
        text = textwrap.dedent(text.partition(_DAEMON)[2].partition("PYTHONPATH was:")[0].strip("\n"))
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if "Traceback" in text:
        begin = next(number for number, line in enumerate(lines) if "Traceback" in line)
        raised = [line for line in lines[begin + 1 :] if not line.startswith((" ", "\t"))]
        lines = raised[:1] or lines
    return lines[0].strip()[:300] if lines else type(error).__name__


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
