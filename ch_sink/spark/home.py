"""A Spark home whose Python workers import the installed, compiled pyspark."""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pyspark

from ch_sink.spark.cache import cache_folder

__all__ = ["linked_home"]

_LINKED = ("bin", "conf", "data", "jars", "sbin")


def linked_home() -> Path | None:
    """A folder of links to the installed pyspark's Spark, without its ``python/lib/pyspark.zip``.

    Spark puts that archive in front of what is installed, and Python compiles what it imports from an archive anew in
    every process: about a second for each, the source's worker of each stream included. None where pyspark came
    without Spark, or no links can be made: then everything works, only slower.
    """
    installed = Path(pyspark.__file__).parent
    if not (installed / "jars").is_dir():
        return None
    home = cache_folder() / f"spark-{sha256(os.fsencode(installed)).hexdigest()[:12]}"
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        for name in _LINKED:  # some need not exist, or not yet
            with suppress(FileExistsError):
                (home / name).symlink_to(installed / name)
        return home
    return None
