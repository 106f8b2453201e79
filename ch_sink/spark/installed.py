"""The installation that a driver uses on this machine: Java, Spark, and an archive of Spark's classes.

The class-data archive has Spark's classes parsed and verified once instead of at every start.
``python -m ch_sink.spark.prepare`` makes it, in about half a minute, unless it is there: `make` does so before the
first demo or test, an image does it when it is built. Without it everything works; the first task runs two to three
seconds later. It holds for one Java and one set of jars. Java passes over it without a word if a jar has another size
or time, so both are in its name.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from ch_sink.errors import ConfigError

MINIMUM = 17
"""Lowest major version that Spark 4.2 and Kafka 4.2 accept."""

_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
_LINKED = ("bin", "conf", "data", "jars", "sbin")


def cache_folder() -> Path:
    """``$CH_SINK_CACHE``, else ``ch_sink`` in the user's cache folder."""
    own = os.environ.get("CH_SINK_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ch_sink"


def find_java() -> Path | None:
    """Path of a ``java`` executable of version 17 or newer, None when this machine has none."""
    for java in _candidates():
        version = java_version(java)
        if version is not None and version >= MINIMUM:
            return java
    return None


def require_java() -> Path:
    """Path of a ``java`` executable of version 17 or newer. Raises ConfigError when this machine has none."""
    java = find_java()
    if java is None:
        raise ConfigError(
            f"Spark needs Java {MINIMUM} or newer, and none was found by JAVA_HOME, PATH or in the usual folders",
            hint="Install a Java runtime (Debian, Ubuntu: openjdk-17-jre-headless) or set JAVA_HOME.",
        )
    return java


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    for pattern in _FOLDERS:
        folder = Path(pattern).expanduser()
        anchor = Path(folder.anchor)
        yield from sorted(anchor.glob(str((folder / "bin" / "java").relative_to(anchor))))


@cache
def java_version(java: Path) -> int | None:
    """Major version that the executable states, None when it does not run."""
    if not java.is_file():
        return None
    try:
        ran = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', ran.stderr + ran.stdout)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def linked_home() -> Path | None:
    """A folder of links to the installed pyspark's Spark, without its ``python/lib/pyspark.zip``.

    Spark puts that archive before the installed packages, and every process compiles what it imports from an archive
    again: about a second for each worker. None where pyspark came without Spark, or where no links can be made: then
    everything works, only slower.
    """
    installed = _installed()
    if installed is None or not (installed / "jars").is_dir():
        return None
    home = cache_folder() / f"spark-{sha256(os.fsencode(installed)).hexdigest()[:12]}"
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        for name in _LINKED:  # some of them need not exist
            with suppress(FileExistsError):
                (home / name).symlink_to(installed / name)
        return home
    return None


def prepared_home() -> Path:
    """``$SPARK_HOME``, else the linked home, else the installed pyspark. Raises ConfigError if it has no jars."""
    named = os.environ.get("SPARK_HOME")
    home = Path(named) if named else linked_home() or _installed()
    if home is None or not (home / "jars").is_dir():
        where = f"SPARK_HOME is {named}, which has no folder jars" if named else "the package pyspark has no jars"
        raise ConfigError(f"Spark was not found: {where}", hint="Install pyspark with pip, or correct SPARK_HOME.")
    return home


def _installed() -> Path | None:
    # Found, not imported: the import takes longer than starting the JVM does.
    found = importlib.util.find_spec("pyspark")
    return Path(found.origin).parent if found is not None and found.origin else None


def class_path(home: Path) -> str:
    """Spark's class path, in a fixed order, as an archive is bound to it."""
    jars = [str(jar) for jar in _jars(home)]
    # Spark's launcher puts this one first, so that no other jar's copy of it is taken.
    first = [jar for jar in jars if Path(jar).name.startswith("slf4j-api-")]
    return os.pathsep.join([str(home / "conf"), *first, *(jar for jar in jars if jar not in first)])


def _jars(home: Path) -> list[Path]:
    return sorted((home / "jars").glob("*.jar"))


def archives(java: Path, home: Path) -> list[Path]:
    """All archives for this Java and this home, of former jars and incomplete ones, too."""
    return sorted(cache_folder().glob(f"{_stem(java, home)}-*.jsa"))


def keep_archive(made: Path, java: Path, home: Path) -> Path:
    """Move a finished archive to its place. Its size goes into its name: Java crashes on one that was cut short."""
    return made.rename(_archive(java, home, made.stat().st_size))


def find_archive(java: Path, home: Path) -> Path | None:
    """The archive for this Java and these jars, None if there is no whole one."""
    return next((file for file in archives(java, home) if file == _archive(java, home, file.stat().st_size)), None)


def _archive(java: Path, home: Path, size: int) -> Path:
    jars = "".join(f"{jar.name} {jar.stat().st_size} {int(jar.stat().st_mtime)}\n" for jar in _jars(home))
    return cache_folder() / f"{_stem(java, home)}-{sha256(jars.encode()).hexdigest()[:8]}-{size}.jsa"


def _stem(java: Path, home: Path) -> str:
    release = java.resolve().parent.parent / "release"
    version = release.read_bytes() if release.is_file() else os.fsencode(java.resolve())
    return f"classes-{sha256(version + bytes(1) + os.fsencode(home)).hexdigest()[:12]}"


def archive_options(java: Path, home: Path) -> list[str]:
    """The Java options that use the archive; none if there is no archive."""
    file = find_archive(java, home)
    return [f"-XX:SharedArchiveFile={file}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if file is not None else []
