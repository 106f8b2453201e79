"""The chDB engine of this process: opening, connections, and reopening with other row policies.

chDB hosts one engine per process, bound to one directory. Connections to it are cheap (about a millisecond), carry
their own settings, current database and temporary tables, and may run queries at the same time; so every request
gets its own. Row policies are read from a users file when the engine opens, hence ``reopen``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from xml.sax.saxutils import escape

from ch_sink.errors import ConfigError
from ch_sink.local.clickhouse.http_errors import QueryError

__all__ = ["Connection", "Engine", "Result"]


class Result(Protocol):
    """What every chDB returns for a query: bytes in the asked format and counts of rows and bytes."""

    def bytes(self) -> bytes: ...
    def rows_read(self) -> int: ...
    def bytes_read(self) -> int: ...
    def storage_rows_read(self) -> int: ...
    def storage_bytes_read(self) -> int: ...
    def elapsed(self) -> float: ...


class Connection:
    """One connection to the engine; its settings and temporary tables are its own. Not for two threads at once."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def run(
        self, query: str | bytes, output_format: str = "TabSeparated", params: Mapping[str, str] | None = None
    ) -> Result:
        """Run one query and return its result. Raises QueryError with the engine's code."""
        try:
            result: Result = self._raw.query(query, output_format, params=dict(params or {}))
        except RuntimeError as error:
            raise QueryError.from_engine(error) from None
        return result

    def values(self, query: str) -> list[list[str]]:
        """The rows of a small query as text, escaped as TabSeparated does."""
        text = self.run(query).bytes().decode(errors="surrogateescape")
        return [line.split("\t") for line in text.splitlines()]

    def close(self) -> None:
        self._raw.close()


class Engine:
    """The engine over ``path``, with its configuration in ``path/ch_sink``.

    ``use`` lends out the right to work with it; ``reopen`` waits until nobody does. Raises ConfigError when chdb is
    not installed or the directory cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.private = path / "ch_sink"
        self._raw_connect = _load_chdb()
        self._gate = _Gate()
        self._anchor: Connection | None = None
        self.version = ""
        self.timezone = ""

    def open(self, users_xml: str) -> None:
        """Open the engine with this users file."""
        self.private.mkdir(parents=True, exist_ok=True)
        users = self.private / "users.xml"
        users.write_text(users_xml, encoding="utf-8")
        config = self.private / "config.xml"
        config.write_text(
            "<clickhouse><user_directories><users_xml>"
            f"<path>{escape(str(users))}</path>"
            "</users_xml></user_directories></clickhouse>\n",
            encoding="utf-8",
        )
        self._anchor = self._connect()
        ((self.version, self.timezone),) = self._anchor.values("SELECT version(), timezone()")

    def reopen(self, users_xml: str, before: Callable[[], None]) -> None:
        """Close the engine once no request uses it and open it with another users file.

        ``before`` is called when nobody uses the engine any more, to close the connections that are kept.
        """
        with self._gate.alone():
            before()
            self._close()
            self.open(users_xml)

    @property
    def waits_for_drops(self) -> bool:
        """Whether ``DROP … SYNC`` ends: before 26.7 chDB does not run the task that it waits for."""
        return tuple(int(part) for part in self.version.split(".")[:2]) >= (26, 7)

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Hold the engine open for one request."""
        with self._gate.shared():
            if self._anchor is None:
                raise QueryError.make(745, "SERVER_OVERLOADED", "The endpoint is stopping")
            yield

    def connect(self) -> Connection:
        """A new connection; to be called and closed under ``use``."""
        return self._connect()

    def kill_all(self) -> None:
        """Stop every running query."""
        if self._anchor is not None:
            with contextlib.suppress(QueryError):
                self._anchor.run("KILL QUERY WHERE 1 ASYNC")

    def close(self, wait_s: float = 10.0) -> None:
        """Close the engine, waiting up to ``wait_s`` seconds for running requests; its state is then on disk."""
        with self._gate.alone(wait_s):
            self._close()

    def _connect(self) -> Connection:
        config = self.private / "config.xml"
        try:
            return Connection(self._raw_connect(f"{self.path}?config-file={config}"))
        except RuntimeError as error:
            raise ConfigError(
                f"The engine cannot open {self.path}: {error}",
                hint="Give --path a directory that this user may write and no other process has open.",
            ) from None

    def _close(self) -> None:
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None


def _load_chdb() -> Any:
    try:
        import chdb
    except ImportError:
        raise ConfigError(
            "The embedded ClickHouse needs the package chdb, which is not installed",
            hint="pip install 'ch-sink[embedded]'",
        ) from None
    return chdb.connect


class _Gate:
    """Many in ``shared`` or one ``alone``; who waits to be alone keeps later ones out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closing = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._closing)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self, wait_s: float | None = None) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._closing)
            self._closing = True
            self._changed.wait_for(lambda: self._inside == 0, wait_s)
        try:
            yield
        finally:
            with self._changed:
                self._closing = False
                self._changed.notify_all()
