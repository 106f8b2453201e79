"""A body's bytes on their way into or out of the engine: held in memory while small, in an unnamed file beyond.

The engine reads and writes them by path (``/dev/fd/N``), at its own pace and with seeking, which Arrow and Parquet
files need; the memory of this process does not grow with them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["CHUNK_BYTES", "Spool", "descriptor_path"]

CHUNK_BYTES = 1 << 20
_IN_MEMORY_BYTES = 4 << 20


def descriptor_path(descriptor: int) -> str:
    """A path by which this process can open ``descriptor`` again."""
    return f"/proc/self/fd/{descriptor}" if os.path.isdir("/proc/self/fd") else f"/dev/fd/{descriptor}"


class Spool:
    """Bytes written once and then read by path or in chunks. A context manager: leaving frees them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = _memory_file()
        self._in_memory = self._descriptor is not None
        if self._descriptor is None:
            self._descriptor = self._disk_file()
        self.size = 0

    def write(self, piece: bytes | memoryview) -> None:
        """Append bytes."""
        assert self._descriptor is not None
        if self._in_memory and self.size + len(piece) > _IN_MEMORY_BYTES:
            self._move_to_disk()
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
        assert self._descriptor is not None
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return descriptor_path(self._descriptor)

    def chunks(self) -> Iterator[bytes]:
        """The bytes from the beginning in pieces of up to a mebibyte."""
        assert self._descriptor is not None
        at = 0
        while piece := os.pread(self._descriptor, CHUNK_BYTES, at):
            at += len(piece)
            yield piece

    def close(self) -> None:
        """Free the bytes."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _disk_file(self) -> int:
        descriptor, name = tempfile.mkstemp(dir=self._directory, prefix="body-")
        os.unlink(name)
        return descriptor

    def _move_to_disk(self) -> None:
        assert self._descriptor is not None
        target = self._disk_file()
        for piece in self.chunks():
            os.write(target, piece)
        os.close(self._descriptor)
        self._descriptor = target
        self._in_memory = False


def _memory_file() -> int | None:
    create = getattr(os, "memfd_create", None)
    return create("ch_sink-body") if create is not None else None
