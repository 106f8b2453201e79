"""The chDB engine of this process: its directory's lock, opening, connections, and reopening with other row policies.

chDB hosts one engine per process, bound to one directory. Connections to it are cheap (about a millisecond), carry
their own settings, current database and temporary tables, and may run queries at the same time. Row policies are read
from a users file when the engine opens, hence ``reopen``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from xml.sax.saxutils import escape

from ch_sink.errors import ConfigError

_CODE = re.compile(r"Code: (\d+)\.")
_CHDB_PREFIX = re.compile(r"^(?:Streaming [\w ]+ failed: |Streaming query failed: )+")
_BAD_REQUEST = "6 8 15 25 26 27 36 37 38 41 44 53 62 72 117 123 167 168 223 321 376 427 441 675 676"
_NOT_FOUND = "46 47 50 56 60 63 73 78 81 115 152 336 511"
_STATUS = {
    **dict.fromkeys(map(int, _BAD_REQUEST.split()), 400),  # syntax, values that cannot be parsed
    **dict.fromkeys((192, 193, 497, 512, 516), 403),  # users and access
    **dict.fromkeys(map(int, _NOT_FOUND.split()), 404),  # unknown tables, databases, functions, settings
    **{159: 408, 194: 401, 229: 413, 381: 411, 48: 501},
    **dict.fromkeys((76, 209, 439), 503),
}
"""Exception code → HTTP status, as the server has it (src/Server/HTTP/exceptionCodeToHTTPStatus.cpp)."""


class QueryError(Exception):
    """A request that ends in a ClickHouse exception. ``code`` is ClickHouse's number, ``str()`` the server's text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @classmethod
    def make(cls, code: int, name: str, text: str) -> QueryError:
        """An exception of this endpoint, in the shape that the engine gives to its own."""
        return cls(code, f"Code: {code}. DB::Exception: {text} ({name})")

    @classmethod
    def from_engine(cls, error: BaseException) -> QueryError:
        """The engine's exception as it came out of chDB."""
        text = _CHDB_PREFIX.sub("", str(error)).strip()
        text = text[max(text.find("Code: "), 0) :]
        code = _CODE.search(text)
        return cls(int(code[1]), text) if code else cls.make(1001, "STD_EXCEPTION", text or type(error).__name__)


def status_of(code: int) -> int:
    """The HTTP status that ClickHouse answers with for an exception code."""
    return _STATUS.get(code, 500)


class Result(Protocol):
    """The result of a query in every version of chDB: bytes in the asked format and counts of rows and bytes."""

    def bytes(self) -> bytes: ...
    def rows_read(self) -> int: ...
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


class DirectoryLock:
    """An exclusive lock on ``directory`` held until ``release`` or the end of the process.

    The file's text names the owner (process id, then whatever ``describe`` is given), for the error of the next one.
    """

    def __init__(self, directory: Path) -> None:
        self.file = directory / "server.lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise ConfigError that names the owner."""
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise ConfigError(
                f"The data directory {self.file.parent.parent} is in use by {owner}",
                hint="Use that endpoint, stop it first, or choose another directory with --path.",
            ) from None
        self._descriptor = descriptor
        self.describe("")

    def describe(self, owner: str) -> None:
        """Write who holds the lock, for a reader of the file."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()} {owner}".strip().encode() + b"\n", 0)

    def release(self) -> None:
        """Give the lock up. The file stays: removing it would let two processes lock two files of one name."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


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
        users = self.private / "users.xml"
        users.write_text(users_xml, encoding="utf-8")
        (self.private / "config.xml").write_text(
            "<clickhouse><user_directories><users_xml>"
            f"<path>{escape(str(users))}</path>"
            "</users_xml></user_directories></clickhouse>\n",
            encoding="utf-8",
        )
        self._anchor = self.connect()
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
        try:
            return Connection(self._raw_connect(f"{self.path}?config-file={self.private / 'config.xml'}"))
        except RuntimeError as error:
            raise ConfigError(
                f"The engine cannot open {self.path}: {error}",
                hint="Give --path a directory that this user may write and no other process has open.",
            ) from None

    def kill_all(self) -> None:
        """Stop every running query."""
        if self._anchor is not None:
            with contextlib.suppress(QueryError):
                self._anchor.run("KILL QUERY WHERE 1 ASYNC")

    def close(self, wait_s: float = 10.0) -> None:
        """Close the engine, waiting up to ``wait_s`` seconds for running requests; its state is then on disk."""
        with self._gate.alone(wait_s):
            self._close()

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
            hint="Install it: pip install 'ch-sink[embedded]'.",
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
