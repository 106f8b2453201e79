"""Runs the endpoint in this process until it is stopped; also ``python -m ch_sink.local.clickhouse.serve``."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from ch_sink.errors import ChSinkError
from ch_sink.local.clickhouse.server import ClickHouseEndpoint

__all__ = ["main", "run"]


def run(
    endpoint: ClickHouseEndpoint,
    stop: threading.Event,
    *,
    on_ready: Callable[[ClickHouseEndpoint], None],
    parent: int | None = None,
) -> None:
    """Start the endpoint, call ``on_ready``, answer until ``stop`` is set or process ``parent`` has ended.

    Raises ConfigError when it cannot start.
    """
    # The engine looks for relative paths here. There are only folders.
    os.chdir("/")
    endpoint.start()
    try:
        server = threading.Thread(target=endpoint.serve_forever, name="listener", daemon=True)
        server.start()
        on_ready(endpoint)
        while not stop.wait(0.2):
            if parent is not None and os.getppid() != parent:
                break
        endpoint.stop()
    finally:
        endpoint.close()


def main(arguments: list[str] | None = None) -> int:
    """The command line of the child process that ``EmbeddedClickHouse`` starts. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="ch_sink.local.clickhouse.serve")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--user", default="default")
    parser.add_argument("--parent", type=int)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    password = os.environ.pop("CH_SINK_SERVER_PASSWORD", "")
    stop = threading.Event()

    def ready(endpoint: ClickHouseEndpoint) -> None:
        # After the engine is open: loading it installs handlers of its own.
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: stop.set())
        _say(f"ClickHouse at {endpoint.url}")

    try:
        endpoint = ClickHouseEndpoint(options.path.resolve(), options.host, options.port, options.user, password)
        run(endpoint, stop, on_ready=ready, parent=options.parent)
    except ChSinkError as error:
        _say(f"error: {error}")
        if error.hint:
            _say(f"next: {error.hint}")
        return error.exit_code
    return 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
