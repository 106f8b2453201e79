"""The driver's JVM: started beside other work, connected to PySpark when it is ready, and ended for certain.

PySpark starts its JVM through `spark-submit`: two shell scripts and a second JVM that puts the command together, with
the module `jdk.incubator.vector`, which only MLlib uses and for which Java prints a warning. It also loses the process
when the start is interrupted. Here a local driver's JVM is started directly. Where the launcher has more to decide
(another master, a Spark home or options from the environment, spark-defaults.conf), `spark-submit` still does it.
"""

import atexit
import os
import shlex
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ch_sink.errors import ChSinkError
from ch_sink.spark.installed import archive_options, class_path
from ch_sink.wiring.process import Stop

TEMPORARY = "{temporary}"
"""In a command: the JVM's folder for temporary files."""
_PROPERTIES = "spark.properties"
"""In this folder: Spark's properties, of which some are secrets. Every user of the machine sees a command line."""
_END_SECONDS = 8.0
"""How long the JVM may take to stop Spark and remove its temporary folders."""

_OPENED = (
    "java.base/java.lang java.base/java.lang.invoke java.base/java.lang.reflect java.base/java.io java.base/java.net "
    "java.base/java.nio java.base/java.util java.base/java.util.concurrent java.base/java.util.concurrent.atomic "
    "java.base/jdk.internal.ref java.base/sun.nio.ch java.base/sun.nio.cs java.base/sun.security.action "
    "java.base/sun.util.calendar java.security.jgss/sun.security.krb5"
).split()
_MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)
"""Spark's `JavaModuleOptions`, without the incubator module."""

_LAUNCHER_VARIABLES = ("SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS", "SPARK_DRIVER_MEMORY", "SPARK_MEM")
_LAUNCHER_SETTINGS = ("spark.driver.defaultJavaOptions", "spark.driver.extraLibraryPath", "spark.submit.deployMode")


@dataclass(frozen=True, slots=True)
class Gateway:
    """The address at which py4j reaches the JVM."""

    port: int
    secret: str

    def __repr__(self) -> str:
        return f"Gateway({self.port})"


def java_command(java: Path, home: Path, conf: Mapping[str, str]) -> list[str]:
    """The command of a driver's JVM for these Spark properties, which it reads from a file that `Jvm` writes."""
    settings = ["--properties-file", f"{TEMPORARY}/{_PROPERTIES}"]
    if _needs_launcher(home, conf):
        arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        return [str(home / "bin" / "spark-submit"), *settings, *arguments]
    own = class_path(home)
    extra = conf.get("spark.driver.extraClassPath")
    return [
        str(java),
        "-cp",
        os.pathsep.join([extra, own] if extra else [own]),
        f"-Xmx{conf.get('spark.driver.memory', '1g')}",
        f"-Djava.io.tmpdir={TEMPORARY}",
        "-XX:-UsePerfData",
        *shlex.split(conf.get("spark.driver.extraJavaOptions", "")),
        *(() if extra else archive_options(java, home)),
        *_MODULE_OPTIONS,
        "org.apache.spark.deploy.SparkSubmit",
        *settings,
        "pyspark-shell",
    ]


def properties_text(conf: Mapping[str, str]) -> str:
    """These properties as a file of `java.util.Properties`."""
    return "".join(f"{_escaped(name)}={_escaped(setting)}\n" for name, setting in conf.items())


def defaults_text(home: Path) -> str:
    """The properties of ``spark-defaults.conf``, which Spark reads by itself only if it is given no other file."""
    file = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    return file.read_text(encoding="utf-8") + "\n" if file.is_file() else ""


def _escaped(text: str) -> str:
    special = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    return "".join(special.get(letter, f"\\{letter}" if letter in " =:#!" else letter) for letter in text)


def _needs_launcher(home: Path, conf: Mapping[str, str]) -> bool:
    files = (home / "conf" / name for name in ("spark-defaults.conf", "spark-env.sh"))
    return (
        not conf.get("spark.master", "local").startswith("local")
        or any(name in os.environ for name in _LAUNCHER_VARIABLES)
        or any(name in conf for name in _LAUNCHER_SETTINGS)
        or any(file.exists() for file in files)
    )


class Jvm:
    """A driver's JVM as a child process, in a session of its own: a Ctrl-C in the terminal does not reach it."""

    def __init__(self, command: list[str], home: Path, conf: Mapping[str, str] | None = None) -> None:
        """``command``: see `java_command`; ``conf``: Spark's properties."""
        self._folder = Path(tempfile.mkdtemp(prefix="ch_sink-jvm-"))
        """Its temporary files, so that nothing is left of a JVM that was killed."""
        self._address = self._folder / "address"
        self._properties = self._folder / _PROPERTIES
        self._properties.touch(mode=0o600)
        self._properties.write_text(defaults_text(home) + properties_text(conf or {}), encoding="utf-8")
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._address),
            # As spark-submit does: equal keys have equal hashes in all Python workers.
            "PYTHONHASHSEED": "0",
        }
        # The JVM ends when this pipe closes, however this process ends.
        self._process = subprocess.Popen(
            [word.replace(TEMPORARY, str(self._folder)) for word in command],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._connected = False
        atexit.register(self.end)

    def gateway(self, stop: Stop | None = None) -> Gateway:
        """Wait until the JVM answers.

        Raises:
            ChSinkError: it has ended instead; its own words are on standard error.
            Stopped: a signal came first.
        """
        try:
            while not self._address.is_file():
                if stop is not None:
                    stop.check()
                code = self._process.poll()
                if code is not None:
                    raise ChSinkError(
                        f"Spark's JVM ended with exit code {code} while it started",
                        hint="See its message above; `java -version` must show 17 or newer.",
                    )
                time.sleep(0.02)
            self._connected = True
            self._properties.unlink(missing_ok=True)
            port, size = struct.unpack(">ii", (content := self._address.read_bytes())[:8])
            return Gateway(port, content[8 : 8 + size].decode())
        except BaseException:
            self.kill()
            raise

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def end(self, patience: float = _END_SECONDS) -> None:
        """Close the JVM's input, on which it ends and removes its temporary folders; kill it if it does not."""
        atexit.unregister(self.end)
        self._close_input()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def abandon(self) -> None:
        """End the JVM if nothing has connected to it yet."""
        if not self._connected:
            self.kill()

    def kill(self) -> None:
        """End the JVM at once."""
        atexit.unregister(self.end)
        self._process.kill()
        self._close_input()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
