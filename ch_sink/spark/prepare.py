"""``python -m ch_sink.spark.prepare`` makes the class-data archive for the driver's JVM, unless there is one."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ch_sink.errors import ChSinkError
from ch_sink.spark.installed import archives, cache_folder, find_archive, keep_archive, prepared_home, require_java

_DUMP_SECONDS = 300.0
"""How long Java may take to write the archive."""


def prepare() -> Path | None:
    """Make the archive if it is missing; returns where it is, or None if Java made none."""
    java, home = require_java(), prepared_home()
    found = find_archive(java, home)
    if found is not None:
        return found
    sys.stderr.write("Archiving Spark's classes, so that it starts faster (half a minute, once)\n")
    for outdated in archives(java, home):
        outdated.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=cache_folder()) as folder:
        made = Path(folder) / "classes.jsa"
        _train(made)
        return keep_archive(made, java, home) if made.is_file() else None


def _train(archive: Path) -> None:
    """Run small jobs like those of `ch_sink run` in a JVM that archives the classes it has loaded when it ends."""
    from ch_sink.spark.session import build_session, default_java_options, start_jvm

    options = f"{default_java_options()} -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    conf = {"spark.driver.extraJavaOptions": options}
    started = start_jvm("ch_sink prepare", "local[2]", conf)
    assert started is not None, "nothing else in this process uses Spark"
    session = build_session("ch_sink prepare", "local[2]", conf, started=started)

    def double(batches: Iterator[object]) -> Iterator[object]:
        yield from batches

    rows = session.range(0, 2, 1, 2)
    for _ in range(3):
        rows.mapInArrow(double, rows.schema).collect()
        session.sparkContext.parallelize(["a"], 1).mapPartitions(list).collect()
    session.stop()
    started.jvm.end(_DUMP_SECONDS)


def main() -> int:
    """The command; returns the exit code. A missing archive costs seconds, so that it never fails a build."""
    try:
        made = prepare()
    except (ChSinkError, OSError) as error:
        sys.stderr.write(f"no class-data archive: {error}\n")
        return 0
    if made is None:
        sys.stderr.write("no class-data archive: Java wrote none\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
