"""An environment as one archive, for executors that have Python and nothing else: ch_sink and what it needs."""

import re
import shutil
import sys
import tarfile
import venv
from importlib import metadata
from pathlib import Path

import ch_sink

__all__ = ["packed_environment"]

_OF_SPARK = {"pyspark", "py4j"}
"""Executors have them already."""


def packed_environment(folder: Path) -> Path:
    """The archive, as venv-pack makes one of an environment into which ch-sink was installed."""
    root = folder / "environment"
    venv.create(root, symlinks=True)
    packages = root / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for name in _needed("ch-sink", set()) - _OF_SPARK - {"ch-sink"}:
        _copy(metadata.distribution(name), packages)
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(ch_sink.__file__).parent, packages / "ch_sink", ignore=skip)
    shutil.copytree(Path(ch_sink.__file__).parent.parent / "sql", packages / "ch_sink" / "sql", ignore=skip)
    archive = folder / "sink.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        for path in root.iterdir():
            file.add(path, path.name)
    return archive


def _needed(name: str, known: set[str]) -> set[str]:
    """The names of a distribution and of all that it requires, without extras."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name not in known:
        known.add(name)
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            known.discard(name)  # for another platform
            requires = []
        for text in requires:
            if "extra ==" not in text:
                _needed(re.split(r"[^A-Za-z0-9_.-]", text, maxsplit=1)[0], known)
    return known


def _copy(distribution: metadata.Distribution, to: Path) -> None:
    for file in distribution.files or []:
        source = Path(str(distribution.locate_file(file)))
        if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
            continue
        target = to / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
