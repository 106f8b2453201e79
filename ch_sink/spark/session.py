"""The Spark session of this product: Java is found, workers run this very Python, logs are quiet, errors are short."""

import logging
import os
import sys
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import ch_sink
from ch_sink.config import Config
from ch_sink.spark.installed import prepared_home, require_java
from ch_sink.spark.jvm import Gateway, Jvm, java_command
from ch_sink.wiring.process import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("ch_sink")

_LOGGING = Path(__file__).with_name("log4j2.properties")
_PANDAS = "PySpark does not yet fully support pandas"
DAEMON_FAILED = "Error from python worker:"
"""Spark's prefix for the output of a Python process that ended before it could start workers."""


@dataclass(frozen=True, slots=True)
class JvmStart:
    """A JVM that is starting, and the Spark properties that it was started with."""

    jvm: Jvm
    conf: Mapping[str, str] = field(repr=False)


def start_jvm(
    app_name: str = "ch_sink",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    stop: Stop | None = None,
) -> JvmStart | None:
    """Start the driver's JVM and return at once; ``build_session`` with the same arguments connects to it.

    None under ``spark-submit``, or when a JVM runs in this process already. Raises ConfigError when no Java is found.
    """
    if _submitted() or _connected():
        return None
    java, home = require_java(), prepared_home()
    _prepare_environment(java, home)
    properties = _properties(app_name, _master(master), conf)
    started = JvmStart(Jvm(java_command(java, home, properties), home, properties), properties)
    if stop is not None:
        stop.at_forced_end(started.jvm.kill)
    return started


def properties_of(configs: Sequence[Config]) -> dict[str, str]:
    """Spark's properties for an application of these streams. Where they differ, the last configuration's hold."""
    return {name: value.get_secret_value() for config in configs for name, value in config.spark.conf.items()}


def build_session(
    app_name: str = "ch_sink",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    started: JvmStart | None = None,
    stop: Stop | None = None,
) -> "SparkSession":
    """The running session, or a new one on ``master`` (``local[*]`` when nothing names one).

    ``conf`` are Spark properties; they win over the defaults set here. Under ``spark-submit`` its own master and
    properties hold and the JVM is there already. Raises ConfigError when a JVM has to be started and no Java is found.
    """
    submitted = _submitted()
    if not submitted:
        started = started or start_jvm(app_name, master, conf, stop)
    _import_pyspark()
    from pyspark.sql import SparkSession

    mute_py4j()
    if started is not None:
        _connect(started.jvm.gateway(stop))
    builder = SparkSession.builder
    for name, setting in _properties(app_name, None if submitted and not master else _master(master), conf).items():
        builder = builder.config(name, setting)
    session = builder.getOrCreate()
    _end_quietly(session)
    if session.sparkContext.getConf().get("spark.speculation") == "true":
        log.warning(
            "spark.speculation is on: copies of a task stop each other, and their work starts again. Set it to false."
        )
    session.sparkContext.setLogLevel((conf or {}).get("spark.log.level", "WARN" if submitted else "ERROR"))
    return session


def default_java_options() -> str:
    """The options of a driver's JVM that this product starts."""
    # The driver only plans; the work is done in Python and ClickHouse, so long JIT compilation does not pay off (a
    # second of start-up, and a tenth of the processor time of a million events).
    return f"-Dlog4j2.configurationFile=file:{_LOGGING} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def _submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _connected() -> bool:
    context = sys.modules.get("pyspark.core.context")
    return context is not None and context.SparkContext._gateway is not None


def _connect(gateway: Gateway) -> None:
    """Let PySpark use this JVM instead of starting one."""
    from pyspark import SparkContext

    os.environ["PYSPARK_GATEWAY_PORT"] = str(gateway.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.secret
    try:
        SparkContext._ensure_initialized()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


def disconnect() -> None:
    """Let PySpark forget a JVM that was killed while a session was being made."""
    if _connected():
        from pyspark import SparkContext

        SparkContext._gateway = SparkContext._jvm = None


def _end_quietly(session: "SparkSession") -> None:
    """Keep PySpark from printing a traceback when the JVM ends first."""
    server = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def mute_py4j() -> None:
    """Apply the level of py4j's logger to what py4j writes to the root logger: tracebacks of commands that failed.

    Its thread that releases Java objects sends commands until this process ends, also to a JVM that is ending.
    """
    logging.getLogger().addFilter(_at_py4js_level)


def _at_py4js_level(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway" or logging.getLogger("py4j").isEnabledFor(record.levelno)


def _import_pyspark() -> None:
    """Import what PySpark needs for its first call, pandas included, while the JVM starts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_PANDAS)
        import pyspark.sql

        if not pyspark.__version__.startswith("3."):  # there it needs an older pandas, which the job does not
            import pyspark.testing


def _master(master: str | None) -> str:
    return master or os.environ.get("MASTER") or "local[*]"


def _properties(app_name: str, master: str | None, conf: Mapping[str, str] | None) -> dict[str, str]:
    """All Spark properties; without a master those for an application that `spark-submit` started."""
    properties = {
        "spark.app.name": app_name,
        "spark.sql.session.timeZone": "UTC",
        # One malloc arena in the Python workers: each range has threads of its own, and chunks that pass from one
        # arena to another leave holes (two million events: 985 MiB and rising, against 550 MiB and level).
        "spark.executorEnv.MALLOC_ARENA_MAX": "1",
        # What pages and event logs leave out. The default knows no account keys (Azure) and no passphrases.
        "spark.redaction.regex": "(?i)secret|passw|passphrase|token|credential|(access|account|private)[.]?key",
        # A copy of a task fences off the one that is slow, so the work begins again instead of ending sooner.
        "spark.speculation": "false",
        # Workers are forked with everything imported.
        "spark.python.daemon.module": "ch_sink.spark.daemon",
        # A task that is interrupted while it opens its Python worker makes Spark end the workers of all tasks.
        "spark.sql.execution.interruptOnCancel": "false",
    }
    if master is not None:
        properties["spark.master"] = master
    if not _submitted():
        properties |= {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": default_java_options(),
        }
        if master is not None and master.startswith("local"):
            properties |= {
                # The machine's own name need not resolve.
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
            }
    return {**properties, **(conf or {})}


def _prepare_environment(java: Path, spark: Path) -> None:
    """Set what the JVM and the Python workers inherit."""
    # Without it workers run the system's python3.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # chdb brings a pandas that is newer than PySpark knows; Spark gets Arrow from this product, never pandas.
    warnings.filterwarnings("ignore", message=_PANDAS)
    os.environ.setdefault("PYTHONWARNINGS", f"ignore:{_PANDAS}:FutureWarning")
    root = str(Path(ch_sink.__file__).parent.parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])
    home = java.resolve().parent.parent
    if (home / "bin" / "java").exists():
        os.environ["JAVA_HOME"] = str(home)
    os.environ["SPARK_HOME"] = str(spark)


def cause(error: Exception) -> str:
    """The line of Spark's message that says what happened: the last one of Python's traceback, else the first.

    Spark puts a phrase of its own before a worker's traceback, and the JVM's stack behind it. The words of a process
    that could not start workers are indented, and followed by its path.
    """
    text = str(error)
    if DAEMON_FAILED in text:
        text = textwrap.dedent(text.partition(DAEMON_FAILED)[2].partition("PYTHONPATH was:")[0].strip("\n"))
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if "Traceback" in text:
        begin = next(number for number, line in enumerate(lines) if "Traceback" in line)
        raised = [line for line in lines[begin + 1 :] if not line.startswith((" ", "\t"))]
        lines = raised[:1] or lines
    return lines[0].strip()[:300] if lines else type(error).__name__
