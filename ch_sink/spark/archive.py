"""A class-data archive for the driver's JVM: Spark's classes, parsed and verified once instead of at every start.

``python -m ch_sink.spark.prepare`` makes it, in about half a minute, unless it is there: `make` does so before the
first demo or test, an image does it when it is built. Without it everything works; the JVM starts two to three seconds
later. It holds for one Java and one set of jars, whose versions are in its name.
"""

import os
from hashlib import sha256
from pathlib import Path

from ch_sink.spark.cache import cache_folder

__all__ = ["archive_options", "archive_stem", "class_path", "find_archive", "keep_archive"]


def class_path(home: Path) -> str:
    """Spark's class path, in a fixed order, as an archive is bound to it."""
    jars = sorted(str(jar) for jar in (home / "jars").glob("*.jar"))
    # Spark's launcher puts this one first, so that no other jar's copy of it is taken.
    first = [jar for jar in jars if Path(jar).name.startswith("slf4j-api-")]
    return os.pathsep.join([str(home / "conf"), *first, *(jar for jar in jars if jar not in first)])


def archive_stem(java: Path, home: Path) -> Path:
    """The archive's path for this Java and these jars, without the end of its name."""
    release = java.resolve().parent.parent / "release"
    version = release.read_bytes() if release.is_file() else os.fsencode(java.resolve())
    stamp = sha256(version + b"\0" + os.fsencode(class_path(home))).hexdigest()[:12]
    return cache_folder() / f"classes-{stamp}"


def keep_archive(made: Path, java: Path, home: Path) -> Path:
    """Move a finished archive to its place. Its size goes into its name: Java crashes on one that was cut short."""
    stem = archive_stem(java, home)
    return made.rename(stem.with_name(f"{stem.name}-{made.stat().st_size}.jsa"))


def find_archive(java: Path, home: Path) -> Path | None:
    """The archive for this Java and these jars, None if there is no whole one."""
    stem = archive_stem(java, home)
    for file in stem.parent.glob(f"{stem.name}-*.jsa"):
        if file.stem == f"{stem.name}-{file.stat().st_size}":
            return file
    return None


def archive_options(java: Path, home: Path) -> list[str]:
    """The Java options that use the archive; none if there is no archive."""
    file = find_archive(java, home)
    # Java passes over an archive that no longer fits, because a jar was replaced, and need not say so.
    return [f"-XX:SharedArchiveFile={file}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if file is not None else []
