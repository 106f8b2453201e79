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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(_WORKER), "ModuleNotFoundError: No module named 'pyarrow'"),
        (ConnectionRefusedError(111, "Connection refused"), "[Errno 111] Connection refused"),
        (RuntimeError("\n  Job aborted: no executors\n\tat org.apache.spark"), "Job aborted: no executors"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_the_line_that_says_what_happened_is_shown(error: Exception, said: str) -> None:
    assert cause(error) == said
