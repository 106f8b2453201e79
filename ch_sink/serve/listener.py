"""A small HTTP server inside the job: one request for each connection, bounded in time, size and number.

Opening a connection costs its client nothing, while the job pays a descriptor and a thread for it. So a request must
arrive within seconds, and where too many connections still send theirs, the one that has taken longest is closed.
"""

import io
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from typing import Self
from urllib.parse import unquote, urlsplit

from ch_sink.errors import ConfigError

log = logging.getLogger(__name__)

_ARRIVE_SECONDS = 10.0
"""How long a request may take to arrive, and an answer to be taken."""
_ARRIVING = 64
"""The most connections that still send their request."""
_ANSWERED = 16
"""The most requests that are answered at the same time."""
_HEAD_BYTES = 64 << 10
"""The most that a request's line and headers have; http.server alone would keep megabytes of them."""
_BODY_BYTES = 64 << 10
_DRAINED_BYTES = 4 << 20
"""How much of a body that is refused is read, since a client that still sends does not look for the answer."""
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server."""

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


@dataclass(frozen=True, slots=True)
class Request:
    """A request that has arrived whole. ``path`` is decoded and has no query."""

    method: str
    path: str
    headers: Message
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; ``headers`` win over those that every answer has."""

    status: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def plain(cls, status: int, text: str) -> Self:
        """A sentence."""
        return cls(status, f"{text}\n".encode(), "text/plain; charset=utf-8")


class Listener(socketserver.ThreadingTCPServer):
    """Answers requests in threads of its own until it is closed."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: Address, answer: Callable[[Request], Answer], who: str) -> None:
        """``who``: begins the message if the address cannot be taken. Port 0 takes a free one. Raises ConfigError."""
        self.answer = answer
        self._lock = threading.Lock()
        self._arriving: dict[socket.socket, None] = {}
        """Connections that still send their request, the oldest first."""
        self._turns = threading.BoundedSemaphore(_ANSWERED)
        if ":" in address.host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((address.host, address.port), _Connection)
        except OSError as error:
            raise ConfigError(
                f"{who} cannot listen on {address}: {error.strerror or error}",
                hint="Choose another address, or stop the process that listens there.",
            ) from error
        self.port: int = self.socket.getsockname()[1]
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name=who, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()
        self._thread.join(5)

    def process_request(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        late: socket.socket | None = None
        with self._lock:
            self._arriving[request] = None
            if len(self._arriving) > _ARRIVING:
                late = next(iter(self._arriving))
                del self._arriving[late]
        if late is not None:
            with suppress(OSError):
                late.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: object) -> None:
        assert isinstance(request, socket.socket)
        self.arrived(request)
        super().shutdown_request(request)

    def arrived(self, connection: socket.socket) -> None:
        """The request is here, or will not come."""
        with self._lock:
            self._arriving.pop(connection, None)

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """The right to answer; False if too many are being answered."""
        mine = self._turns.acquire(blocking=False)
        try:
            yield mine
        finally:
            if mine:
                self._turns.release()

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("a connection failed", exc_info=True)


class _Connection(BaseHTTPRequestHandler):
    """One connection, which has one request."""

    timeout = _ARRIVE_SECONDS
    server: Listener

    def setup(self) -> None:
        super().setup()
        self._incoming = _InTime(self.connection)
        self.rfile = io.BufferedReader(self._incoming)

    def handle(self) -> None:
        with suppress(OSError):  # the client is gone, or too slow
            super().handle()

    def do_GET(self) -> None:
        request = self._arrived()
        self.server.arrived(self.connection)
        if isinstance(request, Answer):
            self._send(request)
            return
        with self.server.turn() as mine:
            self._send(self._answered(request) if mine else Answer.plain(503, "too many requests at once; try again"))

    do_POST = do_HEAD = do_GET  # noqa: N815

    def _arrived(self) -> Request | Answer:
        """The request with its body, or why it is refused. Raises OSError if the rest of it does not come."""
        self._incoming.allowed = _DRAINED_BYTES
        length = self.headers.get("content-length", "0")
        if not length.isdecimal() or "transfer-encoding" in self.headers:
            return Answer.plain(411, "a body needs its content-length")
        size = int(length)
        if size > _BODY_BYTES:
            left = min(size, _DRAINED_BYTES)
            while left > 0 and (piece := self.rfile.read(min(left, _BODY_BYTES))):
                left -= len(piece)
            return Answer.plain(413, f"a body has at most {_BODY_BYTES} bytes")
        body = self.rfile.read(size)
        if len(body) < size:
            raise ConnectionError
        return Request(self.command, unquote(urlsplit(self.path).path), self.headers, body)

    def _answered(self, request: Request) -> Answer:
        try:
            return self.server.answer(request)
        except RecursionError:
            return Answer.plain(400, "the request is nested too deeply")
        except Exception:
            log.exception("a request to %s failed", self.server.server_address)
            return Answer.plain(500, "the request failed; the job's log says why")

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {**_HEADERS, **answer.headers, "content-type": answer.content_type}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def version_string(self) -> str:
        return "ch_sink"

    def log_message(self, *_: object) -> None:
        """Not every request is worth a line."""


class _InTime(io.RawIOBase):
    """The bytes that a client sends, all of them within `_ARRIVE_SECONDS`, and not more than is allowed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.allowed = _HEAD_BYTES
        """Bytes that may still come."""
        self._end = time.monotonic() + _ARRIVE_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self.allowed <= 0:
            raise ConnectionError("the request is too long")
        self._connection.settimeout(left)
        try:
            came = self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(_ARRIVE_SECONDS)
        self.allowed -= came
        return came
