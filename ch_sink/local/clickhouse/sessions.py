"""HTTP sessions: a connection kept under a ``session_id``, with what SET, USE and CREATE TEMPORARY TABLE left in it.

Reopening the engine (row policies) ends all sessions.
"""

from __future__ import annotations

import threading
import time

from ch_sink.local.clickhouse.engine import Connection, Engine
from ch_sink.local.clickhouse.http_errors import QueryError

__all__ = ["DEFAULT_TIMEOUT_S", "MAX_TIMEOUT_S", "Sessions"]

DEFAULT_TIMEOUT_S = 60
MAX_TIMEOUT_S = 3600
_PATIENCE_S = 1.0  # a client that did not wait for the end of its last answer may come back too soon


class _Session:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.busy = False
        self.expires = 0.0
        self.timeout_s = float(DEFAULT_TIMEOUT_S)


class Sessions:
    """The open sessions of one engine, each used by one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Condition()
        self._open: dict[str, _Session] = {}

    def borrow(self, session_id: str, *, timeout: str | None, must_exist: bool) -> Connection:
        """The session's connection, opened if need be, until ``give_back``. Raises QueryError when it is in use."""
        timeout_s = _timeout(timeout)
        with self._lock:
            self._lock.wait_for(lambda: not self._busy(session_id), _PATIENCE_S)
            session = self._open.get(session_id)
            if session is not None and session.busy:
                raise QueryError.make(
                    373, "SESSION_IS_LOCKED", f"Session {session_id} is locked by a concurrent client"
                )
            if session is None:
                if must_exist:
                    raise QueryError.make(372, "SESSION_NOT_FOUND", f"Session {session_id} not found")
                session = self._open[session_id] = _Session(self._engine.connect())
            session.busy = True
            session.timeout_s = timeout_s
            return session.connection

    def give_back(self, session_id: str) -> None:
        """End a request's use of its session, whose time-out starts again."""
        with self._lock:
            session = self._open.get(session_id)
            if session is not None:
                session.busy = False
                session.expires = time.monotonic() + session.timeout_s
                self._lock.notify_all()

    def _busy(self, session_id: str) -> bool:
        session = self._open.get(session_id)
        return session is not None and session.busy

    def expire(self) -> None:
        """Close the sessions whose time is over."""
        now = time.monotonic()
        with self._lock:
            for session_id in [k for k, s in self._open.items() if not s.busy and s.expires < now]:
                self._open.pop(session_id).connection.close()

    def close_all(self) -> None:
        """Close every session; no request may be using one."""
        with self._lock:
            for session in self._open.values():
                session.connection.close()
            self._open.clear()


def _timeout(text: str | None) -> float:
    if text is None or text == "":
        return float(DEFAULT_TIMEOUT_S)
    if not text.isdigit():
        raise QueryError.make(374, "INVALID_SESSION_TIMEOUT", f"Invalid session timeout: '{text}'")
    if int(text) > MAX_TIMEOUT_S:
        raise QueryError.make(
            374,
            "INVALID_SESSION_TIMEOUT",
            f"Session timeout '{text}' is larger than max_session_timeout: {MAX_TIMEOUT_S}",
        )
    return float(text)
