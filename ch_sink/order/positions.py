"""Positions of one source within a partition: whole columns where they rise, event by event where they step back.

A change is a re-delivery if the very same record exists at an earlier offset.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.model.change import BackwardStep, ChangeBatch, Half, Op, Records
from ch_sink.order.state import SourceState, Trace
from ch_sink.order.version import OFFSET_BITS, Words
from ch_sink.ports import History
from ch_sink.types.arrow import untimed

_Changes = dict[str, list[tuple[int, tuple[int, int]]]]
"""Row → offset and commit position of each of its changes."""


@dataclass(frozen=True, slots=True)
class ChangeIdentity:
    """What identifies a change when it is re-delivered."""

    commit_high: int
    commit_low: int
    inner_high: int
    inner_low: int
    key: bytes
    """The Kafka key's bytes; if there is none, the values of the configured key, or the row."""
    op: int
    source_ts: int


def identities(batch: ChangeBatch, records: Records) -> list[ChangeIdentity]:
    """The identity of each change of a batch.

    If there is no key, the row replaces it: all rows of a snapshot share one position, and so do rows that PostgreSQL
    inserts together (``COPY``). A truncate is identified without either, because whether the batch has keys
    depends on the other records in it.
    """
    given = records.keys
    keys = [given[i] or b"" for i in batch.source_index.tolist()]
    lacking = [i for i in np.flatnonzero(batch.op != Op.TRUNCATE).tolist() if not keys[i]]
    if lacking:
        images = [batch.key] if batch.key is not None else [i for i in (batch.after, batch.before) if i is not None]
        columns = [
            untimed(column).to_pylist() for image in images for column in image.take(pa.array(lacking)).itercolumns()
        ]
        for i, *values in zip(lacking, *columns, strict=True):
            keys[i] = repr(tuple(values)).encode()
    return [
        ChangeIdentity(ch, cl, ih, il, key, op, ts)
        for (ch, cl), (ih, il), key, op, ts in zip(
            batch.commit.tolist(),
            batch.inner.tolist(),
            keys,
            batch.op.tolist(),
            batch.source_ts.tolist(),
            strict=True,
        )
    ]


class Seen:
    """Identities of the records at earlier offsets, read from the topic on first use."""

    def __init__(
        self,
        batch: ChangeBatch,
        records: Records,
        history: History | None,
        decode: Callable[[Records], ChangeBatch] | None,
        limit: int,
        failed: Callable[[int, int], Collection[int]] | None = None,
    ) -> None:
        self._batch, self._records = batch, records
        self._mine: list[ChangeIdentity] | None = None
        self._offsets = batch.offset
        self._history = history
        self._decode = decode
        self._limit, self._dead_letters = limit, failed
        self._known: dict[ChangeIdentity, int] | None = None
        """Each identity with the first offset at which it was applied."""
        self._failed: dict[ChangeIdentity, int] = {}
        """Dead letters, each with the lowest of its offsets."""
        self._upto = 0
        self._applied: list[tuple[ChangeBatch, Sequence[int]]] = []
        """Events known to be applied at their first offsets."""
        self._by_row: _Changes | None = None

    def before(self, event: int) -> bool:
        """Whether the very same record is at an offset below this event's, and was applied there."""
        if self._mine is None or self._known is None:
            self._mine, self._known = identities(self._batch, self._records), {}
            self._look_back(self._known)
        if self._upto < event:
            new = [i for i in range(self._upto, event) if self._mine[i] not in self._known]
            self._applied.append((self._batch, new))
            self._by_row = None if new else self._by_row
            self._known |= {self._mine[i]: int(self._offsets[i]) for i in new[::-1]}
            self._upto = event
        return self._mine[event] in self._known

    def first(self, event: int) -> int:
        """The offset of the record that `before` has found."""
        return self._known[self._mine[event]] if self._mine is not None and self._known is not None else -1

    def failed(self, event: int) -> bool:
        """Whether the very same record is at an offset below this event's, and only ever was a dead letter."""
        return not self.before(event) and self._mine is not None and self._mine[event] in self._failed

    def followed(self, event: int) -> bool:
        """Whether a later change of its row was applied since the dead letter that `failed` has found.

        That one left the row as it had to be, and where it has deleted the row, nothing of it may be stored.
        """
        if self._mine is None or self._batch.key is None:
            return False
        if self._by_row is None:
            self._by_row = _changes_by_row(self._applied)
        change = self._mine[event]
        lost, place = self._failed[change], (change.commit_high, change.commit_low)
        later = self._by_row.get(_row(self._batch, event), ())
        return any(offset > lost and position >= place for offset, position in later)

    def _look_back(self, known: dict[ChangeIdentity, int]) -> None:
        if self._history is None or self._decode is None or not len(self._offsets):
            return
        earlier = self._history.before(int(self._offsets[0]), self._limit)
        if not len(earlier):
            return
        batch = self._decode(earlier)
        found = identities(batch, earlier)
        # Only of earlier chunks: what an earlier attempt did with this one must not decide the next.
        span = int(earlier.offsets[0]), int(self._records.offsets[0])
        dead = set(self._dead_letters(*span)) if self._dead_letters is not None and span[0] < span[1] else set()
        first = []
        for i, (identity, offset) in enumerate(zip(found, batch.offset.tolist(), strict=True)):
            if offset in dead:
                self._failed.setdefault(identity, offset)
            elif identity not in known:
                known[identity] = offset
                first.append(i)
        self._applied.append((batch, first))


def _changes_by_row(events: Sequence[tuple[ChangeBatch, Sequence[int]]]) -> _Changes:
    found: _Changes = defaultdict(list)
    for batch, chosen in events:
        for i in chosen if batch.key is not None else ():
            high, low = batch.commit[i].tolist()
            # Where keys are swapped, the former row leaves behind the new one, at the same position.
            behind = -1 if batch.half[i] == Half.DELETE else 0
            found[_row(batch, i)].append((int(batch.offset[i]), (high, low + behind)))
    return found


def _row(batch: ChangeBatch, event: int) -> str:
    """The key of an event as text; keys of one row need not be the same bytes."""
    assert batch.key is not None
    return repr([untimed(column.slice(event, 1)).to_pylist() for column in batch.key.columns])


@dataclass(slots=True)
class Work:
    """A batch while it is ordered: one entry for each event."""

    batch: ChangeBatch
    records: Records
    unique_inner: bool
    """The inner position (PostgreSQL's ``lsn``) is unique and rises within a transaction."""
    drop_repeats: bool
    """An event at the highest position that repeats one seen there is skipped, too (append mode)."""
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
            inner = (int(batch.inner[i, 0]) << 64) | int(batch.inner[i, 1]) if work.unique_inner else 0
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
                late = work.drop_repeats or not self.seen.followed(i)  # a history keeps every change
                work.skipped["applied_late" if late else "superseded"] += 1
                if work.trace is not None and not late:
                    why = "it repeats a dead letter, and a later change of its row has been applied since"
                    work.trace.note(offset, "superseded", why)
                return late
            if self.batch.op[i] == Op.TRUNCATE and not self.alone:
                # A truncate has no key, so the producer may pick a different partition on every delivery, and the lack
                # of an earlier record proves nothing. It is applied at its offset, to the rows below it.
                return True
            work.steps.append(BackwardStep("regress", self.name, offset, position, state.commit))
            self.state = SourceState(state.epoch + 1, position, inner, wraps)
            return True
        if position == state.commit:
            again = inner < state.inner or (inner == state.inner and bool(self.batch.half[i]))
            again |= not self.batch.has_commit[i] and stated < state.commit
            doubtful = work.unique_inner and (state.redelivering or (inner > 0 and again))
            if self.batch.key is None and self.batch.op[i] == Op.READ:
                doubtful = drops = False  # two equal rows of a snapshot are two rows
            else:
                drops = work.drop_repeats
            if (doubtful or drops) and self.seen.before(i):
                return self._skip(i, offset, position)
            state = replace(state, inner=max(inner, state.inner))
            if wraps != state.wraps and state.commit:
                self.state = replace(state, epoch=state.epoch + 1, wraps=wraps)
            else:
                self.state = replace(state, wraps=wraps)
            return True
        self.state = replace(state, commit=position, inner=inner, wraps=wraps, redelivering=False)
        return True

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
