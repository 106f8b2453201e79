"""Connections that requests without a session leave for later ones with the same settings and database.

Opening one, setting its settings and closing it took a third of a small insert's processor time.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping

from ch_sink.local.clickhouse.engine import Connection

__all__ = ["IdleConnection", "IdleConnections", "Key"]

Key = tuple[tuple[tuple[str, str], ...], str]
"""Settings and database."""
_KEPT = 16


class IdleConnection:
    """A connection of one request at a time. ``mark``: found in the comment of its running query, and in no other."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.mark = f"http-{secrets.token_hex(8)}"
        self.comment: str | None = None
        """The ``log_comment`` that is set."""


class IdleConnections:
    """At most 16; the one that was left longest ago is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[Key, IdleConnection]] = []
        """In the order in which they were left."""

    @staticmethod
    def key(settings: Mapping[str, str], database: str) -> Key:
        """What requests must have in common to use the same connection; the comment is set for each of them."""
        return tuple(sorted((k, v) for k, v in settings.items() if k != "log_comment")), database

    def take(self, key: Key) -> IdleConnection | None:
        """A connection with these settings and this database, which is the caller's from now on."""
        with self._lock:
            for place in reversed(range(len(self._idle))):
                if self._idle[place][0] == key:
                    return self._idle.pop(place)[1]
        return None

    def leave(self, key: Key, idle: IdleConnection) -> None:
        """The request is over, and left the connection as it was."""
        with self._lock:
            self._idle.append((key, idle))
            surplus, self._idle = self._idle[:-_KEPT], self._idle[-_KEPT:]
        for _, old in surplus:
            old.connection.close()

    def close_all(self) -> None:
        """Close every connection; no request may be running."""
        with self._lock:
            kept, self._idle = self._idle, []
        for _, idle in kept:
            idle.connection.close()
