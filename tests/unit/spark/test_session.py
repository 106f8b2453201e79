"""The session's logging: nothing of py4j's own when the JVM ends first."""

import logging
import subprocess
import sys

import pytest
from py4j.java_gateway import GatewayClient
from py4j.protocol import ERROR_ON_RECEIVE, Py4JNetworkError

from ch_sink.spark import daemon
from ch_sink.spark.session import _properties, mute_py4j


class EndingConnection:
    """What a connection does whose JVM is being ended."""

    def send_command(self, command: str) -> str:
        raise Py4JNetworkError("Error while sending or receiving", ConnectionResetError(), ERROR_ON_RECEIVE)

    def close(self, reset: bool = False) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(("level", "shown"), [(logging.CRITICAL, 0), (logging.INFO, 1)])
def test_a_command_that_meets_an_ending_jvm_is_logged_at_py4js_own_level(
    level: int, shown: int, caplog: pytest.LogCaptureFixture
) -> None:
    mute_py4j()
    caplog.set_level(logging.INFO, "py4j")
    logging.getLogger("py4j").setLevel(level)  # restored by caplog, whose own level stays
    client = GatewayClient()
    client.deque.append(EndingConnection())
    client.send_command("m\nd\no1\ne\n")
    logging.error("another's")
    texts = [record.getMessage() for record in caplog.records if record.name == "root"]
    assert texts == ["Exception while sending command."] * shown + ["another's"]


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077", None])
def test_workers_are_forked_with_everything_imported(master: str | None) -> None:
    assert _properties("x", master, None)["spark.python.daemon.module"] == daemon.__name__
    command = "import sys; from ch_sink.spark import daemon; print('pyarrow' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n", "OpenBLAS reads its number of threads when it is imported"
