"""How many tasks a cluster is offered, and the line of an executor's error that a reader gets."""

import pytest

from ch_sink.spark.executor import offered
from ch_sink.spark.session import cause

_GROWING = {"spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize(
    ("now", "conf", "tasks"),
    [
        (0, {}, 1),
        (8, {}, 8),
        (8, {"spark.dynamicAllocation.maxExecutors": "9"}, 8),
        (0, _GROWING, 1),
        (8, _GROWING, 16),
        (8, {**_GROWING, "spark.dynamicAllocation.maxExecutors": "9"}, 9),
        (8, {**_GROWING, "spark.dynamicAllocation.maxExecutors": "3", "spark.executor.cores": "4"}, 12),
        (
            4,
            {
                **_GROWING,
                "spark.dynamicAllocation.maxExecutors": "3",
                "spark.executor.cores": "4",
                "spark.task.cpus": "2",
            },
            6,
        ),
        (8, {**_GROWING, "spark.dynamicAllocation.maxExecutors": "2", "spark.executor.cores": "4"}, 8),
    ],
)
def test_a_cluster_that_grows_is_offered_twice_as_many_tasks_as_run(now: int, conf: dict[str, str], tasks: int) -> None:
    assert offered(now, conf) == tasks


_WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/opt/worker.py", line 7, in main
    import pyarrow
ModuleNotFoundError: No module named 'pyarrow'

JVM stacktrace:
org.apache.spark.api.python.PythonException
\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:1)
"""
_DAEMON = """An error occurred while calling o111.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times
Error from python worker:
%s
PYTHONPATH was:
  /opt/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from ch_sink.spark.daemon's stdout
\tat org.apache.spark.errors.SparkCoreErrors$.eofExceptionWhileReadPortNumberError(SparkCoreErrors.scala:55)
"""
_IMPORTS = """  Traceback (most recent call last):
    File "/opt/daemon.py", line 28, in <module>
      import pyarrow
  ModuleNotFoundError: No module named 'pyarrow'"""
_LACKS_ALL = "  /bin/python: Error while finding module specification (ModuleNotFoundError: No module named 'ch_sink')"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(_WORKER), "ModuleNotFoundError: No module named 'pyarrow'"),
        (RuntimeError(_DAEMON % _IMPORTS), "ModuleNotFoundError: No module named 'pyarrow'"),
        (RuntimeError(_DAEMON % _LACKS_ALL), _LACKS_ALL.strip()),
        (ConnectionRefusedError(111, "Connection refused"), "[Errno 111] Connection refused"),
        (RuntimeError("\n  Job aborted: no executors\n\tat org.apache.spark"), "Job aborted: no executors"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_the_line_that_says_what_happened_is_shown(error: Exception, said: str) -> None:
    assert cause(error) == said
