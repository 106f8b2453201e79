"""The answer to one request: headers held back until the outcome is likely known, then the body as it comes.

Up to ``buffer_bytes`` of the result (or all of it, spooled, with ``wait_end_of_query``) wait for the end of the
query, so that most failures get their own status and the summary its final counts. A failure after the first bytes
went out is written into the body between the marks that ``X-ClickHouse-Exception-Tag`` announces.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import BinaryIO

from ch_sink.local.clickhouse.http_encoding import Encoder
from ch_sink.local.clickhouse.http_errors import QueryError
from ch_sink.local.clickhouse.spool import Spool

__all__ = ["DEFAULT_BUFFER_BYTES", "Response", "Summary"]

DEFAULT_BUFFER_BYTES = 1 << 20


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
        fields = {
            "read_rows": self.read_rows,
            "read_bytes": self.read_bytes,
            "written_rows": self.written_rows,
            "written_bytes": self.written_bytes,
            "total_rows_to_read": self.read_rows,
            "result_rows": self.result_rows,
            "result_bytes": self.result_bytes,
            "elapsed_ns": self.elapsed_ns,
        }
        return json.dumps({name: str(value) for name, value in fields.items()}, separators=(",", ":"))


class Response:
    """Collects headers and body and sends them over ``stream``. Nothing is sent before the buffer is full."""

    def __init__(self, stream: BinaryIO, *, head_only: bool, http_1_0: bool, default_headers: dict[str, str]) -> None:
        self.status = 200
        self.headers = dict(default_headers)
        self.buffer_bytes: int | None = DEFAULT_BUFFER_BYTES
        self.encoding: str | None = None
        self.encoder: Encoder | None = None
        self.new_spool: Callable[[], Spool] | None = None
        self.close_connection = http_1_0
        self._http_1_0 = http_1_0
        self._stream = stream
        self._head_only = head_only
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._spool: Spool | None = None
        self._started = False
        self._tag = ""

    @property
    def started(self) -> bool:
        """Whether the status line is on its way, so that it cannot be changed any more."""
        return self._started

    def write(self, piece: bytes) -> None:
        """Add bytes of the result."""
        if self.encoder is not None:
            piece = self.encoder.compress(piece)
        if self._started:
            self._send_chunk(piece)
            return
        if self._spool is not None:
            self._spool.write(piece)
            return
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self.buffer_bytes is None and self._held_bytes > DEFAULT_BUFFER_BYTES and self.new_spool is not None:
            self._spool = self.new_spool()
            self._spool.fill(self._held)
            self._held = []
        elif self.buffer_bytes is not None and self._held_bytes > self.buffer_bytes:
            self._start_chunked()

    def finish(self, summary: Summary | None = None) -> None:
        """End a successful answer."""
        if self.encoder is not None and (self._started or self._held or self._spool is not None):
            tail, self.encoder = self.encoder.flush(), None
            self.write(tail)
        if self._started:
            self._end_chunks()
            return
        if summary is not None:
            self.headers["X-ClickHouse-Summary"] = summary.header()
        size = self._spool.size if self._spool is not None else self._held_bytes
        self._send_head(size, encoded=size > 0)
        if not self._head_only:
            for piece in self._spool.chunks() if self._spool is not None else self._held:
                self._stream.write(piece)
        self._stream.flush()
        self.close()

    def fail(self, error: QueryError, version: str) -> None:
        """End an answer with an exception, even if part of it has been sent."""
        text = f"{error} (version {version})\n" if version else f"{error}\n"
        body = text.encode(errors="surrogateescape")
        if self._started:
            block = b"__exception__\r\n%s\r\n%s%d %s\r\n__exception__\r\n" % (
                *(self._tag.encode(), body, len(body), self._tag.encode()),
            )
            block = b"\r\n" + block
            if self.encoder is not None:
                block = self.encoder.compress(block) + self.encoder.flush()
                self.encoder = None
            self._send_chunk(block)
            self._end_chunks()
            return
        self.close()
        self._held, self.encoder, self.encoding = [body], None, None
        self._held_bytes = len(body)
        self.status = error.status
        self.headers["Content-Type"] = "text/plain; charset=UTF-8"
        self.headers["X-ClickHouse-Exception-Code"] = str(error.code)
        self.headers.pop("X-ClickHouse-Format", None)
        self.finish(Summary())

    def close(self) -> None:
        """Free what was spooled."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _start_chunked(self) -> None:
        self._tag = "".join(secrets.choice(string.ascii_lowercase) for _ in range(16))
        self.headers["X-ClickHouse-Exception-Tag"] = self._tag
        self.headers["X-ClickHouse-Summary"] = Summary().header()
        self._send_head(None, encoded=True)
        held, self._held = self._held, []
        for piece in held:
            self._send_chunk(piece)

    def _send_head(self, length: int | None, *, encoded: bool) -> None:
        self._started = True
        if length is not None:
            self.headers["Content-Length"] = str(length)
        elif self._http_1_0:
            self.close_connection = True
        else:
            self.headers["Transfer-Encoding"] = "chunked"
        if self.encoding is not None and encoded:
            self.headers["Content-Encoding"] = self.encoding
        if self.close_connection:
            self.headers["Connection"] = "close"
        else:
            self.headers["Connection"] = "Keep-Alive"
            self.headers["Keep-Alive"] = "timeout=30"
        try:
            reason = HTTPStatus(self.status).phrase
        except ValueError:
            reason = "Unknown"
        lines = [f"HTTP/1.1 {self.status} {reason}", *(f"{name}: {value}" for name, value in self.headers.items())]
        self._stream.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", errors="replace"))

    def _send_chunk(self, piece: bytes) -> None:
        if not piece or self._head_only:
            return
        if self._http_1_0:
            self._stream.write(piece)
        else:
            self._stream.write(b"%x\r\n" % len(piece))
            self._stream.write(piece)
            self._stream.write(b"\r\n")

    def _end_chunks(self) -> None:
        if not self._http_1_0 and not self._head_only:
            self._stream.write(b"0\r\n\r\n")
        self._stream.flush()
        self.close()
