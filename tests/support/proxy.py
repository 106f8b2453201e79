"""A TCP proxy in front of an HTTP endpoint that breaks on demand."""

import socket
import threading
from contextlib import suppress
from itertools import cycle
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["drop_answer", "stall_answer", "refuse"]


class FaultyProxy:
    """Passes one request per connection on. ``faults`` are used up by the next insert requests, one each.

    drop_answer: the server's answer is awaited whole (so the insert is done), then the connection is closed.
    stall_answer: likewise, but nothing is sent and the connection stays open until the client gives up.
    refuse: the connection is closed before anything reaches the server.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 8123)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.faults: list[Fault] = []
        self.inserts = 0
        """Insert requests seen, those that were broken included."""
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "FaultyProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._listener.close()

    def _accept(self) -> None:
        while self._open:
            with suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            request = self._request(client)
            fault: Fault | None = None
            if b"INSERT" in request[:4000]:
                self.inserts += 1
                fault = self.faults.pop(0) if self.faults else None
            if fault == "refuse":
                return
            with socket.create_connection(self._next()) as server:
                server.sendall(request)
                answer = b""
                while piece := server.recv(1 << 16):
                    answer += piece
            if fault == "drop_answer":
                return
            if fault == "stall_answer":
                client.settimeout(30)
                client.recv(1)  # ends when the client closes
                return
            client.sendall(answer)

    def _next(self) -> tuple[str, int]:
        """The address to which the next request goes."""
        return self._target

    def _request(self, client: socket.socket) -> bytes:
        """One whole request, with ``Connection: close`` so that the answer ends with the connection."""
        seen = b""
        while b"\r\n\r\n" not in seen:
            piece = client.recv(1 << 16)
            if not piece:
                raise OSError("the client went away")
            seen += piece
        head, _, body = seen.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        kept = [line for line in lines if not line.lower().startswith((b"connection:", b"expect:"))]
        fields = {k.strip().lower(): v.strip() for k, _, v in (line.partition(b":") for line in lines[1:])}
        chunked = b"chunked" in fields.get(b"transfer-encoding", b"")
        length = int(fields.get(b"content-length", b"0"))
        while (not body.endswith(b"0\r\n\r\n")) if chunked else (len(body) < length):
            piece = client.recv(1 << 16)
            if not piece:
                raise OSError("the client went away")
            body += piece
        return b"\r\n".join([*kept, b"Connection: close"]) + b"\r\n\r\n" + body


class Balancer(FaultyProxy):
    """Sends each request to the next of several servers."""

    def __init__(self, *urls: str) -> None:
        parts = [urlsplit(url) for url in urls]
        self._turns = cycle((p.hostname or "127.0.0.1", p.port or 8123) for p in parts)
        super().__init__(urls[0])

    def _next(self) -> tuple[str, int]:
        return next(self._turns)
