"""The HTTP endpoint: ClickHouse's own interface over a chDB engine, for clients that expect a server.

One thread per connection. ``ClickHouseEndpoint`` owns the data directory (lock, engine) and the socket. ``run`` serves
it in this process until it is stopped, as ``python -m ch_sink.local.clickhouse.server`` does.
"""

from __future__ import annotations

import argparse
import hmac
import logging
import os
import re
import shutil
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from email.message import Message
from http.client import HTTPException, parse_headers
from pathlib import Path

from ch_sink.errors import ChSinkError, ConfigError
from ch_sink.local.clickhouse.engine import DirectoryLock, Engine, QueryError
from ch_sink.local.clickhouse.messages import BodyStream, Request, Response, parse_target
from ch_sink.local.clickhouse.queries import QueryService
from ch_sink.local.clickhouse.row_policies import RowPolicies
from ch_sink.serve.listener import names_this_host

_log = logging.getLogger(__name__)
_MAX_REQUEST_LINE = 1 << 20  # ClickHouse's http_max_uri_size
_IDLE_S = 120.0  # longer than the 30 s that answers announce, so that no client meets a closing socket
_STALLED_S = 600.0
_REQUEST_LINE = re.compile(r"^([A-Z]+) (\S+) HTTP/1\.1$")


class _Connection(socketserver.StreamRequestHandler):
    """One client's connection: requests one after the other until either side closes."""

    rbufsize = 256 << 10
    wbufsize = 64 << 10
    disable_nagle_algorithm = True
    server: _Listener

    def handle(self) -> None:
        try:
            while self._one_request():
                pass
        except (ConnectionError, TimeoutError, OSError):
            return  # the client is gone

    def finish(self) -> None:
        try:
            super().finish()
        except OSError:
            return

    def _one_request(self) -> bool:
        self.connection.settimeout(_IDLE_S)
        line = self.rfile.readline(_MAX_REQUEST_LINE + 1)
        if not line.strip():
            return False
        self.connection.settimeout(_STALLED_S)
        parsed = _REQUEST_LINE.match(line.decode("latin-1").rstrip("\r\n"))
        endpoint = self.server.endpoint
        if parsed is None or len(line) > _MAX_REQUEST_LINE:
            self._respond_plain(414 if len(line) > _MAX_REQUEST_LINE else 400, "Bad request\n")
            return False
        method, target = parsed.groups()
        try:
            headers = parse_headers(self.rfile)
        except HTTPException:
            self._respond_plain(400, "Bad request headers\n")
            return False
        with endpoint.counted():
            return self._answer(method, target, headers)

    def _answer(self, method: str, target: str, headers: Message) -> bool:
        endpoint = self.server.endpoint
        response = Response(self.wfile, endpoint.default_headers())  # type: ignore[arg-type]
        if "close" in str(headers.get("Connection", "")).lower() or endpoint.stopping:
            response.close_connection = True
        body: BodyStream | None = None
        try:
            path, params = parse_target(target)
            body = BodyStream(self.rfile, headers)  # type: ignore[arg-type]
            request = Request(method, path, params, headers)
            request.body = iter(self._with_continue(body, headers))
            endpoint.answer(request, response)
        except QueryError as error:
            self._settle(body, response)
            response.fail(error, endpoint.engine.version)
        except ConnectionError:
            return False
        except Exception as error:  # noqa: BLE001 — the client gets it
            _log.exception("request failed")
            self._settle(body, response)
            text = f"{type(error).__name__}: {error}"
            response.fail(QueryError.make(1001, "STD_EXCEPTION", text), endpoint.engine.version)
        if body is not None and not response.close_connection:
            return body.drain()
        return False

    def _settle(self, body: BodyStream | None, response: Response) -> None:
        """Read what is left of the body, as a client that is still sending does not look for the answer."""
        if not response.started and (body is None or not body.drain()):
            response.close_connection = True

    def _with_continue(self, body: BodyStream, headers: Message) -> BodyStream:
        if "100-continue" in str(headers.get("Expect", "")).lower():
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
        return body

    def _respond_plain(self, status: int, text: str) -> None:
        response = Response(self.wfile, self.server.endpoint.default_headers())  # type: ignore[arg-type]
        response.status, response.close_connection = status, True
        response.write(text.encode())
        response.finish()


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], endpoint: ClickHouseEndpoint) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.endpoint = endpoint
        super().__init__(address, _Connection)


class ClickHouseEndpoint:
    """ClickHouse's HTTP interface over the engine in ``path``.

    ``start`` opens the engine and the socket (raising ConfigError when the directory is in use, chdb is missing or
    the port is taken), ``serve_forever`` answers until ``stop``, ``close`` writes everything to disk.
    """

    def __init__(
        self, path: Path, host: str = "127.0.0.1", port: int = 8123, user: str = "default", password: str = ""
    ) -> None:
        self.host = host
        self.port = port
        self.stopping = False
        self.engine = Engine(path)
        self._user = user
        self._password = password
        self._lock = DirectoryLock(self.engine.private)
        self._spool = self.engine.private / "bodies"
        self._listener: _Listener | None = None
        self._running = _Counter()
        self._policies = RowPolicies(self.engine.private / "row_policies.json", user)
        self._queries = QueryService(self.engine, self._policies, self._spool)

    @property
    def url(self) -> str:
        """The address at which clients reach the endpoint."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """Take the directory, open the engine and listen."""
        self._expect_password()
        try:
            self.engine.private.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The data directory {self.engine.path} cannot be created: {error.strerror}",
                hint="Give --path a directory that this user may write.",
            ) from None
        self._lock.acquire()
        try:
            shutil.rmtree(self._spool, ignore_errors=True)
            self._spool.mkdir()
            self._policies.load()
            self.engine.open(self._policies.xml())
            self._listener = _Listener((self.host, self.port), self)
        except OSError as error:
            self.close()
            raise ConfigError(
                f"Cannot listen on {self.host}:{self.port}: {error.strerror}", hint="Choose another --port or --host."
            ) from None
        except BaseException:
            self.close()
            raise
        self.port = self._listener.server_address[1]
        self._lock.describe(f"at {self.url}")

    def _expect_password(self) -> None:
        """Raises ConfigError if other machines could use the engine, which reads and writes the user's files."""
        if not self._password and not self.host.startswith("127.") and self.host not in ("localhost", "::1"):
            raise ConfigError(
                f"whoever reaches {self.host} could read and write this user's files by SQL",
                hint="Set a password in CH_SINK_SERVER_PASSWORD, or leave --host at 127.0.0.1.",
            )

    def serve_forever(self) -> None:
        """Answer requests until ``stop`` is called from another thread."""
        assert self._listener is not None
        self._listener.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """Take no more connections and end ``serve_forever``."""
        self.stopping = True
        if self._listener is not None:
            self._listener.shutdown()

    def close(self, wait_s: float = 10.0) -> None:
        """Let running requests finish for up to ``wait_s`` seconds, then close the engine and free the directory."""
        self.stopping = True
        if self._listener is not None:
            self._listener.server_close()
        if not self._running.wait_for_zero(wait_s):
            self.engine.kill_all()
            self._running.wait_for_zero(2.0)
        self._queries.close_connections()
        self.engine.close(wait_s=0.0)
        self._lock.release()

    def counted(self) -> _Counter:
        """A context in which a request counts as running."""
        return self._running

    def default_headers(self) -> dict[str, str]:
        """Headers of every answer."""
        return {
            "Content-Type": "text/plain; charset=UTF-8",
            "X-ClickHouse-Server-Display-Name": f"{socket.gethostname()}:{self.port}",
            "X-ClickHouse-Timezone": self.engine.timezone,
        }

    def answer(self, request: Request, response: Response) -> None:
        """Route a request by its path."""
        if request.path in ("/ping", "/replicas_status"):
            response.write(b"Ok.\n")
            response.finish()
        elif request.path not in ("/", "/query"):
            response.status = 404
            response.write(f"There is no handle {request.path}\n\nUse / or /ping for health checks.\n".encode())
            response.finish()
        elif request.method not in ("GET", "POST"):
            response.status = 405
            response.finish()
        elif request.method != "POST" and not request.params.get("query"):
            response.write(b"Ok.\n")
            response.finish()
        else:
            _refuse_web_pages(request)
            self._authenticate(request)
            if request.header("Content-Encoding") or request.flag("decompress") or request.flag("compress"):
                raise QueryError.make(
                    48,
                    "NOT_IMPLEMENTED",
                    "The embedded server neither reads nor writes compressed bodies: clickhouse-connect sends plain "
                    "ones with compress=False",
                )
            self._queries.serve(request, response)

    def _authenticate(self, request: Request) -> None:
        user, password = request.credentials()
        same_user = hmac.compare_digest(user.encode(errors="surrogateescape"), self._user.encode())
        same_password = hmac.compare_digest(password.encode(errors="surrogateescape"), self._password.encode())
        if not (same_user and same_password):
            raise QueryError.make(
                516,
                "AUTHENTICATION_FAILED",
                f"{user}: Authentication failed: password is incorrect, or there is no user with such name.",
            )


def _refuse_web_pages(request: Request) -> None:
    """Refuse what a browser asks in the name of a web page: the user who runs it, not the page, may use the endpoint.

    A page elsewhere may send a POST to any address, and reads the answer if a name of its own leads there. The
    endpoint has no pages, so that every request of a page is foreign. An address that is typed in has site ``none``.
    """
    page = request.header("Origin") or request.header("Sec-Fetch-Site").replace("none", "")
    if page or not names_this_host(request.header("Host")):
        raise QueryError.make(497, "ACCESS_DENIED", "Requests of web pages and to other hosts' names are refused")


class _Counter:
    """Counts the requests being answered."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait_for_zero(self, wait_s: float) -> bool:
        """Wait until no request runs, at most ``wait_s`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, wait_s)


def run(
    endpoint: ClickHouseEndpoint,
    stop: threading.Event,
    *,
    on_ready: Callable[[ClickHouseEndpoint], None],
    parent: int | None = None,
) -> None:
    """Start the endpoint, call ``on_ready``, answer until ``stop`` is set or process ``parent`` has ended.

    Raises ConfigError when it cannot start.
    """
    # The engine takes an unknown table for a file of this folder, which has only folders.
    os.chdir("/")
    endpoint.start()
    try:
        server = threading.Thread(target=endpoint.serve_forever, name="listener", daemon=True)
        server.start()
        on_ready(endpoint)
        while not stop.wait(0.2):
            if parent is not None and os.getppid() != parent:
                break
        endpoint.stop()
    finally:
        endpoint.close()


def main(arguments: list[str] | None = None) -> int:
    """The command line of the child process that ``EmbeddedClickHouse`` starts. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="ch_sink.local.clickhouse.server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--user", default="default")
    parser.add_argument("--parent", type=int)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    password = os.environ.pop("CH_SINK_SERVER_PASSWORD", "")
    stop = threading.Event()

    def ready(endpoint: ClickHouseEndpoint) -> None:
        # After the engine is open: loading it installs handlers of its own.
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: stop.set())
        _say(f"ClickHouse at {endpoint.url}")

    try:
        endpoint = ClickHouseEndpoint(options.path.resolve(), options.host, options.port, options.user, password)
        run(endpoint, stop, on_ready=ready, parent=options.parent)
    except ChSinkError as error:
        _say(f"error: {error}")
        if error.hint:
            _say(f"next: {error.hint}")
        return error.exit_code
    return 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
