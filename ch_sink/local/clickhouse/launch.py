"""Starting the endpoint as a process of its own: what the demo and the tests use as their ClickHouse."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ch_sink.errors import ClickHouseUnavailable, ConfigError
from ch_sink.local import free_port

ENGINE = "CH_SINK_ENGINE"
"""The environment variable that names an older engine."""

_START_S = 60.0
_STOP_S = 20.0


def engine_folder(version: str) -> Path:
    """Where ``compose/engine.sh`` puts an older engine, such as ``25.8``. Raises ConfigError if it is not there."""
    folder = Path(sys.prefix) / "engines" / version
    if not folder.is_dir():
        raise ConfigError(
            f"The ClickHouse engine {version} is not installed in {folder.parent}",
            hint=f"compose/engine.sh {sys.prefix} {version}",
        )
    return folder


class EmbeddedClickHouse:
    """``ch_sink server`` in a child process over ``path`` (a temporary directory when None).

    A context manager; ``url`` is its address. ``stop`` ends it cleanly, ``kill`` like a power cut; after
    either, ``start`` brings it back over the same directory and port. The child ends with this process if that dies.
    ``engine`` is the version of an older engine, else that of CH_SINK_ENGINE, else the environment's own one is taken.
    Raises ConfigError if it is not installed.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        port: int = 0,
        user: str = "default",
        password: str = "",
        log: Path | None = None,
        engine: str | None = None,
    ) -> None:
        older = os.environ.get(ENGINE, "") if engine is None else engine
        self._engine = engine_folder(older) if older else None
        self._temporary = tempfile.TemporaryDirectory(prefix="ch_sink-clickhouse-") if path is None else None
        self.path = Path(self._temporary.name if self._temporary is not None else str(path))
        self.host = "127.0.0.1"
        self.port = port or free_port()
        self.user = user
        self._password = password
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The endpoint's address."""
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    def start(self) -> EmbeddedClickHouse:
        """Start the child and wait until it answers. Raises ClickHouseUnavailable, with its output, if it does not."""
        if self.pid is not None:
            return self
        command = [sys.executable, "-m", "ch_sink.local.clickhouse.server", "--host", self.host]
        command += ["--port", str(self.port), "--path", str(self.path), "--user", self.user]
        command += ["--parent", str(os.getpid())]
        environment = {**os.environ, "CH_SINK_SERVER_PASSWORD": self._password}
        if self._engine is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self._engine), os.environ.get("PYTHONPATH"))))
        with open(self._log, "a+b") if self._log is not None else tempfile.TemporaryFile() as words:
            begin = words.seek(0, os.SEEK_END)
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=words.fileno(),
                stderr=words.fileno(),
                env=environment,
                start_new_session=True,
            )
            if not self._wait_for_ping():
                code = self._child.poll()
                self.kill()
                words.seek(begin)
                raise ClickHouseUnavailable(
                    f"The embedded ClickHouse at {self.url} did not start (exit code {code}): "
                    + words.read().decode(errors="replace").strip()[-2000:],
                    hint="Its output above says why.",
                )
        return self

    def stop(self) -> None:
        """End the child with SIGTERM and wait for it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the child with SIGKILL."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop, and remove the directory if it was a temporary one."""
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> EmbeddedClickHouse:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, how: signal.Signals) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.poll() is None:
            child.send_signal(how)
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
        child.wait()

    def _wait_for_ping(self) -> bool:
        assert self._child is not None
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._child.poll() is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=2.0)
            try:
                connection.request("GET", "/ping")
                if connection.getresponse().status == 200:
                    return True
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
            finally:
                connection.close()
        return False
