"""The server's address and the connection's settings."""

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from ch_sink.clickhouse.retry import Retry
from ch_sink.errors import ConfigError

__all__ = ["ClickHouseSettings", "Endpoint"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The parts of the URL."""

    interface: Literal["http", "https"]
    host: str
    port: int
    path: str


@dataclass(frozen=True, slots=True)
class ClickHouseSettings:
    """Connection settings of one stream; hashable, picklable, and never shown with the password. Times in seconds."""

    url: str = "http://localhost:8123"
    database: str = "default"
    """Database of tables that are named without one; it need not exist to connect."""
    username: str = "default"
    password: str = field(default="", repr=False)
    settings: tuple[tuple[str, str], ...] = ()
    """ClickHouse settings sent with every query; those that exactly-once inserts depend on cannot be overridden."""
    connect_timeout: float = 10.0
    timeout: float = 300.0
    """Of one request."""
    compression: Literal["lz4", "zstd", "none"] = "lz4"
    """Of the Arrow buffers that are sent."""
    verify: bool = True
    ca_cert: str | None = None
    client_cert: str | None = None
    client_cert_key: str | None = field(default=None, repr=False)
    http_proxy: str | None = field(default=None, repr=False)
    retry: Retry = field(default_factory=Retry)
    server: str = ""
    """The name of the only server whose answers count; empty for any."""

    @property
    def endpoint(self) -> Endpoint:
        """The URL's parts. Raises ConfigError for anything but ``http(s)://host[:port][/path]``."""
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError:
            raise _bad_url("its port is not a number") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _bad_url("it must begin with http:// or https:// and name a host")
        if parts.username or parts.password:
            raise _bad_url("user and password do not belong there")
        if parts.query or parts.fragment:
            raise _bad_url("it has a query; ClickHouse settings go to clickhouse.settings")
        interface: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
        return Endpoint(interface, parts.hostname, port or (8443 if interface == "https" else 8123), parts.path)


def _bad_url(why: str) -> ConfigError:
    # The URL itself is not shown: it may hold a password.
    return ConfigError(
        f"clickhouse.url cannot be used: {why}",
        hint="Write it like http://localhost:8123; the user goes to clickhouse.username, the password to "
        "CH_SINK__CLICKHOUSE__PASSWORD.",
    )
