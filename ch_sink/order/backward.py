"""Orders stretches in which positions step back, event by event: proved re-deliveries, and position regress."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ch_sink.model.change import ChangeBatch, Op
from ch_sink.order.seen import Seen
from ch_sink.order.state import SourceState
from ch_sink.order.version import OFFSET_BITS, Words

__all__ = ["BackwardOrder", "BackwardStep"]


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """Where a stream stepped back: shown in ``status``."""

    kind: str
    """``redelivery``, ``regress`` or ``new source``."""
    source: str
    offset: int
    commit: int
    highest: int

    def __str__(self) -> str:
        if self.kind == "new source":
            return (
                f"source {self.source!r} is new and begins at position {self.commit}, below {self.highest} of the "
                "sources before it: from here on its changes win"
            )
        return f"source {self.source!r} stepped back from position {self.highest} to {self.commit} ({self.kind})"


class BackwardOrder:
    """Orders the events of one source one by one, for stretches in which its positions step back."""

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
        """Order the events ``mine`` into the arrays; returns the source's state after them."""
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
            # What is applied late may meet later changes of its key.
            recheck[i] = self.state.ceiling >= position > 0 or (keep[i] and position < self.state.commit)
        return self.state

    def _applies(self, i: int, position: int, stated: int, inner: int, offset: int) -> bool:
        state = self.state
        wraps = offset >> OFFSET_BITS
        if position < state.commit:
            if self.seen.before(i):
                self._skip(offset, position)
                return False
            if self.seen.failed(i):
                # It is applied at its own position, below what has been applied since.
                self._repeats(offset, position)
                late = self.drop_repeats or not self.seen.followed(i)  # a history keeps every change
                self.skipped["applied_late" if late else "superseded"] += 1
                return late
            if self.batch.op[i] == Op.TRUNCATE and not self.alone:
                # A truncate has no key, so the producer may pick a different partition on every delivery, and the lack
                # of an earlier record proves nothing. It is applied at its offset, to the rows below it.
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
        self._repeats(offset, position)
        self.skipped["redelivered"] += 1

    def _repeats(self, offset: int, position: int) -> None:
        """The event was delivered before."""
        if not self.state.redelivering:
            self.steps.append(BackwardStep("redelivery", self.name, offset, position, self.state.commit))
        self.state = replace(self.state, redelivering=True)
