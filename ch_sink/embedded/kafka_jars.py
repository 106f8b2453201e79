"""Gets the jars of a Kafka broker from Maven Central, once per machine.

They lie in a cache folder that appears whole or not at all: fetched into a folder beside it under a lock, then
renamed. Maven is used where it is installed (it knows the machine's mirrors), else the Ivy that PySpark brings.
"""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

__all__ = ["KAFKA_VERSION", "JarsUnavailable", "cache_folder", "kafka_jars"]

KAFKA_VERSION = "4.2.0"
_ARTIFACTS = (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), ("org.slf4j", "slf4j-simple", "1.7.36"))
_NEEDED = (f"kafka_2.13-{KAFKA_VERSION}.jar", f"kafka-clients-{KAFKA_VERSION}.jar", "slf4j-simple-1.7.36.jar")
_TIMEOUT_SECONDS = 300


class JarsUnavailable(Exception):
    """The jars are not in the cache and could not be fetched; the text says why."""


def cache_folder() -> Path:
    """``$CH_SINK_CACHE``, else ``ch_sink`` in the user's cache folder."""
    own = os.environ.get("CH_SINK_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ch_sink"


def kafka_jars(java: Path) -> Path:
    """Folder that holds the broker's jars (46 files, 43 MB); fetches them when it is not there yet.

    Raises JarsUnavailable, and OSError when the cache folder cannot be written.
    """
    folder = cache_folder() / f"kafka-{KAFKA_VERSION}"
    if _complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if _complete(folder):
            return folder
        fetched = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _fetch(fetched, java)
            shutil.rmtree(folder, ignore_errors=True)
            fetched.chmod(0o755)
            fetched.rename(folder)
        finally:
            shutil.rmtree(fetched, ignore_errors=True)
    return folder


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _NEEDED)


def _fetch(target: Path, java: Path) -> None:
    reasons = []
    maven = shutil.which("mvn")
    fetchers: list[Callable[[], None]] = []
    if maven:
        fetchers.append(partial(_by_maven, maven, target, java))
    fetchers.append(partial(_by_ivy, target, java))
    for fetch in fetchers:
        try:
            fetch()
        except (OSError, subprocess.SubprocessError, JarsUnavailable) as error:
            reasons.append(_reason(error))
        if _complete(target):
            return
    raise JarsUnavailable("the broker's jars could not be fetched: " + "; ".join(reasons or ["files are missing"]))


def _by_maven(maven: str, target: Path, java: Path) -> None:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in _ARTIFACTS
    )
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>ch-sink</groupId><artifactId>local-kafka</artifactId><version>1</version>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
        _run([maven, "-q", "-B", *goal], cwd=work, java=java)


def _by_ivy(target: Path, java: Path) -> None:
    # Found, not imported: only its jar is wanted.
    found = importlib.util.find_spec("pyspark")
    home = Path(found.origin).parent if found and found.origin else Path("/nonexistent")
    jars = sorted((home / "jars").glob("ivy-*.jar"))
    if not jars:
        raise JarsUnavailable("PySpark brings no Ivy")
    with tempfile.TemporaryDirectory() as work:
        for group, name, version in _ARTIFACTS:
            # Without the type "bundle" five of the jars stay away.
            select = ["-dependency", group, name, version, "-confs", "default", "-types", "jar", "bundle"]
            retrieve = ["-retrieve", f"{target}/[artifact]-[revision].[ext]"]
            _run([str(java), "-jar", str(jars[-1]), "-cache", work, *select, *retrieve], cwd=work, java=java)


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
