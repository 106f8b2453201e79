"""Content-Encoding both ways: gzip, deflate, zstd, lz4, br, xz and bz2, streamed.

Bodies may be several frames one after the other, as clickhouse-connect sends lz4 and zstd.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from ch_sink.local.clickhouse.http_errors import QueryError

__all__ = ["Encoder", "choose", "decode", "encoder", "lz4_module", "zstd_module"]

_PREFERENCE = ("lz4", "zstd", "br", "gzip", "deflate", "xz", "bz2")


class Encoder(Protocol):
    """A streaming compressor."""

    def compress(self, piece: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


def choose(accept_encoding: str) -> str | None:
    """The encoding to answer with: the first of our list that the client accepts, or none."""
    accepted: set[str] = set()
    for part in accept_encoding.split(","):
        name, *parameters = (word.strip().lower() for word in part.split(";"))
        if not any(p.replace(" ", "") in ("q=0", "q=0.0") for p in parameters):
            accepted.add(name)
    available: dict[str, Callable[[], Any]] = {
        "br": _brotli,
        "lz4": lambda: _first_of("lz4.frame"),
        "zstd": lambda: _first_of("compression.zstd", "backports.zstd"),
    }
    for name in _PREFERENCE:
        if name in accepted and (name not in available or available[name]() is not None):
            return name
    return None


def encoder(encoding: str) -> Encoder:
    """A compressor for one of the names that ``choose`` returns."""
    if encoding == "lz4":
        return _Lz4Encoder()
    if encoding == "zstd":
        compressor: Encoder = zstd_module().ZstdCompressor(level=1)
        return compressor
    if encoding == "br":
        return _BrotliEncoder()
    if encoding == "gzip":
        return zlib.compressobj(3, wbits=31)
    if encoding == "deflate":
        return zlib.compressobj(3)
    if encoding == "xz":
        return lzma.LZMACompressor(preset=1)
    return bz2.BZ2Compressor(1)


def decode(encoding: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the decoded bytes of a body. Raises QueryError for an unknown encoding or a damaged body."""
    for name in reversed([word.strip().lower() for word in encoding.split(",") if word.strip()]):
        if name not in ("", "identity"):
            pieces = _decode_one(name, pieces)
    return iter(pieces)


def _decode_one(name: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    make = _decoder(name)
    decoder = make()
    fed = False
    try:
        for piece in pieces:
            while piece:
                if getattr(decoder, "eof", False):
                    decoder, fed = make(), False
                out = decoder.decompress(piece)
                fed = True
                piece = (decoder.unused_data or b"") if getattr(decoder, "eof", False) else b""
                if out:
                    yield out
    except (QueryError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 — every library has its own
        raise QueryError.make(354, "ZLIB_INFLATE_FAILED", f"The request body is not valid {name}: {error}") from None
    if fed and getattr(decoder, "eof", None) is False:
        raise QueryError.make(354, "ZLIB_INFLATE_FAILED", f"The {name} request body ends before its end mark")


def _decoder(name: str) -> Callable[[], Any]:
    if name in ("gzip", "x-gzip"):
        return lambda: zlib.decompressobj(wbits=31)
    if name == "deflate":
        return _Deflate
    if name == "zstd":
        decompressor: Callable[[], Any] = zstd_module().ZstdDecompressor
        return decompressor
    if name == "lz4":
        frames: Callable[[], Any] = lz4_module("frame").LZ4FrameDecompressor
        return frames
    if name == "xz":
        return lzma.LZMADecompressor
    if name == "bz2":
        return bz2.BZ2Decompressor
    if name == "br" and _brotli() is not None:
        return _BrotliDecoder
    raise QueryError.make(48, "NOT_IMPLEMENTED", f"Unknown compression method: {name}")


class _Deflate:
    """zlib-wrapped or raw deflate, recognised by the first bytes, since clients disagree on the meaning."""

    def __init__(self) -> None:
        self._inner: Any = None
        self._first = b""
        self.eof = False
        self.unused_data = b""

    def decompress(self, piece: bytes) -> bytes:
        if self._inner is None:
            piece = self._first = self._first + piece
            if len(piece) < 2:
                return b""
            wrapped = piece[0] & 15 == 8 and int.from_bytes(piece[:2], "big") % 31 == 0
            self._inner = zlib.decompressobj() if wrapped else zlib.decompressobj(wbits=-15)
        out: bytes = self._inner.decompress(piece)
        self.eof, self.unused_data = self._inner.eof, self._inner.unused_data
        return out


class _Lz4Encoder:
    def __init__(self) -> None:
        self._inner = lz4_module("frame").LZ4FrameCompressor()
        self._begun = False

    def compress(self, piece: bytes) -> bytes:
        head: bytes = b"" if self._begun else self._inner.begin()
        self._begun = True
        body: bytes = self._inner.compress(piece)
        return head + body

    def flush(self) -> bytes:
        head: bytes = b"" if self._begun else self._inner.begin()
        tail: bytes = self._inner.flush()
        return head + tail


class _BrotliEncoder:
    def __init__(self) -> None:
        self._inner = _brotli().Compressor(quality=1)

    def compress(self, piece: bytes) -> bytes:
        out: bytes = self._inner.process(piece)
        return out

    def flush(self) -> bytes:
        out: bytes = self._inner.finish()
        return out


class _BrotliDecoder:
    def __init__(self) -> None:
        self._inner = _brotli().Decompressor()

    def decompress(self, piece: bytes) -> bytes:
        out: bytes = self._inner.process(piece)
        return out


def lz4_module(name: str) -> Any:
    """``lz4.frame`` or ``lz4.block``, which come with clickhouse-connect. Raises QueryError if they are missing."""
    found = _first_of(f"lz4.{name}")
    if found is None:
        raise QueryError.make(48, "NOT_IMPLEMENTED", "lz4 needs the package lz4: pip install lz4")
    return found


def zstd_module() -> Any:
    """Python's zstd, or its backport, which comes with clickhouse-connect. Raises QueryError if it is missing."""
    found = _first_of("compression.zstd", "backports.zstd")
    if found is None:
        raise QueryError.make(
            48, "NOT_IMPLEMENTED", "zstd needs the package backports.zstd: pip install backports.zstd"
        )
    return found


def _brotli() -> Any:
    return _first_of("brotli")


def _first_of(*names: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None
