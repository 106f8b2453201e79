"""``HOST:PORT`` in settings and options, the names of this host in requests, numbers with their nouns."""

import socket
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

from ch_sink.errors import ConfigError


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
                f"{key} {text!r} is not an address", hint=f"Write it as HOST:PORT, such as {key}: 0.0.0.0:9095."
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def names_this_host(header: str, others: Collection[str] = ()) -> bool:
    """Whether a request's ``Host`` means this host: an address, localhost, its own name, or one of ``others``.

    A web page elsewhere makes a browser send its requests here by letting a name of its own lead here ("DNS
    rebinding"). The header then has that name. Requests of other clients may have none.
    """
    try:
        host = (urlsplit(f"//{header.strip()}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if not header or host in {"localhost", socket.gethostname().lower(), *(name.lower() for name in others)}:
        return True
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 row``, ``12 000 rows``; ``plural`` where an s is not enough."""
    return f"{grouped(number)} {noun if number == 1 else plural or noun + 's'}"


def grouped(number: int) -> str:
    """The number with grouped thousands: ``12 000``."""
    return f"{number:,}".replace(",", " ")
