"""`ch_sink server` as its users start it."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ch_sink.local import free_port

pytestmark = pytest.mark.integration


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from ch_sink.cli import main; main()", "server", *arguments]


def ping(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def test_it_serves_refuses_a_second_owner_and_stops_cleanly(tmp_path: Path) -> None:
    port = free_port()
    first = subprocess.Popen(command("--port", str(port), "--path", str(tmp_path)), stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not ping(port):
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        second = subprocess.run(
            command("--port", str(free_port()), "--path", str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 2
        assert f"in use by process {first.pid}" in second.stderr.replace("\n", " ")
        assert "Traceback" not in second.stderr
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
        assert first.stderr is not None
        assert f"http://127.0.0.1:{port}" in first.stderr.read().replace("\n", "")
    finally:
        first.kill()
        first.communicate()
