"""Gets Java archives from Maven Central into a cache folder, once per machine.

A folder appears whole or not at all: files are fetched into a temporary folder beside it, under a lock, which is then
renamed. Maven does it if it is installed, since it knows the machine's mirrors; else PySpark's Ivy does.
"""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ch_sink.spark.installed import cache_folder

_TIMEOUT_SECONDS = 300


class ArchivesUnavailable(Exception):
    """The archives are not in the cache and could not be fetched; the text says why."""


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive in Maven's naming. A jar comes with its dependencies, other types come alone."""

    group: str
    name: str
    version: str
    type: str = "jar"
    classifier: str = ""

    @property
    def file(self) -> str:
        """Its file's name in the cache folder."""
        return f"{self.name}-{self.version}{'-' if self.classifier else ''}{self.classifier}.{self.type}"


def fetched(name: str, archives: Sequence[Archive], java: Path, *, without: Sequence[str] = ()) -> Path:
    """Folder ``name`` of the cache with these archives and their run-time dependencies, except groups ``without``.

    Fetches them if they are missing. Raises ArchivesUnavailable, and OSError when the cache folder cannot be
    written.
    """
    folder = cache_folder() / name
    if _complete(folder, archives):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if _complete(folder, archives):
            return folder
        target = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _fetch(target, archives, without, java)
            shutil.rmtree(folder, ignore_errors=True)
            target.chmod(0o755)
            target.rename(folder)
        finally:
            shutil.rmtree(target, ignore_errors=True)
    return folder


def _complete(folder: Path, archives: Sequence[Archive]) -> bool:
    return all((folder / archive.file).is_file() for archive in archives)


def _fetch(target: Path, archives: Sequence[Archive], without: Sequence[str], java: Path) -> None:
    reasons = []
    maven = shutil.which("mvn")
    fetchers: list[Callable[[], None]] = []
    if maven:
        fetchers.append(partial(_by_maven, maven, target, archives, without, java))
    fetchers.append(partial(_by_ivy, target, archives, without, java))
    for fetch in fetchers:
        try:
            fetch()
        except (OSError, subprocess.SubprocessError, ArchivesUnavailable) as error:
            reasons.append(_reason(error))
        else:
            if _complete(target, archives):
                return
            reasons.append("files are missing")
        for part in target.iterdir():
            part.unlink()
    names = ", ".join(archive.file for archive in archives)
    raise ArchivesUnavailable(f"{names} could not be fetched: " + "; ".join(reasons))


def _by_maven(maven: str, target: Path, archives: Sequence[Archive], without: Sequence[str], java: Path) -> None:
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{a.group}</groupId><artifactId>{a.name}</artifactId><version>{a.version}</version>"
        f"<type>{a.type}</type>{f'<classifier>{a.classifier}</classifier>' if a.classifier else ''}"
        f"{alone if a.type != 'jar' else ''}</dependency>"
        for a in archives
    )
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion>"
            "<groupId>ch-sink</groupId><artifactId>archives</artifactId><version>1</version>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
        if without:
            goal.append(f"-DexcludeGroupIds={','.join(without)}")
        _run([maven, "-q", "-B", *goal], cwd=work, java=java)


def _by_ivy(target: Path, archives: Sequence[Archive], without: Sequence[str], java: Path) -> None:
    # Found, not imported: only its jar is wanted.
    found = importlib.util.find_spec("pyspark")
    home = Path(found.origin).parent if found and found.origin else Path("/nonexistent")
    jars = sorted((home / "jars").glob("ivy-*.jar"))
    if not jars:
        raise ArchivesUnavailable("PySpark brings no Ivy")
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "ivy.xml").write_text(_ivy_file(archives, without))
        # Without the type "bundle" some jars are missing.
        types = sorted({"jar", "bundle", *(archive.type for archive in archives)})
        select = ["-ivy", f"{work}/ivy.xml", "-confs", "default", "-types", *types]
        retrieve = ["-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]"]
        _run([str(java), "-jar", str(jars[-1]), "-cache", f"{work}/cache", *select, *retrieve], cwd=work, java=java)


def _ivy_file(archives: Sequence[Archive], without: Sequence[str]) -> str:
    dependencies = "".join(
        f'<dependency org="{a.group}" name="{a.name}" rev="{a.version}"'
        + ("/>" if a.type == "jar" else f' transitive="false">{_ivy_artifact(a)}</dependency>')
        for a in archives
    )
    excluded = "".join(f'<exclude org="{group}"/>' for group in without)
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="ch-sink" module="archives"/>'
        '<configurations defaultconfmapping="default->default"><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}{excluded}</dependencies></ivy-module>"
    )


def _ivy_artifact(archive: Archive) -> str:
    classifier = f' m:classifier="{archive.classifier}"' if archive.classifier else ""
    return f'<artifact name="{archive.name}" type="{archive.type}" ext="{archive.type}"{classifier}/>'


def _run(command: list[str], *, cwd: str, java: Path) -> None:
    environ = {**os.environ}
    if java.resolve().parent.name == "bin":
        environ["JAVA_HOME"] = str(java.resolve().parent.parent)
    subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=True,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in str(error.stdout or "").splitlines() if "ERROR" in line or "FAILED" in line]
        why = (lines or ["no reason given"])[0].strip()[:300]
        return f"{Path(error.cmd[0]).name} ended with {error.returncode}: {why}"
    return f"{type(error).__name__}: {error}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
