"""What cannot be had is told in a sentence, which becomes the reason of a skip."""

import os
from pathlib import Path

import pytest

from ch_sink.spark.installed import find_java
from tests.real.stand.connect import Connect, Registry
from tests.real.stand.daemon import Missing
from tests.real.stand.programs import programs


@pytest.fixture
def _nothing_to_fetch_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, no Maven, no Ivy."""
    if find_java() is None:
        pytest.skip("needs Java 17 or newer")
    monkeypatch.setenv("CH_SINK_CACHE", str(tmp_path))
    monkeypatch.setattr("ch_sink.local.maven.shutil.which", lambda _name: None)
    monkeypatch.setattr("ch_sink.local.maven.importlib.util.find_spec", lambda _name: None)


@pytest.mark.usefixtures("_nothing_to_fetch_with")
def test_archives_that_cannot_be_fetched() -> None:
    with pytest.raises(Missing, match=r"connect-runtime-.*\.jar.* could not be fetched: .*PySpark brings no Ivy"):
        Connect("localhost:9")
    with pytest.raises(Missing, match=r"apicurio-registry-app-.*\.tar\.gz could not be fetched"):
        Registry()


def test_a_program_that_is_nowhere_and_may_not_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(
        Missing, match=r"needs no-such-program \(Debian and Ubuntu: apt-get install no-such-package\): "
    ):
        programs("no-such-package", ["no-such-program"])


def test_programs_of_one_release_come_from_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for release in ("9.6", "15", "17"):
        folder = tmp_path / "postgresql" / release / "bin"
        folder.mkdir(parents=True)
        for name in ("serve-it", "make-it") if release != "17" else ("serve-it",):
            (folder / name).touch(mode=0o755)
    monkeypatch.setattr("tests.real.stand.programs._FOLDERS", (f"{tmp_path}/postgresql/*/bin",))
    found = programs("postgresql", ["serve-it", "make-it"])
    assert [path.parent.parent.name for path in found] == ["15", "15"]
