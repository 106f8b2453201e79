"""The common case of ordering, whole columns at once: positions that never step back."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ch_sink.model.change import ChangeBatch, Records
from ch_sink.order.state import SourceState
from ch_sink.order.version import OFFSET_BITS, Words

__all__ = ["forward"]


def forward(
    batch: ChangeBatch,
    records: Records,
    mine: npt.NDArray[np.int64],
    start: SourceState,
    unique_inner: bool,
    epoch: npt.NDArray[np.int64],
    commit: Words,
    recheck: npt.NDArray[np.bool_],
) -> SourceState | None:
    """The common case, whole columns at once: positions never step back. None when they do."""
    high = batch.commit[mine, 0]
    top = np.uint64(start.commit >> 64)
    if start.redelivering or (high != top).any():
        return None
    low = batch.commit[mine, 1].copy()
    missing = ~batch.has_commit[mine]
    first = np.uint64(start.commit & 0xFFFFFFFFFFFFFFFF)
    running = np.maximum.accumulate(np.maximum(low, first))
    if (running != low)[~missing].any() or (unique_inner and (running != low).any()):
        return None
    inner = 0
    if unique_inner:
        stepped = _inner_steps_back(batch.inner[mine], running, start)
        if stepped is None or _repeats_half(batch, records, mine, running, start):
            return None
        inner = stepped
    wraps = batch.offset[mine] >> OFFSET_BITS
    if int(wraps[-1]) != start.wraps and not (start.commit == 0 and int(wraps[0]) == int(wraps[-1])):
        return None
    epoch[mine] = start.epoch
    commit[mine, 0] = top
    commit[mine, 1] = running
    if start.ceiling:
        recheck[mine] = running <= np.uint64(start.ceiling & 0xFFFFFFFFFFFFFFFF)
    return replace(start, commit=(int(top) << 64) | int(running[-1]), inner=inner, wraps=int(wraps[-1]))


def _inner_steps_back(inner: Words, running: npt.NDArray[np.uint64], start: SourceState) -> int | None:
    """The inner position reached at the last commit position; None if one stepped back within a commit position.

    Inner position 0 means that there is none (rows of incremental snapshots).
    """
    if int(inner[:, 0].max()) or start.inner >> 64:
        values = [(int(h) << 64) | int(w) for h, w in inner.tolist()]
        reached, here = start.inner, start.commit & 0xFFFFFFFFFFFFFFFF
        for value, position in zip(values, running.tolist(), strict=True):
            if position != here:
                reached, here = value, position
            elif value and value < reached:
                return None
            else:
                reached = max(reached, value)
        return reached
    low = np.concatenate([np.array([start.inner & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64), inner[:, 1]])
    at = np.concatenate([np.array([start.commit & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64), running])
    fresh = np.concatenate([[True], at[1:] != at[:-1]])
    if (low == 0)[1:].any():  # a 0 repeats the value before it within its commit position
        low = _filled(low, fresh)
    if ((low[1:] < low[:-1]) & ~fresh[1:]).any():
        return None
    return int(low[-1])


def _repeats_half(
    batch: ChangeBatch,
    records: Records,
    mine: npt.NDArray[np.int64],
    running: npt.NDArray[np.uint64],
    start: SourceState,
) -> bool:
    """Whether one half of a key change may occur twice at one inner position; its key must not count as two rows."""
    low = start.commit & 0xFFFFFFFFFFFFFFFF
    seen: set[tuple[int, int, int, int, bytes]] = set()
    for at in np.flatnonzero(batch.half[mine]).tolist():
        i = int(mine[at])
        high, inner = int(batch.inner[i, 0]), int(batch.inner[i, 1])
        if int(running[at]) == low and (high << 64) | inner == start.inner:
            return True
        half = (int(running[at]), high, inner, int(batch.half[i]), records.keys[int(batch.source_index[i])] or b"")
        if half in seen:
            return True
        seen.add(half)
    return False


def _filled(low: npt.NDArray[np.uint64], fresh: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    known = np.where((low != 0) | fresh, np.arange(len(low)), 0)
    filled: npt.NDArray[np.uint64] = low[np.maximum.accumulate(known)]
    return filled
