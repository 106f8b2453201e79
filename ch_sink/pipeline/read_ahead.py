"""Reads the next chunk in a background thread while the current one is planned."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ch_sink.pipeline.chunks import Chunk

__all__ = ["read_ahead"]

_AHEAD = 1
"""Chunks that are read ahead."""


@contextmanager
def read_ahead(chunks: Iterator[Chunk]) -> Iterator[Iterator[Chunk]]:
    """The same chunks, at most one of them read ahead, in whole or in part.

    A worker's memory is the chunks it holds, so the next one is begun only when the last was taken. A read error is
    raised when its chunk is requested.
    """
    reader = _Reader(chunks)
    reader.thread.start()
    try:
        yield reader.drain()
    finally:
        reader.stop()


class _Reader:
    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._queue: queue.Queue[Chunk | BaseException | None] = queue.Queue(_AHEAD)
        self._taken = threading.Semaphore(0)
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._fill, name="consume", daemon=True)

    def stop(self) -> None:
        self._stop.set()
        while self.thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue
        self.thread.join()

    def drain(self) -> Iterator[Chunk]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            self._taken.release()
            yield item
            del item

    def _fill(self) -> None:
        last: BaseException | None = None
        try:
            for chunk in self._chunks:
                if not self._put(chunk):
                    return
                del chunk
                if not self._wait():
                    return
        except BaseException as error:  # noqa: BLE001 (raised again in the thread that waits)
            last = error
        self._put(last)

    def _put(self, item: Chunk | BaseException | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def _wait(self) -> bool:
        """Wait until the chunk was taken; False if no more are wanted."""
        while not self._stop.is_set():
            if self._taken.acquire(timeout=0.1):
                return True
        return False
