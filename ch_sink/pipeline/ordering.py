"""Order of a chunk's events up to the first truncate to apply: one pass, each event ordered once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ch_sink.model.change import ChangeBatch, Op, Records, event_range
from ch_sink.order import Earlier, Rules, Sequenced, State, Trace, sequence
from ch_sink.order.sequence import by_offset, drop_loaded, drop_truncated, ordered
from ch_sink.pipeline.chunks import join_records
from ch_sink.pipeline.inputs import Failed
from ch_sink.pipeline.target import Target
from ch_sink.ports import History
from ch_sink.sources import Source, source_for

__all__ = ["Orderer", "events_before", "in_given_order"]


def in_given_order(
    batch: ChangeBatch, target: Target, state: State, assigned: Mapping[int, tuple[int, int]]
) -> Sequenced:
    """The order assigned to waiting events when they arrived: offset → epoch and commit position."""
    given = [assigned[o] for o in batch.offset.tolist()]
    epoch = np.array([e for e, _ in given], dtype=np.int64)
    transaction = np.array([[c >> 64, c & 0xFFFFFFFFFFFFFFFF] for _, c in given], dtype=np.uint64).reshape(-1, 2)
    commit = by_offset(batch) if state.by_offset else transaction
    order = ordered(batch, epoch, commit, state, target.layout, target.policy.versions)
    order.transaction = transaction
    # A truncate may have arrived while they waited, or the table been filled from the source.
    drop_truncated(batch, order, state)
    source = source_for(batch.connector) if batch.connector else None
    drop_loaded(batch, order, state.loaded, inner_is_log=source is not None and source.inner_is_log)
    return order


@dataclass(frozen=True, slots=True)
class Orderer:
    """Orders the events of one chunk."""

    records: Records
    target: Target
    source: Source | None
    history: History | None
    decode: Callable[[Records], ChangeBatch]
    failed: Failed | None = None
    trace: Trace | None = None

    def whole(self, batch: ChangeBatch, state: State) -> Sequenced:
        """The order of all events of a batch."""
        return self._sequence(batch, state, self.history)

    def until_truncate(self, batch: ChangeBatch, state: State) -> tuple[Sequenced, int | None]:
        """The order of the events up to the first truncate that is not a re-delivery, and which event that is.

        The truncate is the last event of that order; None if every truncate is a re-delivery.
        """
        history = _WithChunk(self.records, self.history)
        done: list[Sequenced] = []
        start = 0
        for event in np.flatnonzero(batch.op == Op.TRUNCATE).tolist():
            order = self._sequence(event_range(batch, start, event + 1), state, history)
            done.append(order)
            state, start = order.state, event + 1
            if order.keep[-1]:
                return _joined(done), event
        done.append(self._sequence(event_range(batch, start, len(batch)), state, history))
        return _joined(done), None

    def _sequence(self, batch: ChangeBatch, state: State, history: History | None) -> Sequenced:
        target, source = self.target, self.source
        rules = Rules(
            target.layout,
            target.policy.versions,
            target.strategy(source),
            follow=target.follows(source),
            unique_inner=source is not None and source.unique_inner,
            inner_is_log=source is not None and source.inner_is_log,
            drop_repeats=target.appends,
        )
        return sequence(batch, self.records, state, rules, Earlier(history, self.decode, self.failed), self.trace)


@dataclass(frozen=True, slots=True)
class _WithChunk:
    """Earlier records, with those of the chunk that precede an offset inside it."""

    records: Records
    history: History | None

    def before(self, offset: int, limit: int) -> Records:
        own = self.records.slice(0, int(np.searchsorted(self.records.offsets, offset)))
        if self.history is None:
            return own
        return join_records([self.history.before(int(self.records.offsets[0]), limit), own])


def _joined(orders: list[Sequenced]) -> Sequenced:
    """The order of consecutive events."""
    if len(orders) == 1:
        return orders[0]
    last = orders[-1]
    joined = replace(
        last,
        keep=np.concatenate([o.keep for o in orders]),
        epoch=np.concatenate([o.epoch for o in orders]),
        commit=np.concatenate([o.commit for o in orders]),
        transaction=np.concatenate([o.transaction for o in orders]),
        version=np.concatenate([o.version for o in orders]),
        leaving=np.concatenate([o.leaving for o in orders]),
        recheck=np.concatenate([o.recheck for o in orders]),
        steps=[step for o in orders for step in o.steps],
    )
    for order in orders[:-1]:
        joined.skipped.update(order.skipped)
    return joined


def events_before(order: Sequenced, count: int) -> Sequenced:
    """The order of the first ``count`` events; its state is the one after all events."""
    part = slice(0, count)
    return replace(
        order,
        keep=order.keep[part],
        epoch=order.epoch[part],
        commit=order.commit[part],
        transaction=order.transaction[part],
        version=order.version[part],
        leaving=order.leaving[part],
        recheck=order.recheck[part],
    )
