"""From ordered events to inserts: resolve what they leave open, merge them for the engine, group by table partition.

Of a chunk that is applied again, only what is not stored yet is left to insert.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.errors import StreamFailed
from ch_sink.merge.append import Changes, count_once, merge_append, merge_multiset
from ch_sink.merge.collapsing import merge_collapsing
from ch_sink.merge.dependent import LeftOpen
from ch_sink.merge.replacing import merge_replacing
from ch_sink.merge.resolve import handed_rows, resolve
from ch_sink.merge.resolved import Merged, Resolved, factorize
from ch_sink.model.change import BadRecord, ChangeBatch, Op, Records
from ch_sink.order import Sequenced, State
from ch_sink.order.version import to_int
from ch_sink.pipeline.plans import HandoverEntries, Known, OpenedSwap, Ports, Waiting
from ch_sink.pipeline.target import Target
from ch_sink.ports import Insert, RowLookup
from ch_sink.sources import Source
from ch_sink.table.evolve import not_found_again
from ch_sink.table.model import TargetTable, text_instead
from ch_sink.table.partition import partition_groups
from ch_sink.types.arrow import untimed
from ch_sink.types.chtype import parse_type


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of resolving and merging."""

    state: State
    """The state after the chunk."""
    inserts: Sequence[Insert] = ()
    counts: Counter[str] = field(default_factory=Counter)
    bad: Sequence[BadRecord] = ()
    pending: Sequence[Waiting] = ()
    handover: HandoverEntries | None = None
    swaps: Sequence[OpenedSwap] = ()
    closers: Mapping[bytes, int] = field(default_factory=dict)


def merge_chunk(
    batch: ChangeBatch,
    records: Records,
    order: Sequenced,
    target: Target,
    source: Source | None,
    state: State,
    ports: Ports,
    waiting: Mapping[bytes, int],
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
        merged = merge_append(Changes.of(batch, records, order, target.table, target.system.layout), resolved)
    else:
        merged = merge_replacing(batch, resolved, order, scope, target.system, target.policy.changes)
    place = batch.source_index.tolist()
    doubled, closed = _swaps_after(state, order.state, resolved)
    looks_up = target.needs_stored_rows(tuple(batch.key.column_names), source)
    return Outcome(
        replace(order.state, doubled=doubled, closed=closed, looks_up=looks_up),
        inserts=_inserts(merged, target),
        counts=resolved.counts + _counted(merged),
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
            hint="Set key_columns, or use a MergeTree table (append mode).",
        )
    table = target.table
    if json := next((c for c in table.source_columns if parse_type(c.type).holds("JSON")), None):
        raise StreamFailed(
            f"{table.qualified} has no key, so its rows are found by all of their values, and the JSON column "
            f"{json.name!r} may give back another value than was stored",
            hint=text_instead(table.qualified, json),
        )
    _expect_found_again(batch, table)
    bad = _without_old_row(batch, order)
    counted = count_once(batch, order, state.counted)
    merged = merge_multiset(Changes.of(batch, records, order, table, target.system.layout))
    after = replace(order.state, doubled=state.doubled, closed=state.closed, counted=counted)
    return Outcome(after, _inserts(merged, target), _counted(merged), bad)


def _expect_found_again(batch: ChangeBatch, table: TargetTable) -> None:
    """Raise StreamFailed if a row is to be found whose column the server fills differently in each insert."""
    if not ((batch.op == Op.UPDATE) | (batch.op == Op.DELETE)).any():
        return
    images = [(batch.after, (batch.op != Op.DELETE) & (batch.op != Op.TRUNCATE))]
    images += [(batch.before, batch.has_before)] if batch.before is not None else []
    for column in table.shown_anew:
        nullable = parse_type(column.type).nullable
        for rows, there in images:
            stated = column.name in rows.column_names
            if not stated or (not nullable and (there & np.asarray(rows.column(column.name).is_null())).any()):
                why, statements = not_found_again(table, column)
                raise StreamFailed(
                    f"{table.qualified}: {why}",
                    hint=f"Views and comparisons leave out what the server computes: {'; '.join(statements)}; then "
                    "`ch_sink resume`. If rows are stored already, fill the table again: `ch_sink resync CONFIG`.",
                )


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
    return [insert for step, rows in merged.steps for insert in by_partition(rows, target, step)]


_SEPARATE = 4
"""Table partitions of one chunk that get an insert each.

Of more, the server splits one block: a request for each part costs it two to three times as much.
"""


def by_partition(rows: pa.Table, target: Target, step: str) -> list[Insert]:
    """One insert per table partition; a single one for many, or if the client cannot evaluate the expression."""
    if not rows.num_rows:
        return []
    groups = partition_groups(target.table, rows)
    if groups is None or len(groups) > _SEPARATE:
        return [Insert(rows, f"{step}/*")]
    if len(groups) == 1:
        return [Insert(rows, f"{step}/{groups[0][0]}")]
    return [Insert(rows.take(pa.array(index)), f"{step}/{label}") for label, index in groups]


@dataclass(frozen=True, slots=True)
class Left:
    """The part of a chunk that is left to insert."""

    inserts: Sequence[Insert]
    reconciles: bool
    """It depends on what was stored: the tokens must depend on it, too."""


_ASKED = ("superseded", "truncated", "looked_up", "handed_over", "filled")
"""Counts of plans that depend on more than the chunk's records."""


def left_to_store(
    merged: Outcome, counts: Counter[str], target: Target, lookup: RowLookup | None, known: Known, after: State
) -> Left:
    """The inserts, without the rows that an earlier attempt has stored.

    That attempt may have had other settings, another table or another version of the sink, or have stored a part of the
    chunk, or have stored it under the token of a group. Collapsing tables are reconciled anyway. In all others the same
    offsets are not stored twice, and the tokens of the first attempt say nothing about rows that differ.

    A row is found again by its version, which holds the offset of its event, by its sign and its key. In an append
    table its other values are those of the earlier attempt; a change is stored once. In a table with versions a row
    with other values replaces the stored one; a delete has no values but those that place it.

    Raises:
        StreamFailed: rows of the table cannot be distinguished.
    """
    if target.collapsing or not merged.inserts:
        return Left(merged.inserts, target.collapsing)
    key = after.profile.key_columns
    if target.appends:
        if not known.changed and not known.repeats:
            return Left(merged.inserts, reconciles=False)
        return Left(_not_appended(merged.inserts, target, lookup, known, key), reconciles=False)
    if target.exclusive:
        # The row inserted last wins, and everything behind this chunk is inserted again, too.
        return Left(merged.inserts, reconciles=bool(known.changed))
    asked = known.changed or known.grouped or known.released or merged.pending or any(counts[n] for n in _ASKED)
    if asked and (known.changed or known.repeats) and lookup is not None:
        return Left(_not_replaced(merged.inserts, target, lookup, known, key), reconciles=False)
    return Left(merged.inserts, reconciles=False)


def _not_appended(
    inserts: Sequence[Insert], target: Target, lookup: RowLookup | None, known: Known, key: tuple[str, ...]
) -> Sequence[Insert]:
    """The rows of an append table that the earlier attempt has not stored."""
    identity = change_identity(inserts[0], target, key)
    if identity is not None and lookup is not None:
        return [_rest(insert, identity, lookup) for insert in inserts]
    if known.changed != "other":  # the tokens are the same: such a chunk is in no group
        return inserts
    raise StreamFailed(
        f"a batch of {target.table.qualified} was begun with other settings, another table or another version of "
        "ch_sink, and its rows cannot be found again by version and key",
        hint="Run the job with the settings and the version that began the batch until it has ended; then change them.",
    )


def _not_replaced(
    inserts: Sequence[Insert], target: Target, lookup: RowLookup, known: Known, key: tuple[str, ...]
) -> Sequence[Insert]:
    """The rows of a table with versions that are not stored as they are.

    A lookup finds what the earlier attempt has stored of the chunk, so that changes count as outdated that were in its
    inserts, and deleted rows have other values. Changes that wait since then need no lookup any more. Changes from
    below a truncate that the earlier attempt had not met yet are outdated, too. The rest of those inserts would be
    stored under another token.
    """
    version, key = target.system.version, target.stored_key(key)
    if version is None or any(not {version, *key} <= set(insert.rows.column_names) for insert in inserts):
        return inserts
    places = tuple(target.table.deciding_columns(key))
    left = []
    for insert in inserts:
        rows = _not_stored_so(insert.rows, (version, *key), lookup, deleted=target.deleted, places=places)
        # Under other settings, the same block may have been stored before one that has to be replaced by it again.
        whole = not known.changed and rows.num_rows == insert.rows.num_rows
        left.append(insert if whole else replace(insert, rows=rows, partial=True))
    return left


def change_identity(insert: Insert, target: Target, key: tuple[str, ...]) -> tuple[str, ...] | None:
    """The columns that identify a change in an append table; None if there are none.

    Two partitions may have the same offsets, but without a ``key`` there is one; two changes of a row may have the same
    time. Two topics that share the table may have the same offsets: the added columns tell them apart.
    """
    have, version = set(insert.rows.column_names), target.system.version
    policy = target.policy.columns
    own, added = tuple(map(policy.target, key)), target.table.added_key(policy)
    if version is None or not {version, *own} <= have or target.layout.kind == "time":
        return None
    return tuple(name for name in (version, "_sign", *added, *own) if name in have)


def _rest(insert: Insert, identity: tuple[str, ...], lookup: RowLookup) -> Insert:
    rows = _not_stored(insert.rows, identity, lookup)
    return insert if rows.num_rows == insert.rows.num_rows else replace(insert, rows=rows, partial=True)


def _not_stored(rows: pa.Table, identity: tuple[str, ...], lookup: RowLookup) -> pa.Table:
    """The rows that the table lacks. ``identity``: columns that identify a change. Raises ClickHouseError."""
    mine = rows.select(list(identity))
    found = lookup.fetch(mine).rows
    if not found.num_rows:
        return rows
    stored = found.select(list(identity)).cast(mine.schema)
    codes = factorize(pa.concat_tables([mine, stored])).codes
    n = rows.num_rows
    return rows.filter(pa.array(~np.isin(codes[:n], codes[n:])))


def _not_stored_so(
    rows: pa.Table,
    identity: tuple[str, ...],
    lookup: RowLookup,
    *,
    deleted: tuple[str, int] | None = None,
    places: tuple[str, ...] = (),
) -> pa.Table:
    """The rows that the table lacks, or holds with other values. Raises ClickHouseError.

    Args:
        deleted: the column that marks a deleted row, and its value there. The other values of a deleted row are what
            an attempt knew of the row, and a repeated attempt may know less.
        places: columns outside the identity that decide where the table keeps a row.
    """
    names = rows.column_names
    found = lookup.fetch(rows.select(list(identity))).rows
    mark, gone = deleted or ("", None)
    placed = sorted({mark, *identity, *places} & set(names))

    def comparable(row: dict[str, Any]) -> str:
        compared = placed if gone is not None and row.get(mark) == gone else names
        return repr([row[name] for name in compared])

    stored = {comparable(row) for row in _untimed(found.select(names).cast(rows.schema)).to_pylist()}
    return rows.filter(pa.array([comparable(row) not in stored for row in _untimed(rows).to_pylist()], pa.bool_()))


def _untimed(rows: pa.Table) -> pa.Table:
    return pa.table({name: untimed(rows.column(name)) for name in rows.column_names})
