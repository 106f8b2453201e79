"""plan(): from records and a state to inserts and the next state, pure except for what the ports return.

    learn ─▶ decode ─▶ cut at new columns ─▶ order, cut at a truncate ─▶ resolve ─▶ merge ─▶ group by partition

The Spark task, the tests and the benchmarks all call it.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ch_sink.decode.mongodb.events import is_document_source
from ch_sink.model.change import ChangeBatch, Records, head
from ch_sink.model.policy import TopicProfile
from ch_sink.order import Sequenced, State
from ch_sink.order.sequence import drop_truncated
from ch_sink.pipeline.barrier import Barrier, expect_stated, fill_absent, new_columns
from ch_sink.pipeline.inputs import BatchDecoder, Ports
from ch_sink.pipeline.merging import merge_chunk
from ch_sink.pipeline.ordering import Orderer, events_before, in_given_order
from ch_sink.pipeline.planned import HandoverEntries, Plan, Waiting
from ch_sink.pipeline.target import Target
from ch_sink.pipeline.truncate import refuse_or_ignore, truncate_barrier
from ch_sink.sources import Source, source_for

__all__ = ["Barrier", "BatchDecoder", "HandoverEntries", "Plan", "Ports", "Waiting", "plan"]


def plan(
    records: Records,
    target: Target,
    decoder: BatchDecoder,
    state: State,
    ports: Ports,
    *,
    waiting: Mapping[bytes, int] | None = None,
    assigned: Mapping[int, tuple[int, int]] | None = None,
    released: Collection[int] = (),
) -> Plan:
    """Plan one chunk.

    Args:
        waiting: Kafka keys whose earlier changes wait for a hand-over, with the offset of the first that does.
        assigned: offset → (epoch, commit position), for records that were ordered when they arrived.
        released: offsets of this chunk whose records waited in an earlier attempt and have been applied since.

    Raises:
        StreamFailed: what the policy or the table forbids (a delete that cannot be stored, a truncate, a new column).
    """
    profile = decoder.learn(records, state.profile, ports.history)
    batch = decoder.decode(records, profile, waited=assigned is not None)
    barrier = new_columns(batch, target, target.stored_key(profile.key_columns))
    if barrier is not None:
        place = int(np.searchsorted(records.offsets, barrier.next_offset))
        batch = head(batch, place, barrier.next_offset)
    source = source_for(batch.connector) if batch.connector else None
    if target.table.rollups and not is_document_source(source):
        expect_stated(batch, target.table)
    fill_absent(batch, target.table)
    order, truncate = _ordered(batch, records, target, decoder, profile, state, ports, source, assigned)
    if released:
        order.keep &= ~np.isin(batch.offset, list(released))
    if truncate is not None:
        barrier = truncate_barrier(batch, order, truncate, target, state)
        # Rows that the truncate deletes are never written: those of its own transaction could not be distinguished
        # from the rows that must survive it.
        batch = head(batch, int(batch.source_index[truncate]), int(batch.offset[truncate]))
        order = events_before(order, truncate)
        drop_truncated(batch, order, state.with_floor(barrier.floor, barrier.source))
    made = Plan(
        replace(order.state, profile=profile.after(batch)),
        bad=list(batch.bad),
        barrier=barrier,
        steps=order.steps,
        counts=_counts(batch, order, truncated=truncate is not None),
        reconciles=target.collapsing,
        last_source_ts=int(batch.source_ts.max(initial=0)),
    )
    if ports.trace is not None:
        ports.trace.follow(batch, order)
    # A swap of keys may end with a chunk that has no event of the key that is followed.
    if not order.keep.any() and (ports.trace is None or batch.key is None):
        return made
    merged = merge_chunk(batch, records, order, target, source, state, ports, waiting)
    made.inserts, made.handover, made.pending = merged.inserts, merged.handover, merged.pending
    made.bad += merged.bad
    made.counts.update(merged.counts)
    made.swaps, made.closers = merged.swaps, merged.closers
    made.state = replace(made.state, doubled=merged.doubled, closed=merged.closed)
    return made


def _ordered(
    batch: ChangeBatch,
    records: Records,
    target: Target,
    decoder: BatchDecoder,
    profile: TopicProfile,
    state: State,
    ports: Ports,
    source: Source | None,
    assigned: Mapping[int, tuple[int, int]] | None,
) -> tuple[Sequenced, int | None]:
    """The order of the events, and the event that is a truncate to apply (the order ends there)."""
    if assigned is not None:
        return in_given_order(batch, target, state, assigned), None
    orderer = Orderer(
        records,
        target,
        source,
        ports.history,
        lambda earlier: decoder.decode(earlier, profile),
        ports.failed,
        ports.trace,
    )
    if target.policy.changes.truncate == "apply":
        return orderer.until_truncate(batch, state)
    order = orderer.whole(batch, state)
    refuse_or_ignore(batch, order, target)
    return order, None


def _counts(batch: ChangeBatch, order: Sequenced, *, truncated: bool) -> Counter[str]:
    counts = Counter(order.skipped)
    counts.update({str(kind): n for kind, n in batch.skipped_counts.items()})
    counts["events"] += len(batch)
    if truncated:
        counts["truncates"] += 1
    return counts
