"""plan(): the pure pipeline. Records in, inserts out; no clock, and the world only through ports.

    decode ─▶ sequence ─▶ resolve ─▶ merge ─▶ group by table partition

Used alike by the Spark task, by ``replay``, by the tests and by the benchmarks.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.errors import StreamFailed
from ch_sink.merge import (
    Merged,
    Resolved,
    handed_rows,
    merge_append,
    merge_collapsing,
    merge_multiset,
    merge_replacing,
    resolve,
)
from ch_sink.model.change import BadRecord, ChangeBatch, Op, Records
from ch_sink.order import BackwardStep, Sequenced, State, sequence
from ch_sink.order.sequence import drop_truncated, ordered
from ch_sink.order.version import to_int
from ch_sink.pipeline.barrier import Barrier, fill_absent, new_columns
from ch_sink.pipeline.target import Target
from ch_sink.ports import Handover, HandoverId, History, Insert, RowLookup
from ch_sink.sources import Source, source_for
from ch_sink.table.partition import partition_groups

__all__ = ["Barrier", "BatchDecoder", "HandoverEntries", "Plan", "Ports", "Waiting", "plan"]

_LOOK_BACK = 10_000
"""Records before a chunk that are looked at where it has null values only."""


class BatchDecoder(Protocol):
    """Turns the records of a chunk into change events (`ch_sink.decode.Decoder`)."""

    def decode(self, records: Records, *, waited: bool = False) -> ChangeBatch:
        """``waited``: the records come from the pending table; null values among them are deletes."""
        ...

    @property
    def undecided(self) -> bool:
        """Whether the last chunk had null values, and no row seen so far tells whether they are deletes."""
        ...

    def key_columns(self) -> tuple[str, ...]:
        """Names of the key's columns, known after the first record with a key."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """What a plan may ask while it is made."""

    lookup: RowLookup | None = None
    handover: Handover | None = None
    history: History | None = None


@dataclass(frozen=True, slots=True)
class HandoverEntries:
    """Values for the create halves of key changes; stored before any row of the chunk is."""

    ids: Sequence[HandoverId]
    rows: pa.Table
    known: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Waiting:
    """An event that waits: its place in the Records, and the order it was given."""

    index: int
    epoch: int
    commit: int


@dataclass(slots=True)
class Plan:
    """What has to be done for one chunk, in this order: hand-over, pending, inserts, dead letters."""

    state: State
    inserts: list[Insert] = field(default_factory=list)
    handover: HandoverEntries | None = None
    pending: list[Waiting] = field(default_factory=list)
    """Events that wait for a hand-over."""
    bad: list[BadRecord] = field(default_factory=list)
    barrier: Barrier | None = None
    steps: list[BackwardStep] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """events, upserts, deletes, moves, redelivered, superseded, looked_up, filled, tombstone, heartbeat, …"""
    reconciles: bool = False
    """The content depends on what was stored: the token must depend on the content."""
    last_source_ts: int = 0


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
        released: offsets of this chunk that waited in an earlier attempt and were applied when they could be.

    Raises:
        StreamFailed: what the policy or the table forbids (a delete that cannot be stored, a truncate, a new column).
    """
    batch = decoder.decode(records, waited=assigned is not None)
    if decoder.undecided and ports.history is not None:
        decoder.decode(ports.history.before(int(records.offsets[0]), _LOOK_BACK))
        batch = decoder.decode(records)
    barrier = new_columns(batch, target, decoder.key_columns())
    if barrier is not None:
        upto = int(np.searchsorted(records.offsets, barrier.next_offset))
        done = plan(
            records.slice(0, upto),
            target,
            decoder,
            state,
            ports,
            waiting=waiting,
            assigned=assigned,
            released=released,
        )
        done.barrier = done.barrier or barrier
        return done
    fill_absent(batch, target.table)
    source = source_for(batch.connector) if batch.connector else None
    if assigned is not None:
        order = _as_assigned(batch, target, state, assigned)
    else:
        order = _sequence(batch, records, target, decoder, state, ports, source)
    if released:
        order.keep &= ~np.isin(batch.offset, list(released))
    out = Plan(state=order.state, steps=order.steps, counts=Counter(order.skipped))
    out.counts.update({str(kind): n for kind, n in batch.aside.items()})
    out.counts["events"] += len(batch)
    out.bad = list(batch.bad)
    out.last_source_ts = int(batch.source_ts.max(initial=0))
    out.reconciles = target.collapsing
    if not len(batch):
        return out
    first = _truncate(batch, order, target, out)
    if not order.keep.any():
        return out
    if first is not None:
        if not state.alone and order.state.strategy != "source_position":
            raise StreamFailed(
                f"the truncate at offset {int(batch.offset[first])} cannot be applied: the topic has several "
                f"partitions, and versions by {order.state.strategy} do not order them against each other",
                hint="set truncate: ignore, or use a topic with one partition",
            )
        before = records.slice(0, int(batch.source_index[first]))
        barrier = _truncate_barrier(batch, order, first, target, state)
        # What the truncate overtakes is not written first: its own transaction's rows could not be told apart later.
        done = plan(before, target, decoder, state.with_floor(barrier.floor), ports, waiting=waiting, released=released)
        with_it = records.slice(0, int(batch.source_index[first]) + 1)
        after = _sequence(decoder.decode(with_it), with_it, target, decoder, state, ports, source)
        done.state = replace(after.state, doubled=done.state.doubled)
        done.barrier = barrier
        done.counts["truncates"] += 1
        return done
    merged = _merge(batch, records, order, target, source, state, ports, waiting, out)
    out.counts.update(upserts=merged.upserts, deletes=merged.deletes, moves=merged.moves)
    for step, rows in merged.steps:
        out.inserts.extend(_grouped(rows, target, step))
    return out


def _sequence(
    batch: ChangeBatch,
    records: Records,
    target: Target,
    decoder: BatchDecoder,
    state: State,
    ports: Ports,
    source: Source | None,
) -> Sequenced:
    return sequence(
        batch,
        records,
        state,
        layout=target.layout,
        policy=target.policy.versions,
        strategy=target.strategy(source),
        unique_inner=source is not None and source.unique_inner,
        history=ports.history,
        decode=decoder.decode,
        drop_repeats=target.appends,
    )


def _as_assigned(
    batch: ChangeBatch, target: Target, state: State, assigned: Mapping[int, tuple[int, int]]
) -> Sequenced:
    given = [assigned[o] for o in batch.offset.tolist()]
    epoch = np.array([e for e, _ in given], dtype=np.int64)
    commit = np.array([[c >> 64, c & 0xFFFFFFFFFFFFFFFF] for _, c in given], dtype=np.uint64).reshape(-1, 2)
    order = ordered(batch, epoch, commit, state, target.layout, target.policy.versions)
    drop_truncated(batch, order, state)  # one may have come while they waited
    return order


def _truncate(batch: ChangeBatch, order: Sequenced, target: Target, out: Plan) -> int | None:
    """The first truncate that is to be applied, by event; others are dropped from the order.

    Raises:
        StreamFailed: there is one, and the policy is to fail.
    """
    truncates = np.flatnonzero((batch.op == Op.TRUNCATE) & order.keep)
    if not len(truncates):
        order.keep[batch.op == Op.TRUNCATE] = False
        return None
    first = int(truncates[0])
    if target.policy.changes.truncate == "fail":
        raise StreamFailed(
            f"the source table was truncated (event at offset {int(batch.offset[first])})",
            hint="set truncate: apply to delete the rows here too, or truncate: ignore to keep them",
        )
    if target.policy.changes.truncate == "apply":
        return first
    order.keep[truncates] = False
    out.counts["truncates_ignored"] += len(truncates)
    return None


def _truncate_barrier(batch: ChangeBatch, order: Sequenced, event: int, target: Target, state: State) -> Barrier:
    inner = (int(batch.inner[event, 0]) << 64) | int(batch.inner[event, 1])
    version = to_int(order.version, event)
    if not state.alone and target.layout.kind == "wide":
        # Offsets of other partitions say nothing about this one's: rows that the truncate's own transaction wrote
        # after it (TRUNCATE, then INSERT) must stay, wherever they are.
        lift = target.policy.versions.floor
        version = ((version - lift) >> 32 << 32) + lift
    return Barrier(
        "truncate",
        int(batch.offset[event]) + 1,
        version=version,
        floor=(int(order.epoch[event]), to_int(order.commit, event), inner),
    )


def _merge(
    batch: ChangeBatch,
    records: Records,
    order: Sequenced,
    target: Target,
    source: Source | None,
    state: State,
    ports: Ports,
    waiting: Mapping[bytes, int] | None,
    out: Plan,
) -> Merged:
    stored_layout = target.system.layout
    if batch.key is None:
        if not target.appends:
            raise StreamFailed(
                f"the records of {records.topic} carry no key, and {target.table.engine.name} needs one",
                hint="set key_columns, or use a MergeTree table (append mode)",
            )
        _need_old_rows(batch, order, out)
        return merge_multiset(batch, order, target.table, stored_layout)
    scope = target.scope(batch, source)
    resolved = resolve(
        batch,
        records,
        order,
        scope,
        target.policy.changes,
        lookup=ports.lookup,
        handover=ports.handover,
        waiting=waiting,
        doubled={bytes.fromhex(key): int(inner, 16) for key, inner in state.doubled.items()},
    )
    out.state = replace(out.state, doubled=_doubled(state, out.state, resolved))
    out.bad.extend(resolved.bad)
    out.counts.update(resolved.counts)
    out.pending = [
        Waiting(int(batch.source_index[i]), int(order.epoch[i]), to_int(order.commit, i)) for i in resolved.pending
    ]
    if resolved.handover:
        out.handover = HandoverEntries(*handed_rows(resolved, batch))
    if target.collapsing:
        return merge_collapsing(batch, resolved, order, scope, target.system)
    if target.appends:
        return merge_append(batch, resolved, order, target.table, stored_layout)
    return merge_replacing(batch, resolved, order, scope, target.system, target.policy.changes)


def _need_old_rows(batch: ChangeBatch, order: Sequenced, out: Plan) -> None:
    """Without a key the row that goes is known by its values alone: flattened updates do not tell them."""
    changes = (batch.op == Op.UPDATE) | (batch.op == Op.DELETE)
    for i in np.flatnonzero(changes & order.keep & ~batch.has_before).tolist():
        order.keep[i] = False
        what = "an update" if batch.op[i] == Op.UPDATE else "a delete"
        reason = f"{what} of a row that has no key does not tell the row's values before it"
        out.bad.append(BadRecord(int(batch.source_index[i]), reason, "key"))


def _doubled(before: State, after: State, resolved: Resolved) -> dict[str, str]:
    """Keys with two live rows when the chunk ends: opened here, or before it in the transaction that still goes on."""
    opened = {key.hex(): f"{inner:x}" for key, inner in sorted(resolved.doubled.items())}
    if all((after.of(n).epoch, after.of(n).commit) == (s.epoch, s.commit) for n, s in before.sources.items()):
        settled = {key.hex() for key in resolved.settled}
        return {key: inner for key, inner in before.doubled.items() if key not in settled} | opened
    return opened


def _grouped(rows: pa.Table, target: Target, step: str) -> list[Insert]:
    """One insert per table partition; where the client cannot evaluate the expression, one for all."""
    if not rows.num_rows:
        return []
    groups = partition_groups(target.table, rows)
    if groups is None or len(groups) == 1:
        label = "*" if groups is None else groups[0][0]
        return [Insert(rows, f"{step}/{label}")]
    return [Insert(rows.take(pa.array(index)), f"{step}/{label}") for label, index in groups]
