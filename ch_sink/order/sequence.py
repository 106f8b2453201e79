"""Put the events of a chunk into source order: versions, re-delivered stretches, position regress.

The rules (``docs/architecture.md``, "Order"): within a partition an event whose commit position lies below the
highest one is either a re-delivery, proved by finding the very same record at an earlier offset, and skipped; or
a regress of the source's positions, and the epoch rises.

An event *at* the highest position is applied, with one exception: where inner positions are unique (PostgreSQL's
``lsn``) and step back, a proved repeat is skipped there too. Else a stretch that begins in mid-transaction, or with
records that state no commit position, would be applied a second time to rows whose values are gone by then.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ch_sink.change import ChangeBatch, Op, Records
from ch_sink.errors import StreamFailed
from ch_sink.order.state import SourceState, State
from ch_sink.order.version import OFFSET_BITS, Layout, Words, to_int
from ch_sink.policy import Policy
from ch_sink.ports import History, PositionId

__all__ = ["BackwardStep", "Sequenced", "identities", "sequence"]


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """Where a stream stepped back: shown in ``status``."""

    kind: str
    """``redelivery`` or ``regress``."""
    source: str
    offset: int
    commit: int
    highest: int


@dataclass(slots=True)
class Sequenced:
    """Order of a batch's events."""

    keep: npt.NDArray[np.bool_]
    """False for proved re-deliveries."""
    epoch: npt.NDArray[np.int64]
    commit: Words
    """Effective commit position (n, 2)."""
    version: Words
    """Version of each event's row (half 1)."""
    leaving: Words
    """Version of the delete row that leaves the row's old place (half 0)."""
    recheck: npt.NDArray[np.bool_]
    """True where changes may be applied a second time, so that a create may meet a stored row."""
    state: State
    steps: list[BackwardStep] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def identities(batch: ChangeBatch, records: Records) -> list[PositionId]:
    """What makes each change recognisable when it is delivered again (shape: one tuple per event).

    Without a key the row stands in for it: all rows of a snapshot have one position, and so have those that
    PostgreSQL inserts together (``COPY``).
    """
    given = records.keys
    keys = [given[i] or b"" for i in batch.source_index.tolist()]
    if batch.key is None:
        rows = [batch.after.to_pylist()] + ([batch.before.to_pylist()] if batch.before is not None else [])
        keys = [key or repr(images).encode() for key, images in zip(keys, zip(*rows, strict=True), strict=True)]
    return [
        (ch, cl, ih, il, key, op, ts)
        for (ch, cl), (ih, il), key, op, ts in zip(
            batch.commit.tolist(),
            batch.inner.tolist(),
            keys,
            batch.op.tolist(),
            batch.source_ts.tolist(),
            strict=True,
        )
    ]


def sequence(
    batch: ChangeBatch,
    records: Records,
    state: State,
    *,
    layout: Layout,
    policy: Policy,
    strategy: str,
    unique_inner: bool = False,
    history: History | None = None,
    decode: Callable[[Records], ChangeBatch] | None = None,
    drop_repeats: bool = False,
) -> Sequenced:
    """Versions for every event, and which events are repeats.

    Args:
        strategy: ``source_position``, ``kafka_offset``, ``source_time`` or ``insertion_order``.
        unique_inner: the inner position (PostgreSQL's ``lsn``) tells changes apart and rises within a transaction;
            an event without commit position has the larger of the highest and its inner position.
        history: earlier records, asked only when a position steps back.
        decode: decodes what ``history`` gives.
        drop_repeats: also skip an event at the highest position that repeats one seen there (append mode).
    """
    n = len(batch)
    steps: list[BackwardStep] = []
    skipped: Counter[str] = Counter()
    keep = np.ones(n, dtype=np.bool_)
    recheck = np.zeros(n, dtype=np.bool_)
    epoch = np.zeros(n, dtype=np.int64)
    commit = np.zeros((n, 2), dtype=np.uint64)
    if strategy != "source_position":
        commit[:, 1] = batch.offset.astype(np.uint64)
        epoch[:] = state.base_epoch
        new_state = state
    else:
        sources: dict[str, SourceState] = {}
        for code, name in enumerate(batch.source_name):
            mine = np.flatnonzero(batch.source_code == code)
            if not len(mine):
                continue
            start = state.of(name)
            done = _forward(batch, records, mine, start, unique_inner, epoch, commit, recheck)
            if done is None or drop_repeats:
                seen = _Seen(batch, records, history, decode, policy.redelivery_scan)
                walk = _Walk(batch, name, start, seen, unique_inner, drop_repeats, steps, skipped, state.alone)
                done = walk.run(mine, keep, epoch, commit, recheck)
            layout.check_epoch(done.epoch)
            sources[name] = done
        new_state = state.with_sources(sources)
    out = ordered(batch, epoch, commit, new_state, layout, policy)
    out.keep, out.recheck, out.steps, out.skipped = keep, recheck, steps, skipped
    drop_truncated(batch, out, state)
    return out


def drop_truncated(batch: ChangeBatch, order: Sequenced, state: State) -> None:
    """Leave out what a truncate of the whole table has overtaken: late changes of other partitions, a repeat of it.

    A truncate's null key gives it any partition, each time it is sent, so that no earlier record proves a repeat.
    """
    at, position, _ = state.floor
    if not (at or position):
        return
    low = np.uint64(position & 0xFFFFFFFFFFFFFFFF)
    commit = order.commit
    high = np.uint64(position >> 64)
    below = (commit[:, 0] < high) | ((commit[:, 0] == high) & (commit[:, 1] <= low))
    near = order.keep & (order.epoch <= at) & (below | (order.epoch < at))
    for i in np.flatnonzero(near).tolist():
        here = (int(order.epoch[i]), to_int(commit, i), (int(batch.inner[i, 0]) << 64) | int(batch.inner[i, 1]))
        if here < state.floor or (here == state.floor and batch.op[i] == Op.TRUNCATE):
            order.keep[i] = False
            order.skipped["truncated"] += 1


def ordered(
    batch: ChangeBatch,
    epoch: npt.NDArray[np.int64],
    commit: Words,
    state: State,
    layout: Layout,
    policy: Policy,
) -> Sequenced:
    """Versions of events whose epochs and commit positions are known; all of them are kept."""
    version = layout.lift(layout.pack(epoch, commit, batch.offset, batch.source_ts), policy.version_floor)
    leaving = layout.lift(layout.pack(epoch, commit, batch.offset, batch.source_ts, half=0), policy.version_floor)
    n = len(batch)
    return Sequenced(np.ones(n, dtype=np.bool_), epoch, commit, version, leaving, np.zeros(n, dtype=np.bool_), state)


def _forward(
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
    if missing.any():
        low[missing] = batch.inner[mine, 1][missing] if unique_inner else 0
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
    """The inner position reached at the last commit position; None where one stepped back within a commit position.

    Inner position 0 is none at all (rows of incremental snapshots).
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
    if (low == 0)[1:].any():  # a 0 repeats what stands before it within its commit position
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
    """Whether a half of a key change may stand twice at one inner position: two rows of a key must not be counted."""
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


class _Seen:
    """Identities of the records at earlier offsets, read from the topic when first asked for."""

    def __init__(
        self,
        batch: ChangeBatch,
        records: Records,
        history: History | None,
        decode: Callable[[Records], ChangeBatch] | None,
        limit: int,
    ) -> None:
        self._batch, self._records = batch, records
        self._mine: list[PositionId] | None = None
        self._offsets = batch.offset
        self._history = history
        self._decode = decode
        self._limit = limit
        self._known: set[PositionId] | None = None
        self._upto = 0

    def before(self, event: int) -> bool:
        """Whether the very same record stands at an offset below this event's."""
        if self._mine is None or self._known is None:
            self._mine, self._known = identities(self._batch, self._records), set()
            if self._history is not None and self._decode is not None and len(self._offsets):
                earlier = self._history.before(int(self._offsets[0]), self._limit)
                if len(earlier):
                    self._known.update(identities(self._decode(earlier), earlier))
        self._known.update(self._mine[self._upto : event])
        self._upto = max(self._upto, event)
        return self._mine[event] in self._known


class _Walk:
    """Event by event, for stretches in which positions step back."""

    def __init__(
        self,
        batch: ChangeBatch,
        name: str,
        start: SourceState,
        seen: _Seen,
        unique_inner: bool,
        drop_repeats: bool,
        steps: list[BackwardStep],
        skipped: Counter[str],
        alone: bool,
    ) -> None:
        self.batch, self.name, self.seen = batch, name, seen
        self.alone = alone
        self.unique_inner, self.drop_repeats = unique_inner, drop_repeats
        self.steps, self.skipped = steps, skipped
        self.state = start

    def run(
        self,
        mine: npt.NDArray[np.int64],
        keep: npt.NDArray[np.bool_],
        epoch: npt.NDArray[np.int64],
        commit: Words,
        recheck: npt.NDArray[np.bool_],
    ) -> SourceState:
        batch = self.batch
        for i in mine.tolist():
            position = (int(batch.commit[i, 0]) << 64) | int(batch.commit[i, 1])
            inner = (int(batch.inner[i, 0]) << 64) | int(batch.inner[i, 1]) if self.unique_inner else 0
            if not batch.has_commit[i]:
                position = max(self.state.commit, inner)
            offset = int(batch.offset[i])
            if not self._applies(i, position, inner, offset):
                keep[i] = False
            epoch[i] = self.state.epoch
            at = self.state.commit if not keep[i] else position
            commit[i, 0], commit[i, 1] = at >> 64, at & 0xFFFFFFFFFFFFFFFF
            recheck[i] = self.state.ceiling >= position > 0
        return self.state

    def _applies(self, i: int, position: int, inner: int, offset: int) -> bool:
        state = self.state
        wraps = offset >> OFFSET_BITS
        if position < state.commit:
            if self.seen.before(i):
                self._skip(offset, position)
                return False
            if self.batch.op[i] == Op.TRUNCATE and not self.alone:
                # Its null key gives it any of the partitions, each time it is sent, so that the lack of an earlier
                # record proves nothing. It is applied where it stands, to the rows below it.
                return True
            self.steps.append(BackwardStep("regress", self.name, offset, position, state.commit))
            ceiling = max(state.ceiling, state.commit)
            self.state = SourceState(state.epoch + 1, position, inner, wraps, ceiling=ceiling)
            return True
        if position == state.commit:
            again = inner < state.inner or (inner == state.inner and bool(self.batch.half[i]))
            again |= not self.batch.has_commit[i] and inner < state.commit
            doubtful = self.unique_inner and (state.redelivering or (inner > 0 and again))
            if self.batch.key is None and self.batch.op[i] == Op.READ:
                doubtful = drops = False  # two equal rows of a snapshot are two rows
            else:
                drops = self.drop_repeats
            if (doubtful or drops) and self.seen.before(i):
                self._skip(offset, position)
                return False
            state = replace(state, inner=max(inner, state.inner))
            if wraps != state.wraps and state.commit:
                self.state = replace(state, epoch=state.epoch + 1, wraps=wraps)
            else:
                self.state = replace(state, wraps=wraps)
            return True
        self.state = replace(state, commit=position, inner=inner, wraps=wraps, redelivering=False)
        return True

    def _skip(self, offset: int, position: int) -> None:
        if not self.state.redelivering:
            self.steps.append(BackwardStep("redelivery", self.name, offset, position, self.state.commit))
        self.skipped["redelivered"] += 1
        self.state = replace(self.state, redelivering=True)


def strategy_for(policy: Policy, default: str, layout: Layout) -> str:
    """The strategy in force, from the policy, the source's default and what the version column can hold.

    Raises:
        StreamFailed: the configured strategy does not fit the version column.
    """
    wanted = policy.version_strategy
    if layout.kind == "narrow":
        if wanted in ("source_position", "source_time"):
            raise StreamFailed(
                f"version.strategy: {wanted} does not fit a {layout.clickhouse_type} version column",
                hint="leave version.strategy out (kafka_offset is used there) or use a UInt128 column",
            )
        return "kafka_offset"
    if layout.kind == "time":
        if wanted not in ("auto", "source_time"):
            raise StreamFailed(
                f"version.strategy: {wanted} does not fit a {layout.clickhouse_type} version column",
                hint="use version.strategy: source_time, or a UInt128 column",
            )
        return "source_time"
    return default if wanted == "auto" else wanted
