"""What a job says of executors that cannot do its work."""

import pytest

from ch_sink.spark.probe import cause

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
