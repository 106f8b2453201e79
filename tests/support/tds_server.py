"""A server that speaks SQL Server's protocol (TDS 7.4) with the real driver, and leaves the answers to a function.

It shows how the driver hands over what a server sends: NULL and empty texts, rows in many packets, refusals. It is no
SQL Server: nothing here knows SQL."""

import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


class StandIn:
    """Listens until it is closed. `listen` comes first; ``serve`` answers one connection until that ends."""

    then: Callable[[], object] | None
    """What happens, once, after rows were sent."""

    def listen(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._following: threading.Thread | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()
        if self._following is not None:
            self._following.join()

    def serve(self, client: socket.socket) -> None:
        raise NotImplementedError

    def follow(self) -> None:
        """Let what is to happen once begin."""
        if self.then is not None:
            self._following, self.then = threading.Thread(target=self.then), None
            self._following.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            self.serve(client)


def exactly(client: socket.socket, count: int) -> bytes:
    """So many bytes. Raises EOFError if the connection ends before."""
    data = b""
    while len(data) < count:
        more = client.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


_COLLATION = bytes.fromhex("0904d00034")
_DONE = struct.pack("<BHHQ", 0xFD, 0, 0, 0)
_NONE = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True)
class Refused(Exception):
    """An error of the server."""

    number: int
    text: str


@dataclass(frozen=True)
class Answer:
    """Rows; texts and bytes are sent as ``(max)`` values if their column's name is in ``large``."""

    names: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    large: frozenset[str] = frozenset()


@dataclass
class TdsServer(StandIn):
    """Listens on a free port of 127.0.0.1 until it is closed."""

    answer: Callable[[str], Answer]
    """Answers a batch of SQL, or raises Refused."""
    password: str = "sécret"
    seen: list[str] = field(default_factory=list)
    """Batches, in the order of their arrival."""

    then: Callable[[], object] | None = None
    """What happens, once, after rows of a table were sent."""

    def __post_init__(self) -> None:
        self.listen()

    def serve(self, client: socket.socket) -> None:
        while True:
            kind, body = _received(client)
            if kind == 0x12:
                _send(client, _prelogin())
            elif kind == 0x10:
                _send(client, self._login(body))
            elif kind == 0x01:
                size = struct.unpack_from("<I", body)[0]
                _send(client, self._batch(body[size:].decode("utf-16-le")))
            elif kind == 0x06:  # the driver does not want the rest of an answer
                _send(client, struct.pack("<BHHQ", 0xFD, 0x20, 0, 0))
            else:
                return

    def _login(self, body: bytes) -> bytes:
        at, size = struct.unpack_from("<HH", body, 44)
        given = bytes((b ^ 0xA5) << 4 & 0xF0 | (b ^ 0xA5) >> 4 for b in body[at : at + 2 * size]).decode("utf-16-le")
        if given != self.password:
            return _error(Refused(18456, "Login failed for user 'debezium'.")) + _DONE
        name = "Microsoft SQL Server"
        ack = struct.pack("<B", 1) + b"\x74\x00\x00\x04" + _text(name, 1) + b"\x10\x00\x03\xe8"
        sizes = b"\x04" + _text("4096", 1) + _text("4096", 1)
        return b"\xe3" + struct.pack("<H", len(sizes)) + sizes + b"\xad" + struct.pack("<H", len(ack)) + ack + _DONE

    def _batch(self, sql: str) -> bytes:
        self.seen.append(sql)
        if sql.upper().startswith(("SET ", "USE ")):
            return _DONE
        try:
            answer = self.answer(sql)
        except Refused as refused:
            return _error(refused) + struct.pack("<BHHQ", 0xFD, 2, 0, 0)
        kinds = [_kind(answer, n) for n in range(len(answer.names))]
        out = [b"\x81", struct.pack("<H", len(answer.names))]
        for name, kind in zip(answer.names, kinds, strict=True):
            out.append(struct.pack("<IH", 0, 9) + kind.info + _text(name, 1))
        for row in answer.rows:
            out.append(b"\xd1")
            out += [kind.value(value) for kind, value in zip(kinds, row, strict=True)]
        if sql.startswith("SELECT CONVERT"):
            self.follow()
        done = struct.pack("<BHHQ", 0xFD, 0x10, 0xC1, len(answer.rows))
        return b"".join(out) + done


@dataclass(frozen=True)
class _Kind:
    info: bytes
    value: Callable[[Any], bytes]


def _kind(answer: Answer, column: int) -> _Kind:
    values = [row[column] for row in answer.rows if row[column] is not None]
    binary = bool(values) and isinstance(values[0], bytes)
    if values and isinstance(values[0], int):
        return _Kind(b"\x26\x08", lambda v: b"\0" if v is None else b"\x08" + struct.pack("<q", v))
    large = answer.names[column] in answer.large
    size = struct.pack("<H", 0xFFFF if large else 8000)
    info = b"\xa5" + size if binary else b"\xe7" + size + _COLLATION
    return _Kind(info, _max if large else _short)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-16-le")


def _short(value: Any) -> bytes:
    if value is None:
        return b"\xff\xff"
    return struct.pack("<H", len(_bytes(value))) + _bytes(value)


def _max(value: Any) -> bytes:
    if value is None:
        return struct.pack("<Q", _NONE)
    data = _bytes(value)
    chunk = struct.pack("<I", len(data)) + data if data else b""
    return struct.pack("<Q", len(data)) + chunk + struct.pack("<I", 0)


def _text(text: str, size: int) -> bytes:
    return struct.pack("<B" if size == 1 else "<H", len(text)) + text.encode("utf-16-le")


def _error(refused: Refused) -> bytes:
    inner = struct.pack("<IBB", refused.number, 1, 14) + _text(refused.text, 2) + _text("db", 1) + _text("", 1)
    inner += struct.pack("<I", 1)
    return b"\xaa" + struct.pack("<H", len(inner)) + inner


def _prelogin() -> bytes:
    head = struct.pack(">BHHBHHB", 0, 11, 6, 1, 17, 1, 0xFF)
    return head + bytes.fromhex("100003e80000") + b"\x02"


def _received(client: socket.socket) -> tuple[int, bytes]:
    body = b""
    while True:
        kind, status, size = struct.unpack(">BBH", exactly(client, 8)[:4])
        body += exactly(client, size - 8)
        if status & 1:
            return kind, body


def _send(client: socket.socket, body: bytes, size: int = 4088) -> None:
    parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        client.sendall(struct.pack(">BBHHBB", 4, int(last), len(part) + 8, 0, (number + 1) % 256, 0) + part)
