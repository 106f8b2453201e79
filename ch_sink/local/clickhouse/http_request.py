"""One HTTP request as ClickHouse reads it: parameters, credentials, the body's bytes, and the parts of a form."""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import BinaryIO
from urllib.parse import parse_qsl, urlsplit

from ch_sink.local.clickhouse.http_errors import QueryError
from ch_sink.local.clickhouse.spool import CHUNK_BYTES

__all__ = ["BodyStream", "Request", "parse_target"]

_MAX_LINE = 64 << 10


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

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean parameter as ClickHouse reads it."""
        text = self.params.get(name)
        return default if text is None or text == "" else text.lower() not in ("0", "false", "off")

    def credentials(self) -> tuple[str, str]:
        """User and password from the headers, Basic authorization, or the URL; never from two of them at once."""
        user, key = self.header("X-ClickHouse-User"), self.header("X-ClickHouse-Key")
        authorization = self.header("Authorization")
        in_url = "user" in self.params or "password" in self.params
        if sum((bool(user or key), bool(authorization), in_url)) > 1:
            raise QueryError.make(
                516,
                "AUTHENTICATION_FAILED",
                "Invalid authentication: it is not allowed to use several of X-ClickHouse HTTP headers, the "
                "Authorization HTTP header and URL parameters simultaneously",
            )
        if authorization:
            return _basic(authorization)
        if user or key:
            return user or "default", key
        return self.params.get("user") or "default", self.params.get("password", "")


def _basic(authorization: str) -> tuple[str, str]:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        raise QueryError.make(
            516,
            "AUTHENTICATION_FAILED",
            f"Invalid authentication: '{scheme}' HTTP Authorization scheme is not supported",
        )
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise QueryError.make(
            516, "AUTHENTICATION_FAILED", "Invalid authentication: the Basic credentials cannot be read"
        ) from None
    user, _, password = text.partition(":")
    return user or "default", password


def parse_target(target: str) -> tuple[str, dict[str, str]]:
    """Path and parameters of a request's target; of a repeated parameter the last one counts."""
    parts = urlsplit(target)
    pairs = parse_qsl(parts.query, keep_blank_values=True, errors="surrogateescape", max_num_fields=100_000)
    return parts.path or "/", dict(pairs)


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

    @property
    def started_empty(self) -> bool:
        """Whether there is nothing (more) to read."""
        return self._done

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
                self._skip_trailers()
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

    def _skip_trailers(self) -> None:
        while self._stream.readline(_MAX_LINE).strip():
            pass
