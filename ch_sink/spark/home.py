"""A Spark home whose Python workers import the installed, compiled pyspark."""

import importlib.util
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from ch_sink.errors import ConfigError
from ch_sink.spark.cache import cache_folder

__all__ = ["linked_home", "prepared_home"]

_LINKED = ("bin", "conf", "data", "jars", "sbin")


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
