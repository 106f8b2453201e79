"""From ordered events to inserts: resolve what they leave open, merge them for the engine, group by table partition."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ch_sink.errors import StreamFailed
from ch_sink.merge import (
    LeftOpen,
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
from ch_sink.order import Sequenced, State
from ch_sink.order.version import to_int
from ch_sink.pipeline.inputs import Ports
from ch_sink.pipeline.planned import HandoverEntries, OpenedSwap, Waiting
from ch_sink.pipeline.target import Target
from ch_sink.ports import Insert
from ch_sink.sources import Source
from ch_sink.table.partition import partition_groups

__all__ = ["Outcome", "merge_chunk"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of resolving and merging."""

    inserts: list[Insert]
    counts: Counter[str]
    doubled: dict[str, str]
    """`State.doubled` after the chunk."""
    closed: dict[str, str]
    """`State.closed` after the chunk."""
    bad: list[BadRecord] = field(default_factory=list)
    pending: list[Waiting] = field(default_factory=list)
    handover: HandoverEntries | None = None
    swaps: list[OpenedSwap] = field(default_factory=list)
    closers: dict[bytes, int] = field(default_factory=dict)


def merge_chunk(
    batch: ChangeBatch,
    records: Records,
    order: Sequenced,
    target: Target,
    source: Source | None,
    state: State,
    ports: Ports,
    waiting: Mapping[bytes, int] | None,
) -> Outcome:
    """The inserts of a chunk. ``state`` is the state before the chunk; ``order`` has the state after it.

    Raises:
        StreamFailed: the table needs keys and the records have none, or it cannot store a delete or a row that moves.
    """
    if batch.key is None:
        return _without_keys(batch, records, order, target, state)
    target.expect_still_rows(tuple(batch.key.column_names))
    scope = target.scope(batch, source)
    resolved = resolve(
        batch,
        records,
        order,
        scope,
        target.policy.changes,
        lookup=ports.lookup,
        handover=ports.handover,
        left=LeftOpen(waiting or {}, {bytes.fromhex(key): int(n, 16) for key, n in state.doubled.items()}),
    )
    if target.collapsing:
        merged = merge_collapsing(batch, resolved, order, scope, target.system)
    elif target.appends:
        merged = merge_append(batch, resolved, order, target.table, target.system.layout)
    else:
        merged = merge_replacing(batch, resolved, order, scope, target.system, target.policy.changes)
    place = batch.source_index.tolist()
    doubled, closed = _swaps_after(state, order.state, resolved)
    return Outcome(
        inserts=_inserts(merged, target),
        counts=resolved.counts + _counted(merged),
        doubled=doubled,
        closed=closed,
        bad=resolved.bad,
        pending=[
            Waiting(place[i], int(order.epoch[i]), to_int(order.transaction, i), resolved.awaited.get(i))
            for i in resolved.pending
        ],
        handover=HandoverEntries(*handed_rows(resolved, batch)) if resolved.handover else None,
        swaps=[
            OpenedSwap(place[create], to_int(batch.inner, create), place[delete] if delete >= 0 else -1)
            for create, delete in resolved.opened.items()
        ],
        closers={key: place[delete] for key, delete in resolved.closers.items()},
    )


def _without_keys(batch: ChangeBatch, records: Records, order: Sequenced, target: Target, state: State) -> Outcome:
    if not target.appends:
        raise StreamFailed(
            f"the records of {records.topic} carry no key, and {target.table.engine.name} needs one",
            hint="set key_columns, or use a MergeTree table (append mode)",
        )
    bad = _without_old_row(batch, order)
    merged = merge_multiset(batch, order, target.table, target.system.layout)
    return Outcome(_inserts(merged, target), _counted(merged), state.doubled, state.closed, bad)


def _without_old_row(batch: ChangeBatch, order: Sequenced) -> list[BadRecord]:
    """Updates and deletes without a before image, dropped from the order: nothing else identifies the old row."""
    changes = (batch.op == Op.UPDATE) | (batch.op == Op.DELETE)
    bad = []
    for i in np.flatnonzero(changes & order.keep & ~batch.has_before).tolist():
        order.keep[i] = False
        what = "an update" if batch.op[i] == Op.UPDATE else "a delete"
        reason = f"{what} of a row that has no key does not state the row's values before it"
        bad.append(BadRecord(int(batch.source_index[i]), reason, "key"))
    return bad


def _swaps_after(before: State, after: State, resolved: Resolved) -> tuple[dict[str, str], dict[str, str]]:
    """Keys with two live rows after the chunk: opened in it, or earlier in a transaction that is still open.

    And those of that transaction whose former row has left.
    """
    opened = {key.hex(): f"{inner:x}" for key, inner in sorted(resolved.doubled.items())}
    if all((after.of(n).epoch, after.of(n).commit) == (s.epoch, s.commit) for n, s in before.sources.items()):
        settled = {key.hex() for key in resolved.settled}
        left = {key: inner for key, inner in before.doubled.items() if key in settled}
        still = {key: inner for key, inner in before.doubled.items() if key not in settled}
        return still | opened, before.closed | left
    return opened, {}


def _counted(merged: Merged) -> Counter[str]:
    return Counter(upserts=merged.upserts, deletes=merged.deletes, moves=merged.moves)


def _inserts(merged: Merged, target: Target) -> list[Insert]:
    return [insert for step, rows in merged.steps for insert in _grouped(rows, target, step)]


def _grouped(rows: pa.Table, target: Target, step: str) -> list[Insert]:
    """One insert per table partition; a single one for many, or if the client cannot evaluate the expression."""
    if not rows.num_rows:
        return []
    groups = partition_groups(target.table, rows)
    if groups is None or (target.separate is not None and len(groups) > target.separate):
        return [Insert(rows, f"{step}/*")]
    if len(groups) == 1:
        return [Insert(rows, f"{step}/{groups[0][0]}")]
    return [Insert(rows.take(pa.array(index)), f"{step}/{label}") for label, index in groups]
