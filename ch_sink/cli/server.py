"""``ch_sink server``: ClickHouse's HTTP interface over the embedded engine, until it is stopped."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from ch_sink.local.clickhouse.server import ClickHouseEndpoint, run
from ch_sink.wiring.process import Stop


def serve(
    host: str = "127.0.0.1",
    port: int = 8123,
    path: str | Path = "./clickhouse",
    *,
    user: str = "default",
    password: str = "",
    say: Callable[[str], None] | None = None,
    stop: Stop | None = None,
) -> None:
    """Serve the engine over the directory ``path`` at ``host:port`` until ``stop`` is requested.

    ``say`` gets one line when the endpoint answers. Raises ConfigError (exit code 2) when chdb is not installed, the
    directory belongs to another process, or the port is taken.
    """
    logging.getLogger("ch_sink.local").setLevel(logging.INFO)
    stopped = stop.event if stop is not None else threading.Event()

    def ready(endpoint: ClickHouseEndpoint) -> None:
        if stop is not None:
            stop.expected = True
        if say is not None:
            say(f"ClickHouse {endpoint.engine.version} at {endpoint.url}, data in {endpoint.engine.path}")

    run(ClickHouseEndpoint(Path(path).resolve(), host, port, user, password), stopped, on_ready=ready)
