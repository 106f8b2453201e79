"""``HOST:PORT`` in settings and options."""

from dataclasses import dataclass
from typing import Self

from ch_sink.errors import ConfigError

__all__ = ["Address"]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, key: str) -> Self:
        """``127.0.0.1:9095``, ``[::1]:9095``, or a port alone for this host only. Raises ConfigError."""
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        if not port.isdecimal() or not 0 <= int(port) <= 65535:
            raise ConfigError(
                f"{key} {text!r} is no address", hint=f"Write it as HOST:PORT, such as {key}: 0.0.0.0:9095."
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
