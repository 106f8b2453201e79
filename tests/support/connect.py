"""A Spark Connect server in a process of its own, and a session on it: what notebooks on shared clusters have."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from ch_sink.local import free_port
from ch_sink.spark.installed import find_java, prepared_home, require_java
from ch_sink.spark.jvm import TEMPORARY, java_command
from ch_sink.spark.session import default_java_options
from tests.support.sink import ROOT

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SECONDS = 120.0


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of Spark Connect with two slots, without a SparkContext; Python functions run on its server."""
    pytest.importorskip("grpc", reason="needs the packages of pyspark[connect]")
    if find_java() is None:
        pytest.skip("needs Java 17 or newer")
    if pyspark.__version__.startswith("3."):
        pytest.skip("Spark 3 does not bring the server along")
    home, port, folder = prepared_home(), free_port(), tmp_path_factory.mktemp("connect")
    settings = {
        "spark.connect.grpc.binding.port": port,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.MALLOC_ARENA_MAX": 1,
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    # The command of a job's JVM, which has an archive of classes, up to what Spark is told.
    command = java_command(require_java(), home, {"spark.driver.extraJavaOptions": default_java_options()})
    started = [word.replace(TEMPORARY, str(folder)) for word in command[: command.index("--properties-file")]]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*started, "--master", "local[2]", "--class", _SERVER, *options, "spark-internal"],
            cwd=folder,
            stdout=log,
            stderr=log,
            env={
                **{name: text for name, text in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))},
                "SPARK_HOME": str(home),
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(ROOT),
            },
        )
    try:
        session = _session(f"sc://127.0.0.1:{port}", server, folder / "server.log")
        yield session
        session.stop()
    finally:
        server.kill()
        server.wait()


def _session(address: str, server: "subprocess.Popen[bytes]", log: Path) -> Any:
    """A session once the server answers."""
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            session = SparkSession.builder.remote(address).create()
            session.range(1).collect()
        except PySparkException:
            if server.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text()[-3000:]) from None
            time.sleep(0.5)
        else:
            return session
