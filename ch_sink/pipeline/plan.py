"""plan(): from records and a state to inserts and the next state, pure except for what the ports return.

    learn ─▶ decode ─▶ order, cut at a truncate ─▶ resolve ─▶ merge ─▶ group by partition ─▶ leave out what is stored

A chunk for which the table lacks columns has an empty plan: it is planned again, whole, once they exist.
The Spark task, the tests and the benchmarks all call it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ch_sink.decode.mongodb.events import is_document_source
from ch_sink.model.change import ChangeBatch, Op, Records, both_readings, event_range, head
from ch_sink.order import Earlier, Rules, Sequenced, State, sequence
from ch_sink.order.sequence import by_offset, drop_loaded, drop_truncated, ordered
from ch_sink.pipeline.barrier import (
    Barrier,
    expect_stated,
    fill_absent,
    new_columns,
    refuse_or_ignore,
    truncate_barrier,
)
from ch_sink.pipeline.chunks import join_records
from ch_sink.pipeline.merging import Outcome, left_to_store, merge_chunk
from ch_sink.pipeline.one_partition import in_one_partition
from ch_sink.pipeline.plans import BatchDecoder, Known, Plan, Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import History
from ch_sink.sources import Source, source_for


def plan(
    records: Records, target: Target, decoder: BatchDecoder, state: State, ports: Ports, known: Known | None = None
) -> Plan:
    """Plan one chunk.

    Raises:
        StreamFailed: what the policy or the table forbids (a delete that cannot be stored, a truncate, a new column),
            or rows of an earlier attempt that cannot be found.
    """
    known = known or Known()
    profile = decoder.learn(records, state.profile, ports.history)
    target.expect_key(profile.key_columns)
    batch = decoder.decode(records, profile, waited=known.assigned is not None)
    source = source_for(batch.connector) if batch.connector else None
    barrier: Barrier | None = None
    first = int(records.offsets[0]) if len(records) else 0
    if known.assigned is None:
        state = replace(state, key_read_as=both_readings(state.key_read_as, batch.key_read_as))
        target.expect_same_keys(state.key_read_as, batch.key_read_as, first)
        state, barrier = in_one_partition(batch, records, target, source, decoder, state)
        if barrier is not None:
            batch = head(batch, int(np.searchsorted(records.offsets, barrier.next_offset)), barrier.next_offset)
    lacking = new_columns(batch, target, target.stored_key(profile.key_columns), first)
    if lacking is not None:
        return Plan(state, barrier=lacking)
    if target.table.rollups and not is_document_source(source_for(batch.connector)):
        expect_stated(batch, target.table)
    fill_absent(batch, target.table)
    orderer = Orderer(records, target, source, ports, lambda earlier: decoder.decode(earlier, profile))
    order, truncate = orderer.ordered(batch, state, known.assigned)
    if known.released:
        order.keep &= ~np.isin(batch.offset, list(known.released))
    if truncate is not None:
        barrier = truncate_barrier(batch, order, truncate, target, state)
        # Rows that the truncate deletes are never written: those of its own transaction could not be distinguished
        # from the rows that must survive it.
        batch = head(batch, int(batch.source_index[truncate]), int(batch.offset[truncate]))
        order = events_before(order, truncate)
        drop_truncated(batch, order, state.with_floor(barrier.floor, barrier.source))
    merged = Outcome(order.state)
    counts = _counts(batch, order, truncated=truncate is not None)
    if ports.trace is not None:
        ports.trace.follow(batch, order)
    # A swap of keys may end with a chunk that has no event of the key that is followed.
    if order.keep.any() or (ports.trace is not None and batch.key is not None):
        merged = merge_chunk(batch, records, order, target, source, state, ports, known.waiting)
        counts.update(merged.counts)
    after = replace(merged.state, profile=profile.after(batch))
    left = left_to_store(merged, counts, target, ports.lookup, known, after)
    return Plan(
        after,
        left.inserts,
        merged.handover,
        merged.pending,
        merged.swaps,
        merged.closers,
        bad=[*batch.bad, *merged.bad],
        barrier=barrier,
        steps=order.steps,
        counts=counts,
        reconciles=left.reconciles,
        last_source_ts=int(batch.source_ts.max(initial=0)),
    )


def _counts(batch: ChangeBatch, order: Sequenced, *, truncated: bool) -> Counter[str]:
    counts = Counter(order.skipped)
    counts.update({str(kind): n for kind, n in batch.skipped_counts.items()})
    counts["events"] += len(batch)
    if batch.clamped:
        counts["out_of_range"] += batch.clamped.total()
    if truncated:
        counts["truncates"] += 1
    return counts


def in_given_order(
    batch: ChangeBatch, target: Target, state: State, assigned: Mapping[int, tuple[int, int]]
) -> Sequenced:
    """The order assigned to waiting events when they arrived: offset → epoch and commit position."""
    given = [assigned[o] for o in batch.offset.tolist()]
    epoch = np.array([e for e, _ in given], dtype=np.int64)
    transaction = np.array([[c >> 64, c & 0xFFFFFFFFFFFFFFFF] for _, c in given], dtype=np.uint64).reshape(-1, 2)
    commit = by_offset(batch) if state.by_offset else transaction
    order = ordered(batch, epoch, commit, state, target.layout)
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
    ports: Ports
    decode: Callable[[Records], ChangeBatch]

    def ordered(
        self, batch: ChangeBatch, state: State, assigned: Mapping[int, tuple[int, int]] | None
    ) -> tuple[Sequenced, int | None]:
        """The order of the events, and the event that is a truncate to apply (the order ends there)."""
        if assigned is not None:
            return in_given_order(batch, self.target, state, assigned), None
        if self.target.policy.changes.truncate == "apply":
            return self.until_truncate(batch, state)
        order = self.whole(batch, state)
        refuse_or_ignore(batch, order, self.target)
        return order, None

    def whole(self, batch: ChangeBatch, state: State) -> Sequenced:
        """The order of all events of a batch."""
        return self._sequence(batch, state, self.ports.history)

    def until_truncate(self, batch: ChangeBatch, state: State) -> tuple[Sequenced, int | None]:
        """The order of the events up to the first truncate that is not a re-delivery, and which event that is.

        The truncate is the last event of that order; None if every truncate is a re-delivery.
        """
        history = _WithChunk(self.records, self.ports.history)
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
            counts=target.appends,
        )
        earlier = Earlier(history, self.decode, self.ports.failed)
        return sequence(batch, self.records, state, rules, earlier, self.ports.trace)


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


_BY_EVENT = ("keep", "epoch", "commit", "transaction", "version", "leaving")
"""Arrays of `Sequenced` with a value for each event."""


def _joined(orders: list[Sequenced]) -> Sequenced:
    """The order of consecutive events."""
    if len(orders) == 1:
        return orders[0]
    arrays: dict[str, Any] = {name: np.concatenate([getattr(o, name) for o in orders]) for name in _BY_EVENT}
    joined = replace(orders[-1], **arrays, steps=[step for o in orders for step in o.steps])
    for order in orders[:-1]:
        joined.skipped.update(order.skipped)
    return joined


def events_before(order: Sequenced, count: int) -> Sequenced:
    """The order of the first ``count`` events; its state is the one after all events."""
    return replace(order, **{name: getattr(order, name)[:count] for name in _BY_EVENT})
