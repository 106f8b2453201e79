"""``multipart/form-data`` bodies: parameters, and files that become the temporary tables of a query.

A part with a file name is the rows of an external table named like its field; one without is a parameter, such as
``query`` or ``param_x``. The parts are read as they come and files go to a spool each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from email.parser import BytesHeaderParser

from ch_sink.local.clickhouse.http_errors import QueryError
from ch_sink.local.clickhouse.spool import Spool

__all__ = ["boundary_of", "read_form"]

_MAX_HEADERS = 64 << 10
_MAX_VALUE = 256 << 20


def boundary_of(content_type: str) -> bytes | None:
    """The boundary of a multipart form, or None when the content is something else."""
    if not content_type.lower().startswith("multipart/form-data"):
        return None
    found = re.search(r'boundary=(?:"([^"]+)"|([^;\s]+))', content_type)
    if found is None:
        raise QueryError.make(36, "BAD_ARGUMENTS", "The multipart form has no boundary")
    return (found.group(1) or found.group(2)).encode("latin-1")


def read_form(
    pieces: Iterator[bytes], boundary: bytes, new_spool: Callable[[], Spool]
) -> tuple[dict[str, str], dict[str, Spool]]:
    """Read a whole form: parameters by name and files by name. The caller closes the spools."""
    source = _Source(pieces)
    params: dict[str, str] = {}
    files: dict[str, Spool] = {}
    mark = b"\r\n--" + boundary
    source.unread(b"\r\n")  # the first boundary has no line break of its own
    for _ in source.until(mark):
        pass  # preamble
    while source.take(2) == b"\r\n":
        head = b"".join(source.until(b"\r\n\r\n", _MAX_HEADERS)) if not source.starts(b"\r\n") else source.take(2)
        header = BytesHeaderParser().parsebytes(head + b"\r\n\r\n")
        name = header.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            raise QueryError.make(36, "BAD_ARGUMENTS", "A part of the multipart form has no name")
        if header.get_param("filename", header="content-disposition") is None:
            params[name] = b"".join(source.until(mark, _MAX_VALUE)).decode(errors="surrogateescape")
        else:
            files[name] = spool = new_spool()
            spool.fill(source.until(mark))
    return params, files


class _Source:
    """Bytes in pieces with a little look-ahead."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._buffer = b""

    def unread(self, piece: bytes) -> None:
        self._buffer = piece + self._buffer

    def take(self, count: int) -> bytes:
        while len(self._buffer) < count and self._more():
            pass
        piece, self._buffer = self._buffer[:count], self._buffer[count:]
        return piece

    def starts(self, prefix: bytes) -> bool:
        while len(self._buffer) < len(prefix) and self._more():
            pass
        return self._buffer.startswith(prefix)

    def until(self, mark: bytes, limit: int | None = None) -> Iterator[bytes]:
        """Yield the bytes before ``mark`` and step over it."""
        seen = 0
        while True:
            at = self._buffer.find(mark)
            ready = at if at >= 0 else max(len(self._buffer) - len(mark) + 1, 0)
            seen += ready
            if limit is not None and seen > limit:
                raise QueryError.make(36, "BAD_ARGUMENTS", f"A part of the multipart form exceeds {limit} bytes")
            if ready:
                yield self._buffer[:ready]
            if at >= 0:
                self._buffer = self._buffer[at + len(mark) :]
                return
            self._buffer = self._buffer[ready:]
            if not self._more():
                raise QueryError.make(
                    3, "UNEXPECTED_END_OF_FILE", "The multipart form ends before its closing boundary"
                )

    def _more(self) -> bool:
        piece = next(self._pieces, b"")
        self._buffer += piece
        return bool(piece)
