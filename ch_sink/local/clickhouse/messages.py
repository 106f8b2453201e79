"""HTTP requests and answers as ClickHouse reads and writes them, and the files that their bodies are kept in.

An answer's headers are held back until the outcome is likely known: up to a mebibyte of the result (all of it, in a
file, with ``wait_end_of_query``) waits for the end of the query, so that most failures get a status of their own. A
failure after the first bytes went out is in the body, between the marks that ``X-ClickHouse-Exception-Tag`` announces.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import re
import secrets
import string
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesHeaderParser
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qsl, urlsplit

from ch_sink.local.clickhouse.engine import QueryError, status_of

CHUNK_BYTES = 1 << 20
_IN_MEMORY_BYTES = 4 << 20
_HELD_BYTES = 1 << 20
_MAX_LINE = 64 << 10


class Spool:
    """A body's bytes: in memory while small, in an unnamed file beyond. A context manager: leaving frees them.

    The engine reads them by path (``/proc/self/fd/N``), at its own pace and with seeking, which Arrow and Parquet files
    need; the memory of this process does not grow with them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        memory = getattr(os, "memfd_create", None)
        self._in_memory = memory is not None
        self._descriptor: int = memory("ch_sink-body") if memory is not None else self._disk_file()
        self.size = 0

    def write(self, piece: bytes) -> None:
        """Append bytes."""
        if self._in_memory and self.size + len(piece) > _IN_MEMORY_BYTES:
            memory, self._descriptor, self._in_memory = self._descriptor, self._disk_file(), False
            for held in _chunks(memory):
                os.write(self._descriptor, held)
            os.close(memory)
        view = memoryview(piece)
        while view:
            written = os.write(self._descriptor, view)
            self.size += written
            view = view[written:]

    def fill(self, pieces: Iterable[bytes]) -> None:
        """Append every piece."""
        for piece in pieces:
            self.write(piece)

    @property
    def path(self) -> str:
        """A path that opens the bytes from their beginning."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return descriptor_path(self._descriptor)

    def chunks(self) -> Iterator[bytes]:
        """The bytes from the beginning in pieces of up to a mebibyte."""
        return _chunks(self._descriptor)

    def close(self) -> None:
        """Free the bytes."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _disk_file(self) -> int:
        descriptor, name = tempfile.mkstemp(dir=self._directory, prefix="body-")
        os.unlink(name)
        return descriptor


def descriptor_path(descriptor: int) -> str:
    """A path by which this process can open ``descriptor`` again."""
    return f"/proc/self/fd/{descriptor}" if os.path.isdir("/proc/self/fd") else f"/dev/fd/{descriptor}"


def _chunks(descriptor: int) -> Iterator[bytes]:
    at = 0
    while piece := os.pread(descriptor, CHUNK_BYTES, at):
        at += len(piece)
        yield piece


@dataclass
class Request:
    """A request's parts. ``params`` are those of the URL, joined by those of a form; ``body`` may be read once."""

    method: str
    path: str
    params: dict[str, str]
    headers: Message
    body: Iterator[bytes] = field(default_factory=lambda: iter(()))

    def header(self, name: str) -> str:
        """A header's text, empty when absent."""
        return str(self.headers.get(name, ""))

    def flag(self, name: str) -> bool:
        """A boolean parameter as ClickHouse reads it."""
        return self.params.get(name, "").lower() not in ("", "0", "false", "off")

    def credentials(self) -> tuple[str, str]:
        """User and password, from Basic authorization, ClickHouse's own headers, or the URL."""
        scheme, _, encoded = self.header("Authorization").partition(" ")
        if not scheme:
            user = self.header("X-ClickHouse-User") or self.params.get("user", "")
            return user or "default", self.header("X-ClickHouse-Key") or self.params.get("password", "")
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            user, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
            if scheme.lower() == "basic":
                return user or "default", password
        raise QueryError.make(516, "AUTHENTICATION_FAILED", "Invalid authentication: Basic credentials are expected")


def parse_target(target: str) -> tuple[str, dict[str, str]]:
    """Path and parameters of a request's target; of a repeated parameter the last one counts."""
    parts = urlsplit(target)
    pairs = parse_qsl(parts.query, keep_blank_values=True, errors="surrogateescape", max_num_fields=100_000)
    return parts.path or "/", dict(pairs)


def read_form(body: bytes, content_type: str) -> tuple[dict[str, str], dict[str, bytes]]:
    """A ``multipart/form-data`` body: its parameters, and its files, which are the rows of external tables, by name."""
    found = re.search(r'boundary=(?:"([^"]+)"|([^;\s]+))', content_type)
    if found is None:
        raise QueryError.make(36, "BAD_ARGUMENTS", "The multipart form has no boundary")
    mark = b"\r\n--" + (found[1] or found[2]).encode("latin-1")
    _, *parts = (b"\r\n" + body).split(mark)
    if not parts or not parts[-1].startswith(b"--"):
        raise QueryError.make(3, "UNEXPECTED_END_OF_FILE", "The multipart form ends before its closing boundary")
    params: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for part in parts[:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        header = BytesHeaderParser().parsebytes(head.lstrip() + b"\r\n\r\n")
        name = header.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            raise QueryError.make(36, "BAD_ARGUMENTS", "A part of the multipart form has no name")
        if header.get_param("filename", header="content-disposition") is None:
            params[name] = content.decode(errors="surrogateescape")
        else:
            files[name] = content
    return params, files


class BodyStream:
    """The bytes of a request body, by Content-Length or in chunks, in pieces of up to a mebibyte.

    Iterating raises QueryError when the client closes the connection early. ``drain`` reads what is left so that the
    connection can serve the next request; it gives up beyond ``limit`` bytes and returns False.
    """

    def __init__(self, stream: BinaryIO, headers: Mapping[str, str] | Message) -> None:
        self._stream = stream
        self._chunked = "chunked" in str(headers.get("Transfer-Encoding", "")).lower()
        length = str(headers.get("Content-Length", "") or "0")
        if not length.isdigit():
            raise QueryError.make(381, "HTTP_LENGTH_REQUIRED", f"Content-Length {length!r} is not a number")
        self._left = 0 if self._chunked else int(length)
        self._done = not self._chunked and self._left == 0

    def __iter__(self) -> Iterator[bytes]:
        while not self._done:
            piece = self._next()
            if piece:
                yield piece

    def drain(self, limit: int = 64 << 20) -> bool:
        """Read and forget the rest of the body."""
        try:
            for piece in self:
                limit -= len(piece)
                if limit < 0:
                    return False
        except (QueryError, OSError):
            return False
        return True

    def _next(self) -> bytes:
        if self._left == 0 and self._chunked:
            self._left = self._chunk_size()
            if self._left == 0:
                while self._stream.readline(_MAX_LINE).strip():
                    pass  # trailers
                self._done = True
                return b""
        piece = self._stream.read(min(self._left, CHUNK_BYTES))
        if not piece:
            self._done = True
            raise QueryError.make(
                3, "UNEXPECTED_END_OF_FILE", "The client closed the connection before the end of the request body"
            )
        self._left -= len(piece)
        if self._left == 0:
            if self._chunked:
                self._stream.readline(_MAX_LINE)
            else:
                self._done = True
        return piece

    def _chunk_size(self) -> int:
        line = self._stream.readline(_MAX_LINE)
        with contextlib.suppress(ValueError):
            return int(line.split(b";")[0].strip(), 16)
        self._done = True
        raise QueryError.make(3, "UNEXPECTED_END_OF_FILE", "The chunked request body is cut off or damaged")


@dataclass(frozen=True)
class Summary:
    """Counts of one query as ``X-ClickHouse-Summary`` gives them; every number is text there."""

    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    result_rows: int = 0
    result_bytes: int = 0
    elapsed_ns: int = 0

    def header(self) -> str:
        fields = {**vars(self), "total_rows_to_read": self.read_rows}
        return json.dumps({name: str(value) for name, value in fields.items()}, separators=(",", ":"))


class Response:
    """Collects headers and body and sends them over ``stream``.

    ``spool``: where a result beyond what is held back waits for its end; None sends it as it comes.
    """

    def __init__(self, stream: BinaryIO, headers: dict[str, str]) -> None:
        self.status = 200
        self.headers = dict(headers)
        self.spool: Spool | None = None
        self.close_connection = False
        self.started = False
        """Whether the status line is on its way, so that it cannot be changed any more."""
        self._stream = stream
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._tag = ""

    def write(self, piece: bytes) -> None:
        """Add bytes of the result."""
        if self.started:
            self._send_chunk(piece)
            return
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > _HELD_BYTES:
            held, self._held, self._held_bytes = self._held, [], 0
            if self.spool is not None:
                self.spool.fill(held)
            else:
                self._start_chunked(held)

    def finish(self, summary: Summary | None = None) -> None:
        """End a successful answer."""
        if self.started:
            self._end_chunks()
            return
        if summary is not None:
            self.headers["X-ClickHouse-Summary"] = summary.header()
        spooled = self.spool.size if self.spool is not None else 0
        self._send_head({"Content-Length": str(spooled + self._held_bytes)})
        if self.spool is not None:
            for piece in self.spool.chunks():
                self._stream.write(piece)
        for piece in self._held:
            self._stream.write(piece)
        self._stream.flush()

    def fail(self, error: QueryError, version: str) -> None:
        """End an answer with an exception, even if part of it has been sent."""
        text = f"{error} (version {version})\n" if version else f"{error}\n"
        body = text.encode(errors="surrogateescape")
        if self.started:
            tag = self._tag.encode()
            marks = (tag, body, len(body), tag)
            self._send_chunk(b"\r\n__exception__\r\n%s\r\n%s%d %s\r\n__exception__\r\n" % marks)
            self._end_chunks()
            return
        self._held, self._held_bytes, self.spool = [body], len(body), None
        self.status = status_of(error.code)
        self.headers["Content-Type"] = "text/plain; charset=UTF-8"
        self.headers["X-ClickHouse-Exception-Code"] = str(error.code)
        self.headers.pop("X-ClickHouse-Format", None)
        self.finish(Summary())

    def _start_chunked(self, held: list[bytes]) -> None:
        self._tag = "".join(secrets.choice(string.ascii_lowercase) for _ in range(16))
        self.headers["X-ClickHouse-Exception-Tag"] = self._tag
        self.headers["X-ClickHouse-Summary"] = Summary().header()
        self._send_head({"Transfer-Encoding": "chunked"})
        for piece in held:
            self._send_chunk(piece)

    def _send_head(self, more: dict[str, str]) -> None:
        self.started = True
        kept = {"Connection": "close"} if self.close_connection else {"Connection": "Keep-Alive"}
        kept |= {} if self.close_connection else {"Keep-Alive": "timeout=30"}
        headers = {**self.headers, **more, **kept}
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._stream.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", errors="replace"))

    def _send_chunk(self, piece: bytes) -> None:
        if piece:
            self._stream.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def _end_chunks(self) -> None:
        self._stream.write(b"0\r\n\r\n")
        self._stream.flush()
