"""The linked Spark home."""

from pathlib import Path

import pyspark
import pytest

from ch_sink.spark import installed as home


def test_the_home_has_what_starts_spark_and_not_the_archive_of_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CH_SINK_CACHE", str(tmp_path))
    made = home.linked_home()
    assert made is not None
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
