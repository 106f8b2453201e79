"""A cache folder of Java archives appears whole or not at all. Maven is a script here that does as it is told."""

import sys
from pathlib import Path

import pytest

from ch_sink.local.maven import Archive, ArchivesUnavailable, fetched
from ch_sink.spark.installed import cache_folder

ARCHIVES = [Archive("org.example", "one", "1.2"), Archive("org.example", "two", "3", "tar.gz", "all")]


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes the files that its own file ``files`` lists, keeps the pom, counts its calls, and ends with ``code``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "mvn"
    script.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        f"own = pathlib.Path({str(folder)!r})\n"
        "target = pathlib.Path(next(a for a in sys.argv if a.startswith('-DoutputDirectory=')).partition('=')[2])\n"
        "for name in (own / 'files').read_text().split(): (target / name).write_text(name)\n"
        "(own / 'pom').write_text(pathlib.Path('pom.xml').read_text())\n"
        "(own / 'arguments').open('a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "print('[ERROR] no such artifact')\n"
        "sys.exit(int((own / 'code').read_text()))\n"
    )
    script.chmod(0o755)
    (folder / "files").write_text("one-1.2.jar two-3-all.tar.gz dependency-9.jar")
    (folder / "code").write_text("0")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("CH_SINK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("ch_sink.local.maven.importlib.util.find_spec", lambda _name: None)
    return folder


def left() -> list[str]:
    return sorted(path.name for path in cache_folder().iterdir())


def test_a_folder_is_fetched_once(maven: Path) -> None:
    folder = fetched("things-1", ARCHIVES, Path("java"), without=["org.apache.kafka"])
    assert sorted(path.name for path in folder.iterdir()) == ["dependency-9.jar", "one-1.2.jar", "two-3-all.tar.gz"]
    assert fetched("things-1", ARCHIVES, Path("java")) == folder
    [call] = (maven / "arguments").read_text().splitlines()
    assert "-DexcludeGroupIds=org.apache.kafka" in call
    assert left() == ["things-1", "things-1.lock"]


def test_an_archive_of_another_type_comes_alone(maven: Path) -> None:
    fetched("things-1", ARCHIVES, Path("java"))
    one, two = (maven / "pom").read_text().split("</dependency>")[:2]
    assert "<exclusion>" not in one
    assert "<type>tar.gz</type><classifier>all</classifier><exclusions>" in two


@pytest.mark.parametrize(
    ("code", "files", "reason"),
    [
        ("1", "one-1.2.jar two-3-all.tar.gz", "mvn ended with 1: .ERROR. no such artifact"),
        ("0", "one-1.2.jar", "missing"),
    ],
)
def test_nothing_is_left_of_a_fetch_that_failed(maven: Path, code: str, files: str, reason: str) -> None:
    (maven / "code").write_text(code)
    (maven / "files").write_text(files)
    with pytest.raises(ArchivesUnavailable, match=f"{reason}.*PySpark brings no Ivy"):
        fetched("things-1", ARCHIVES, Path("java"))
    assert left() == ["things-1.lock"]
