"""Positions of one source within a partition: whole columns where they rise, event by event where they step back."""

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ch_sink.errors import StreamFailed
from ch_sink.model.change import BackwardStep, ChangeBatch, Op, Records
from ch_sink.order.redelivery import COUNT_AGAIN, Seen
from ch_sink.order.state import SourceState, Trace
from ch_sink.order.version import OFFSET_BITS, Words


@dataclass(slots=True)
class Work:
    """A batch while it is ordered: one entry for each event."""

    batch: ChangeBatch
    records: Records
    unique_inner: bool
    """The inner position (PostgreSQL's ``lsn``) is unique and rises within a transaction."""
    counts: bool
    """Each change is a row of its own (append mode), so one that is sent again must not be applied again."""
    trace: Trace | None = None
    keep: npt.NDArray[np.bool_] = field(init=False)
    epoch: npt.NDArray[np.int64] = field(init=False)
    commit: Words = field(init=False)
    steps: list[BackwardStep] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        n = len(self.batch)
        self.keep = np.ones(n, dtype=np.bool_)
        self.epoch, self.commit = np.zeros(n, dtype=np.int64), np.zeros((n, 2), dtype=np.uint64)


def forward(work: Work, mine: npt.NDArray[np.int64], start: SourceState) -> SourceState | None:
    """Order the events ``mine`` if positions never step back: the common case. Else None, and nothing is ordered."""
    batch, unique_inner = work.batch, work.unique_inner
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
        if stepped is None or _repeats_half(batch, work.records, mine, running, start):
            return None
        inner = stepped
    wraps = batch.offset[mine] >> OFFSET_BITS
    if int(wraps[-1]) != start.wraps and not (start.commit == 0 and int(wraps[0]) == int(wraps[-1])):
        return None
    work.epoch[mine] = start.epoch
    work.commit[mine, 0] = top
    work.commit[mine, 1] = running
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


class BackwardOrder:
    """Orders the events of one source one by one, for stretches in which its positions step back."""

    def __init__(self, work: Work, name: str, start: SourceState, seen: Seen, *, alone: bool) -> None:
        self.work, self.batch = work, work.batch
        self.name, self.state, self.seen, self.alone = name, start, seen, alone

    def run(self, mine: npt.NDArray[np.int64]) -> SourceState:
        """Order the events ``mine``; returns the source's state after them."""
        batch, work = self.batch, self.work
        for i in mine.tolist():
            position = (int(batch.commit[i, 0]) << 64) | int(batch.commit[i, 1])
            inner = 0
            if work.unique_inner or work.counts:
                inner = (int(batch.inner[i, 0]) << 64) | int(batch.inner[i, 1])
            stated = position
            if not batch.has_commit[i]:
                position = max(self.state.commit, position)
            offset = int(batch.offset[i])
            if not self._applies(i, position, stated, inner, offset):
                work.keep[i] = False
            work.epoch[i] = self.state.epoch
            at = self.state.commit if not work.keep[i] else position
            work.commit[i, 0], work.commit[i, 1] = at >> 64, at & 0xFFFFFFFFFFFFFFFF
        return self.state

    def _applies(self, i: int, position: int, stated: int, inner: int, offset: int) -> bool:
        work, state = self.work, self.state
        wraps = offset >> OFFSET_BITS
        if position < state.commit:
            if self.seen.before(i):
                return self._skip(i, offset, position)
            if self.seen.failed(i):
                # It is applied at its own position, below what has been applied since.
                self._repeats(offset, position)
                late = work.counts or not self.seen.followed(i)  # a history keeps every change
                work.skipped["applied_late" if late else "superseded"] += 1
                if work.trace is not None and not late:
                    why = "it repeats a dead letter, and a later change of its row has been applied since"
                    work.trace.note(offset, "superseded", why)
                return late
            if self.batch.op[i] == Op.TRUNCATE and not self.alone:
                # A truncate has no key, so the producer may pick a different partition on every delivery, and the lack
                # of an earlier record proves nothing. It is applied at its offset, to the rows below it.
                return True
            if work.counts and self.batch.key is None and self.batch.op[i] != Op.TRUNCATE:
                raise self._uncountable(offset, position)
            work.steps.append(BackwardStep("regress", self.name, offset, position, state.commit))
            self.state = SourceState(state.epoch + 1, position, inner, wraps)
            return True
        if position == state.commit:
            again = inner < state.inner or (inner == state.inner and bool(self.batch.half[i]))
            again |= not self.batch.has_commit[i] and stated < state.commit
            doubtful = work.unique_inner and (state.redelivering or (inner > 0 and again))
            if work.counts:
                doubtful |= not 0 < state.inner < inner
                # Two equal rows of a snapshot are two rows.
                doubtful &= self.batch.key is not None or self.batch.op[i] != Op.READ
            stepped = state.redelivering or (work.unique_inner and inner < state.inner)
            if doubtful and self.seen.before(i) and (not work.counts or self.seen.again(i, stepped_back=stepped)):
                return self._skip(i, offset, position)
            state = replace(state, inner=max(inner, state.inner))
            if wraps != state.wraps and state.commit:
                self.state = replace(state, epoch=state.epoch + 1, wraps=wraps)
            else:
                self.state = replace(state, wraps=wraps)
            return True
        self.state = replace(state, commit=position, inner=inner, wraps=wraps, redelivering=False)
        return True

    def _uncountable(self, offset: int, position: int) -> StreamFailed:
        """The error for a table without a key whose source goes on at other positions."""
        records = self.work.records
        return StreamFailed(
            f"partition {records.partition} of {records.topic}: at offset {offset} the positions of {self.name!r} "
            f"step back from {self.state.commit} to {position}, and no earlier record is the same. After a failover a "
            "connector may send changes again at other positions, and a table without a key would count them twice",
            hint=f"If the connector was restarted and sent a long stretch again, raise redelivery_scan. {COUNT_AGAIN}",
        )

    def _skip(self, i: int, offset: int, position: int) -> bool:
        """Leave a re-delivered event out."""
        self._repeats(offset, position)
        self.work.skipped["redelivered"] += 1
        if self.work.trace is not None:
            first = self.seen.first(i)
            why = f"an identical record is at offset {first}"
            self.work.trace.note(offset, "re-delivered", why, against=first)
        return False

    def _repeats(self, offset: int, position: int) -> None:
        """The event was delivered before."""
        if not self.state.redelivering:
            self.work.steps.append(BackwardStep("redelivery", self.name, offset, position, self.state.commit))
        self.state = replace(self.state, redelivering=True)
