"""Event by event: stretches in which positions step back, proved repeats, position regress."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ch_sink.model.change import ChangeBatch, Op, Records
from ch_sink.order.state import SourceState
from ch_sink.order.version import OFFSET_BITS, Words
from ch_sink.ports import History, PositionId

__all__ = ["BackwardStep", "Seen", "Walk", "identities"]


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """Where a stream stepped back: shown in ``status``."""

    kind: str
    """``redelivery`` or ``regress``."""
    source: str
    offset: int
    commit: int
    highest: int


def identities(batch: ChangeBatch, records: Records) -> list[PositionId]:
    """What makes each change recognisable when it is delivered again (shape: one tuple per event).

    Without a key the row stands in for it: all rows of a snapshot have one position, and so have those that
    PostgreSQL inserts together (``COPY``). A truncate has neither: nothing stands in for its key, since whether the
    batch has keys depends on the records beside it.
    """
    given = records.keys
    keys = [given[i] or b"" for i in batch.source_index.tolist()]
    if batch.key is None:
        rows = [batch.after.to_pylist()] + ([batch.before.to_pylist()] if batch.before is not None else [])
        for i in np.flatnonzero(batch.op != Op.TRUNCATE).tolist():
            keys[i] = keys[i] or repr(tuple(images[i] for images in rows)).encode()
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


class Seen:
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


class Walk:
    """Event by event, for stretches in which positions step back."""

    def __init__(
        self,
        batch: ChangeBatch,
        name: str,
        start: SourceState,
        seen: Seen,
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
            stated = position
            if not batch.has_commit[i]:
                position = max(self.state.commit, position)
            offset = int(batch.offset[i])
            if not self._applies(i, position, stated, inner, offset):
                keep[i] = False
            epoch[i] = self.state.epoch
            at = self.state.commit if not keep[i] else position
            commit[i, 0], commit[i, 1] = at >> 64, at & 0xFFFFFFFFFFFFFFFF
            recheck[i] = self.state.ceiling >= position > 0
        return self.state

    def _applies(self, i: int, position: int, stated: int, inner: int, offset: int) -> bool:
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
            again |= not self.batch.has_commit[i] and stated < state.commit
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
