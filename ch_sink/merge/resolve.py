"""The meaning of each event once the rows that it leaves out are known.

Most events say everything themselves and pass through untouched. The others (unavailable values, key changes whose
values must be handed over, rows whose old place is not in the event, swapped keys) depend on other rows of their keys.
They are walked one by one, in Kafka order, with the state of their keys: from the chunk, else from one lookup of the
stored rows.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.merge.dependent import Chunk, LeftOpen, dependent_events, keys_to_look_up
from ch_sink.merge.resolved import UNSET, Bools, KeyCodes, Pool, Resolved, Scope, factorize
from ch_sink.merge.walk import walk
from ch_sink.model.change import ChangeBatch, Half, HandoverId, Op, Records
from ch_sink.model.policy import ChangePolicy
from ch_sink.order import Sequenced
from ch_sink.order.version import to_ints
from ch_sink.ports import Handover, RowLookup


def resolve(
    batch: ChangeBatch,
    records: Records,
    order: Sequenced,
    scope: Scope,
    policy: ChangePolicy,
    *,
    lookup: RowLookup | None,
    handover: Handover | None,
    left: LeftOpen = LeftOpen(),  # noqa: B008 (immutable)
) -> Resolved:
    """Resolve a batch with keys. ``left``: what earlier chunks left open."""
    n = len(batch)
    assert batch.key is not None
    coded = factorize(batch.key)
    pool = Pool(batch.after)
    delete = batch.op == Op.DELETE
    own = np.arange(n, dtype=np.int64)
    out = Resolved(
        codes=coded.codes,
        keys=coded.count,
        apply=order.keep.copy(),
        image=np.where(delete, -1, own),
        previous=np.full(n, -1, dtype=np.int64),
        origin={c: np.full(n, UNSET, dtype=np.int64) for c in batch.unavailable},
        pool=pool,
        bases={c: {} for c in batch.updates},
        superseded=np.zeros(n, dtype=np.bool_),
    )
    chunk = Chunk(batch, records, order, coded, left)
    if scope.lookup_all:
        _fetch(batch, order, coded, np.unique(coded.codes[order.keep]), lookup, scope, out)
        dependent = dependent_events(chunk, scope, _placed(chunk, out) if scope.places else None)
    else:
        dependent = dependent_events(chunk, scope)
        _fetch(batch, order, coded, keys_to_look_up(dependent, scope), lookup, scope, out)
    walk(dependent, out, scope, policy, handover)
    if order.trace is not None:
        order.trace.applied(batch.offset[out.apply].tolist())
    return out


def _fetch(
    batch: ChangeBatch,
    order: Sequenced,
    coded: KeyCodes,
    wanted: npt.NDArray[np.int64],
    lookup: RowLookup | None,
    scope: Scope,
    out: Resolved,
) -> None:
    if lookup is None or not len(wanted):
        return
    assert batch.key is not None
    places = coded.first()[wanted]
    asked = batch.key.take(pa.array(places))
    below = None
    if scope.history and scope.layout is not None:
        kept = np.flatnonzero(order.keep)
        first = np.full(coded.count, -1, dtype=np.int64)
        first[coded.codes[kept[::-1]]] = kept[::-1]
        below = scope.layout.to_arrow(order.leaving[first[wanted]])
    stored = lookup.fetch(asked, below)
    out.counts["looked_up"] += len(wanted)
    out.stored = stored
    if not len(stored):
        out.stored_codes = np.zeros(0, dtype=np.int64)
        return
    names = batch.key.column_names
    both = pa.concat_tables([asked, stored.rows.select(names).cast(asked.schema)])
    joint = factorize(both)
    back = np.full(joint.count, -1, dtype=np.int64)
    back[joint.codes[: len(wanted)]] = wanted
    out.stored_codes = back[joint.codes[len(wanted) :]]
    out.stored_start = out.pool.add(stored.rows.select(batch.after.column_names))
    if scope.version_column and scope.layout is not None:
        words = scope.layout.from_arrow(stored.rows.column(scope.version_column))
        out.stored_words, out.stored_versions = words, to_ints(words)


def _placed(chunk: Chunk, out: Resolved) -> Bools:
    """Events of which only a walk finds the place that they leave.

    The only event of a key leaves none if the key has no row. With one older row it leaves that row's, noted here.
    """
    batch, keep, codes, count = chunk.batch, chunk.order.keep, chunk.coded.codes, chunk.coded.count
    stored_codes = np.zeros(0, dtype=np.int64) if out.stored_codes is None else out.stored_codes
    events, rows = np.bincount(codes[keep], minlength=count), np.bincount(stored_codes, minlength=count)
    placed: Bools = ((events > 1) | (rows > 0))[codes] | (batch.op == Op.DELETE)
    if out.stored_words is None:
        return placed
    row = np.full(count, -1, dtype=np.int64)
    row[stored_codes] = np.arange(len(stored_codes))
    mine = np.flatnonzero(keep & (batch.half == Half.NONE) & ((events == 1) & (rows == 1))[codes])
    stored, version = out.stored_words[row[codes[mine]]], chunk.order.version[mine]
    higher, equal = version[:, 0] > stored[:, 0], version[:, 0] == stored[:, 0]
    mine = mine[higher | (equal & (version[:, 1] > stored[:, 1]))]
    placed[mine] = False
    out.previous[mine] = out.stored_start + row[codes[mine]]
    gone = mine[batch.op[mine] == Op.DELETE]
    out.image[gone] = out.previous[gone]
    for refs in out.origin.values():
        refs[gone] = out.previous[gone]
    return placed


def handed_rows(out: Resolved, batch: ChangeBatch) -> tuple[Sequence[HandoverId], pa.Table, Bools]:
    """The hand-over entries: identities, rows of the source columns, and which of them are known."""
    ids = [key for key, _ in out.handover]
    refs = np.array([ref for _, ref in out.handover], dtype=np.int64)
    columns = []
    for name in batch.after.column_names:
        mine = np.array(out.handover_origin[name], dtype=np.int64) if name in out.handover_origin else refs
        columns.append(out.pool.take(name, mine))
    return ids, pa.table(columns, schema=batch.after.schema), refs >= 0
