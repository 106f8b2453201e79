"""Cuts an offset range into chunks, the same on every attempt, and reads them ahead.

Cuts are at multiples of ``chunk_offsets`` (absolute offsets), and inside such a window at halves, quarters,
eighths … of it if its bytes exceed the cap. A schema that values of JSON repeat counts once.
"""

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from ch_sink.model.change import Headers, Records
from ch_sink.model.values import concatenated, enclosed, lengths, net_lengths

_DEEPEST = 12
_AHEAD = 1
"""Chunks that are read ahead."""
_NOTHING = Records("", 0, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), [], [])


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of the offsets [first, end); there may be fewer records than offsets, or none."""

    first: int
    end: int
    records: Records


def cut(slices: Iterable[Records], start: int, end: int, *, chunk_offsets: int, chunk_bytes: int) -> Iterator[Chunk]:
    """Regroup consecutive slices of a range [start, end) into chunks, in order, without gaps.

    Memory is bounded by ``chunk_bytes`` and one slice, or by one record if that is larger.
    """
    held = _Held()
    first = start
    for piece in slices:
        held.add(piece)
        while (at := _ready(held, first, end, chunk_offsets, chunk_bytes)) is not None:
            yield Chunk(first, at, held.take_below(at))
            first = at
    while first < end:
        at = _ready(held, first, end, chunk_offsets, chunk_bytes) or _window_end(first, end, chunk_offsets)
        yield Chunk(first, at, held.take_below(at))
        first = at


def _ready(held: "_Held", first: int, end: int, chunk_offsets: int, chunk_bytes: int) -> int | None:
    """The end of the next chunk, if the records read so far decide it."""
    if not len(held.offsets):
        return None
    window_end = _window_end(first, end, chunk_offsets)
    inside = int(np.searchsorted(held.offsets, window_end))
    fit = int(np.searchsorted(held.running[:inside], held.before + chunk_bytes, side="right"))
    if fit < inside and inside > 1:
        fit = int(np.searchsorted(held.net()[:inside], chunk_bytes, side="right"))
    if fit < inside and inside > 1:
        return _fraction(first, int(held.offsets[max(fit, 1)]), window_end, chunk_offsets)
    return window_end if inside < len(held.offsets) else None


class _Held:
    """Records read and not yet cut, with the running sum of their bytes."""

    def __init__(self) -> None:
        self.parts: list[Records] = []
        self.offsets = np.zeros(0, dtype=np.int64)
        self.running = np.zeros(0, dtype=np.int64)
        self.before = 0
        self._forget_net()

    def _forget_net(self) -> None:
        self._net = np.zeros(0, dtype=np.int64)
        self._netted = 0
        self._head = b""

    def net(self) -> npt.NDArray[np.int64]:
        """The running sum where a schema that values repeat counts once, as it is also held once from now on."""
        found = [self._net]
        for place in range(self._netted, len(self.parts)):
            part = self.parts[place] = replace(self.parts[place], values=enclosed(self.parts[place].values))
            sizes, self._head = net_lengths(part.values, self._head)
            before = int(found[-1][-1]) if len(found[-1]) else 0
            found.append(before + np.cumsum(sizes + lengths(part.keys)))
        self._net, self._netted = np.concatenate(found), len(self.parts)
        return self._net

    def add(self, piece: Records) -> None:
        if not len(piece) and self.parts:
            return
        last = int(self.running[-1]) if len(self.running) else self.before
        sizes = lengths(piece.keys) + lengths(piece.values)
        self.running = np.concatenate([self.running, last + np.cumsum(sizes)])
        self.offsets = np.concatenate([self.offsets, piece.offsets])
        self.parts.append(piece)

    def take_below(self, at: int) -> Records:
        """Remove and return the records at offsets below ``at``."""
        whole = join_records(self.parts) if self.parts else _NOTHING
        count = int(np.searchsorted(self.offsets, at))
        if count:
            self.before = int(self.running[count - 1])
        self.offsets, self.running = self.offsets[count:], self.running[count:]
        self._forget_net()
        if count == len(whole):
            self.parts = [whole.slice(0, 0)]
            return whole
        self.parts = [whole.slice(count, len(whole))]
        return whole.slice(0, count)


def _window_end(first: int, end: int, chunk_offsets: int) -> int:
    return min((first // chunk_offsets + 1) * chunk_offsets, end)


def _fraction(first: int, reached: int, window_end: int, chunk_offsets: int) -> int:
    """The last of the coarsest fixed cuts in (first, reached]; ``window_end`` if there is none."""
    base = first // chunk_offsets * chunk_offsets
    for depth in range(1, _DEEPEST + 1):
        step = max(chunk_offsets >> depth, 1)
        at = base + (reached - base) // step * step
        if first < at <= reached:
            return min(at, window_end)
        if step == 1:
            break
    return min(max(reached, first + 1), window_end)


def join_records(parts: list[Records]) -> Records:
    """The records of consecutive slices."""
    whole = [p for p in parts if len(p)] or parts[:1]
    if len(whole) == 1:
        return whole[0]
    headers: list[Headers | None] | None = None
    if any(p.headers is not None for p in whole):
        headers = [h for p in whole for h in (p.headers if p.headers is not None else [None] * len(p))]
    return Records(
        whole[0].topic,
        whole[0].partition,
        np.concatenate([p.offsets for p in whole]),
        np.concatenate([p.timestamps for p in whole]),
        list(chain.from_iterable(p.keys for p in whole)),
        concatenated([p.values for p in whole]),
        headers,
    )


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
