"""ClickHouse's own compressed blocks, asked for with ``compress=1`` (answers) and ``decompress=1`` (bodies).

A block: checksum (CityHash128 of the rest, 16 bytes), method (1 byte), size with this 9-byte header (4 bytes), size
decoded (4 bytes), then the payload. Methods LZ4, ZSTD and none are read; LZ4 is written. Checksums are verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import pack, unpack_from

from ch_sink.local.clickhouse.city_hash import city_hash_128
from ch_sink.local.clickhouse.http_encoding import lz4_module, zstd_module
from ch_sink.local.clickhouse.http_errors import QueryError

__all__ = ["BlockEncoder", "decode_blocks"]

_LZ4, _ZSTD, _NONE = 0x82, 0x90, 0x02
_CHECKSUM, _HEADER = 16, 9
_MAX_BLOCK = 1 << 30  # ClickHouse's DBMS_MAX_COMPRESSED_SIZE
_WRITE_BYTES = 1 << 20


def decode_blocks(pieces: Iterable[bytes], *, verify: bool = True) -> Iterator[bytes]:
    """Yield the decoded bytes of a body made of blocks. Raises QueryError when a block is damaged or cut off."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while (whole := _whole_block(buffer)) is not None:
            block = bytes(buffer[:whole])
            del buffer[:whole]
            yield _decode(block, verify)
    if buffer:
        raise QueryError.make(33, "CANNOT_READ_ALL_DATA", "The body ends inside a compressed block")


def _whole_block(buffer: bytearray) -> int | None:
    if len(buffer) < _CHECKSUM + _HEADER:
        return None
    size: int = unpack_from("<I", buffer, _CHECKSUM + 1)[0]
    if not _HEADER <= size <= _MAX_BLOCK:
        raise QueryError.make(271, "CANNOT_DECOMPRESS", f"Impossible size of a compressed block: {size}")
    whole = _CHECKSUM + size
    return whole if len(buffer) >= whole else None


def _decode(block: bytes, verify: bool) -> bytes:
    checked = block[_CHECKSUM:]
    if verify and unpack_from("<QQ", block) != city_hash_128(checked):
        raise QueryError.make(
            40, "CHECKSUM_DOESNT_MATCH", "Checksum doesn't match: the compressed block was damaged on its way"
        )
    method, _, size = unpack_from("<BII", checked)
    payload = checked[_HEADER:]
    try:
        if method == _LZ4:
            decoded: bytes = lz4_module("block").decompress(payload, uncompressed_size=size)
        elif method == _ZSTD:
            decoded = zstd_module().decompress(payload)
        elif method == _NONE:
            decoded = payload
        else:
            raise QueryError.make(
                89, "UNKNOWN_COMPRESSION_METHOD", f"Unknown compression method of a block: {method:#x}"
            )
    except QueryError:
        raise
    except Exception as error:  # noqa: BLE001 — each library has its own
        raise QueryError.make(271, "CANNOT_DECOMPRESS", f"A compressed block cannot be decoded: {error}") from None
    if len(decoded) != size:
        raise QueryError.make(271, "CANNOT_DECOMPRESS", f"A block decodes to {len(decoded)} bytes instead of {size}")
    return decoded


class BlockEncoder:
    """Compresses an answer into LZ4 blocks of a mebibyte."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def compress(self, piece: bytes) -> bytes:
        """Add bytes and return the blocks that became full."""
        self._pending += piece
        out = bytearray()
        while len(self._pending) >= _WRITE_BYTES:
            out += _encode(bytes(self._pending[:_WRITE_BYTES]))
            del self._pending[:_WRITE_BYTES]
        return bytes(out)

    def flush(self) -> bytes:
        """Return the last block."""
        piece, self._pending = bytes(self._pending), bytearray()
        return _encode(piece) if piece else b""


def _encode(piece: bytes) -> bytes:
    payload: bytes = lz4_module("block").compress(piece, store_size=False)
    checked = pack("<BII", _LZ4, len(payload) + _HEADER, len(piece)) + payload
    return pack("<QQ", *city_hash_128(checked)) + checked
