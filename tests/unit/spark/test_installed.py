"""What of Spark is installed on this machine, and what its workers are forked from."""

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from ch_sink.spark import installed as home


def test_the_home_has_what_starts_spark_and_not_the_archive_of_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CH_SINK_CACHE", str(tmp_path))
    made = home.linked_home()
    assert made.is_relative_to(tmp_path)
    assert (made / "bin" / "spark-submit").samefile(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    assert list((made / "jars").glob("spark-core_*.jar"))
    assert not (made / "python").exists()
    assert home.linked_home() == made


def test_where_no_links_can_be_made_there_is_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file, no folder")
    monkeypatch.setenv("CH_SINK_CACHE", str(tmp_path / "cache"))
    assert home.linked_home() is None


def test_a_pyspark_without_spark_gives_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "_installed", lambda: tmp_path)
    assert home.linked_home() is None


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


@pytest.mark.long
def test_workers_find_their_modules_imported() -> None:
    """Arrow imports pandas at its first array, if that is installed."""
    pytest.importorskip("pandas")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['ch_sink.wiring.worker', 'pandas', 'pyspark.worker']", "[]"]
