"""ReplacingMergeTree: the newest version of a key wins; a delete is a newer row that says so.

A row that changes place (partition, or a sorting column outside the key) leaves its old place by a delete row with
half 0, which keeps the row's known values. Those rows are inserted first: were the new place filled first and the
task killed, a retry would find the new row, take the move as done, and leave the old one for ever. For the same reason
a row that moves more than once in a chunk leaves its stored place first, and then the ones between.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.errors import StreamFailed
from ch_sink.merge.resolved import Merged, Resolved, Scope, System, factorize, rows_at, rows_of, with_system
from ch_sink.model.change import ChangeBatch, Op
from ch_sink.model.policy import ChangePolicy
from ch_sink.order import Sequenced

Events = npt.NDArray[np.int64]


def merge_replacing(
    batch: ChangeBatch, out: Resolved, order: Sequenced, scope: Scope, system: System, policy: ChangePolicy
) -> Merged:
    """Rows of a chunk for a replacing table.

    Raises:
        StreamFailed: a delete, where the table can hold none and the policy is to fail.
    """
    delete = batch.op == Op.DELETE
    marks = system.sign is not None or system.is_deleted is not None
    apply = out.apply.copy()
    if not marks:
        apply &= ~_ignored(batch, out, order, policy)
    if scope.places:
        lost = apply & delete & (out.image < 0)
        out.counts["nothing_to_delete"] += int(lost.sum())
        apply &= ~lost
    events = np.flatnonzero(apply)
    deleted = delete[events]
    merged = Merged([], upserts=int((~deleted).sum()), deletes=int(deleted.sum()))
    leaving = moved(out, batch, events[~deleted], scope) if scope.places else np.zeros(0, dtype=np.int64)
    if len(leaving):
        if not marks:
            raise StreamFailed(
                "a row changed its place in the table, and the table can mark no row as deleted",
                hint="Use ReplacingMergeTree(version, is_deleted).",
            )
        merged.moves = len(leaving)
        stays = np.ones(len(events), dtype=np.bool_)
        if not scope.unique_versions:
            stays = deleted | ~_left(out, events, leaving)
            leaving = leaving[~_ends_there(out, batch, events, leaving, scope)]
        _, firsts = np.unique(out.codes[leaving], return_index=True)
        for step, left in (("leave", leaving[np.sort(firsts)]), ("leave again", np.delete(leaving, firsts))):
            if len(left):
                old = rows_at(out, batch, out.previous[left])
                mark = np.ones(len(left), dtype=np.bool_)
                merged.steps.append((step, with_system(old, system, order.leaving[left], mark)))
        events = events[stays]
    rows = rows_of(out, batch, events)
    merged.steps.append(("rows", with_system(rows, system, order.version[events], delete[events])))
    return merged


def _ignored(batch: ChangeBatch, out: Resolved, order: Sequenced, policy: ChangePolicy) -> npt.NDArray[np.bool_]:
    """The deletes, which the table cannot mark. Raises StreamFailed if the policy is to fail."""
    gone: npt.NDArray[np.bool_] = out.apply & (batch.op == Op.DELETE)
    offsets = batch.offset[gone].tolist()
    if offsets and policy.deletes == "fail":
        raise StreamFailed(
            f"the delete event at offset {offsets[0]} cannot be stored: the table has neither an is_deleted column "
            "nor a sign column",
            hint="`ch_sink check CONFIG` prints what the table needs; or set deletes: ignore.",
        )
    if offsets:
        out.counts["deletes_ignored"] += len(offsets)
    if order.trace is not None:
        for offset in offsets:
            order.trace.note(offset, "ignored", "deletes: ignore, and the table cannot mark deleted rows")
    return gone


def _left(out: Resolved, events: Events, leaving: Events) -> npt.NDArray[np.bool_]:
    """A mask of the events that a later one of their key leaves behind.

    Where versions may tie, their rows must not be inserted after the delete rows at the places that they leave.
    """
    last = np.full(out.keys, -1, dtype=np.int64)
    last[out.codes[leaving]] = leaving
    behind: npt.NDArray[np.bool_] = events < last[out.codes[events]]
    return behind


def _ends_there(
    out: Resolved, batch: ChangeBatch, events: Events, leaving: Events, scope: Scope
) -> npt.NDArray[np.bool_]:
    """A mask of the events that leave the place where the last one of their key has its row.

    That row replaces what is there. In a repeated attempt it may be stored, and a delete row of its time would hide it.
    """
    last = np.full(out.keys, -1, dtype=np.int64)
    last[out.codes[events]] = events
    final = last[out.codes[leaving]]
    places = list(scope.places)
    old = rows_at(out, batch, out.previous[leaving]).select(places)
    codes = factorize(pa.concat_tables([old, rows_of(out, batch, final).select(places)])).codes
    ends: npt.NDArray[np.bool_] = codes[: len(leaving)] == codes[len(leaving) :]
    ends &= batch.op[final] != Op.DELETE
    return ends


def moved(out: Resolved, batch: ChangeBatch, events: Events, scope: Scope) -> Events:
    """Those of the events whose row had another place before."""
    known = events[out.previous[events] >= 0]
    if not len(known):
        return known
    places = list(scope.places)
    new = rows_of(out, batch, known).select(places)
    old = rows_at(out, batch, out.previous[known]).select(places)
    n = len(known)
    codes = factorize(pa.concat_tables([new, old])).codes
    elsewhere: Events = known[codes[:n] != codes[n:]]
    return elsewhere
