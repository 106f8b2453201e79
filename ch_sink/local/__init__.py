"""Engines that run on this machine for the demo and the tests: ClickHouse over chDB, and a local Kafka."""

import random
import socket

_RANGE = (10_000, 32_000)
"""Below the ports that Linux (32768 and up) and IANA (49152 and up) give to outgoing connections, any of which could
take a port between this look and the server's start."""
_TRIES = 100
_given: set[int] = set()


def free_port() -> int:
    """A loopback port that nobody listens on; never the same one twice in a process. Raises OSError."""
    for _ in range(_TRIES):
        port = random.SystemRandom().randrange(*_RANGE)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise OSError(f"no free port among {_TRIES} between {_RANGE[0]} and {_RANGE[1]}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
