"""One process owns a data directory: a lock file that the operating system releases when the process dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from ch_sink.errors import ConfigError

__all__ = ["DirectoryLock"]


class DirectoryLock:
    """An exclusive lock on ``directory`` held until ``release`` or the end of the process.

    The file's text names the owner (process id, then whatever ``describe`` is given), for the error of the next one.
    """

    def __init__(self, directory: Path) -> None:
        self.file = directory / "server.lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise ConfigError that names the owner."""
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise ConfigError(
                f"The data directory {self.file.parent.parent} is in use by {owner}",
                hint="Use that endpoint, stop it first, or choose another directory with --path.",
            ) from None
        self._descriptor = descriptor
        self.describe("")

    def describe(self, owner: str) -> None:
        """Write who holds the lock, for a reader of the file."""
        if self._descriptor is None:
            return
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()} {owner}".strip().encode() + b"\n", 0)

    def release(self) -> None:
        """Give the lock up. The file stays: removing it would let two processes lock two files of one name."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
