"""Cut an offset range into chunks, alike on every attempt.

Cuts stand at multiples of ``chunk_offsets`` (absolute offsets), and inside such a window at halves, quarters,
eighths … of it where its bytes exceed the cap.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ch_sink.change import Headers, Records

__all__ = ["Chunk", "cut"]

_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of the offsets [first, end); there may be fewer records than offsets, or none."""

    first: int
    end: int
    records: Records


def cut(slices: Iterable[Records], start: int, end: int, *, chunk_offsets: int, chunk_bytes: int) -> Iterator[Chunk]:
    """Regroup consecutive slices of a range [start, end) into chunks, in order, without gaps.

    Memory is bounded by ``chunk_bytes`` and one slice, as far as single records allow.
    """
    first = start
    kept: list[Records] = []
    size = 0
    for piece in slices:
        rest: Records | None = piece
        while rest is not None and len(rest):
            window_end = _window_end(first, end, chunk_offsets)
            inside = int(np.searchsorted(rest.offsets, window_end))
            weights = _weights(rest, inside)
            total = size + (int(weights[-1]) if inside else 0)
            if total > chunk_bytes and inside + sum(len(k) for k in kept) > 1:
                over = int(np.searchsorted(weights, chunk_bytes - size, side="right"))
                reached = int(rest.offsets[min(over, inside - 1)])
                window_end = _fraction(first, reached, window_end, chunk_offsets)
                inside = int(np.searchsorted(rest.offsets, window_end))
                taken = rest.take(np.arange(inside))
                mixed = _join([*kept, taken])
                head, tail = _split(mixed, window_end)
                yield Chunk(first, window_end, head)
                kept = [tail] if len(tail) else []
                size = int(_weights(tail, len(tail))[-1]) if len(tail) else 0
                first = window_end
                rest = rest.take(np.arange(inside, len(rest)))
                continue
            if inside < len(rest):
                yield Chunk(first, window_end, _join([*kept, rest.take(np.arange(inside))]))
                kept, size, first = [], 0, window_end
                rest = rest.take(np.arange(inside, len(rest)))
                continue
            kept.append(rest)
            size = total
            rest = None
    while first < end:
        window_end = _window_end(first, end, chunk_offsets)
        if kept:
            head, tail = _split(_join(kept), window_end)
            yield Chunk(first, window_end, head)
            kept = [tail] if len(tail) else []
        first = window_end


def _window_end(first: int, end: int, chunk_offsets: int) -> int:
    return min((first // chunk_offsets + 1) * chunk_offsets, end)


def _fraction(first: int, reached: int, window_end: int, chunk_offsets: int) -> int:
    """The furthest of the coarsest fixed cuts that lies in (first, reached]; ``window_end`` if there is none."""
    base = first // chunk_offsets * chunk_offsets
    for depth in range(1, _DEEPEST + 1):
        step = max(chunk_offsets >> depth, 1)
        at = base + (reached - base) // step * step
        if first < at <= reached:
            return min(at, window_end)
        if step == 1:
            break
    return min(max(reached, first + 1), window_end)


def _weights(records: Records, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Running sum of the bytes of the first records."""
    sizes = [len(k or b"") + len(v or b"") for k, v in zip(records.keys[:count], records.values[:count], strict=True)]
    return np.cumsum(np.array(sizes, dtype=np.int64))


def _split(records: Records, at: int) -> tuple[Records, Records]:
    middle = int(np.searchsorted(records.offsets, at))
    if middle == len(records):
        return records, records.take([])
    return records.take(np.arange(middle)), records.take(np.arange(middle, len(records)))


def _join(parts: list[Records]) -> Records:
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
        [k for p in whole for k in p.keys],
        [v for p in whole for v in p.values],
        headers,
    )
