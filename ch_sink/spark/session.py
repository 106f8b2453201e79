"""The Spark session of this product: found Java, this very Python in the workers, quiet logs."""

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

import ch_sink
from ch_sink.errors import ConfigError
from ch_sink.spark.home import linked_home
from ch_sink.spark.java import MINIMUM, find_java

__all__ = ["build_session"]

_LOGGING = Path(__file__).with_name("log4j2.properties")
_PANDAS = "PySpark does not yet fully support pandas"


def build_session(
    app_name: str = "ch_sink", master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, or a new one on ``master`` (``local[*]`` when nothing names one).

    ``conf`` are Spark properties; they win over the defaults set here. Under ``spark-submit`` its own master and
    properties hold and the JVM is there already. Raises ConfigError when a JVM has to be started and no Java is found.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(app_name)
    if not submitted:
        _prepare_environment()
        master = master or os.environ.get("MASTER") or "local[*]"
    if master:
        builder = builder.master(master)
    for name, setting in {**_defaults(master, submitted=submitted), **(conf or {})}.items():
        builder = builder.config(name, setting)
    session = builder.getOrCreate()
    if not submitted:
        session.sparkContext.setLogLevel((conf or {}).get("spark.log.level", "ERROR"))
    return session


def _defaults(master: str | None, *, submitted: bool) -> dict[str, str]:
    defaults = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "60s",
        # One malloc arena in the Python workers: each range has threads of its own, and chunks that pass from one
        # arena to another leave holes (two million events: 985 MiB and rising, against 550 MiB and level).
        "spark.executorEnv.MALLOC_ARENA_MAX": "1",
    }
    if submitted:
        return defaults
    defaults |= {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The JVM only plans, the work is done in Python and the server: code that it optimises for long is for nothing
        # (a second of start-up, and one of every ten of a million events' processor time).
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile=file:{_LOGGING} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        ),
    }
    if master and master.startswith("local"):
        # The machine's own name need not resolve.
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return defaults


def _prepare_environment() -> None:
    """Set what the JVM and the Python workers inherit: without it workers take the system's ``python3``."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # pandas comes with other packages, not for Spark; what is handed to Spark is Arrow.
    warnings.filterwarnings("ignore", message=_PANDAS)
    os.environ.setdefault("PYTHONWARNINGS", f"ignore:{_PANDAS}:FutureWarning")
    root = str(Path(ch_sink.__file__).parent.parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])
    java = find_java()
    if java is None:
        raise ConfigError(
            f"Spark needs Java {MINIMUM} or newer, and none was found by JAVA_HOME, PATH or in the usual folders",
            hint="Install a Java runtime (Debian, Ubuntu: openjdk-17-jre-headless) or set JAVA_HOME.",
        )
    home = java.resolve().parent.parent
    if (home / "bin" / "java").exists():
        os.environ["JAVA_HOME"] = str(home)
    if "SPARK_HOME" not in os.environ and (spark := linked_home()) is not None:
        os.environ["SPARK_HOME"] = str(spark)
