"""What the process has imported of which Spark forks its workers."""

import subprocess
import sys

import pytest

PROGRAM = """\
import sys
import pyspark.daemon
pyspark.daemon.manager = lambda: print(sorted({"ch_sink.wiring.worker", "pandas", "pyspark.worker"} & set(sys.modules)))
from ch_sink.spark.daemon import main
main()
import pyarrow as pa
before = set(sys.modules)
pa.array([1]), pa.array([b"x"], pa.binary()), pa.scalar(1)
print(sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in ("pandas", "pyarrow")))
"""


def test_workers_find_their_modules_imported() -> None:
    """Arrow imports pandas at its first array, if that is installed."""
    pytest.importorskip("pandas")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['ch_sink.wiring.worker', 'pandas', 'pyspark.worker']", "[]"]
