"""Metrics for as long as a job runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from ch_sink.model.address import Address
from ch_sink.observe.live import Live

__all__ = ["serving"]


@contextmanager
def serving(address: str | None, live: Live) -> Iterator[None]:
    """Serve a job's metrics; nothing without an address. Raises ConfigError if it cannot be taken."""
    if address is None:
        yield
        return
    from ch_sink.serve.metrics import Metrics, MetricsServer

    server = MetricsServer(Address.parse(address, "metrics"), Metrics(live, lambda: live.server_version).registry)
    try:
        yield
    finally:
        server.close()
