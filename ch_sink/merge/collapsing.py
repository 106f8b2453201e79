"""CollapsingMergeTree and VersionedCollapsingMergeTree: write the difference between stored and wanted rows.

For each key that the chunk touches, the rows whose signs sum to more than zero are looked up; each of them that is
not the wanted one gets its −1 (a copy to the byte, version included), and the wanted one its +1 if it is not stored.
A retry finds an empty difference, or the rest of it. Inside one insert all −1 rows come before all +1 rows: the
other order cancels itself inside the block. A row that leaves its place is written at its new one first, so that a
kill between the two inserts loses no value. One that may stay where it is has its −1 in the same insert: two parts, of
which the first has the +1 and the second the −1, cancel each other if they are merged before the part of the row that
is to go.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.merge.resolved import OUTRANKED, Merged, Resolved, Scope, System, factorize, flat, rows_of, with_system
from ch_sink.model.change import ChangeBatch, Op
from ch_sink.order import Sequenced
from ch_sink.order.version import to_ints

Index = npt.NDArray[np.int64]


def merge_collapsing(batch: ChangeBatch, out: Resolved, order: Sequenced, scope: Scope, system: System) -> Merged:
    """Rows of a chunk for a collapsing table: step ``rows`` and, where rows leave their place, step ``leave``."""
    last = _last_events(batch, out)
    touched = np.flatnonzero(last >= 0)
    plus, keep = _wanted(batch, out, order, scope, last, touched)
    minus = _minus(out, last, keep)
    merged = Merged([])
    added = with_system(rows_of(out, batch, plus), system, order.version[plus], np.zeros(len(plus), dtype=np.bool_))
    merged.upserts = len(plus)
    if not len(minus):
        merged.steps.append(("rows", added))
        return merged
    assert out.stored is not None
    assert out.stored_codes is not None
    removed = _negated(out.stored.rows.take(pa.array(minus)), system)
    added = _with_rest(added, removed.schema, system)
    removed = removed.select(added.column_names)
    leaving = _leaving(out, batch, scope, minus, plus)
    merged.moves = int(leaving.sum())
    renewed = np.isin(out.stored_codes[minus], out.codes[plus])
    merged.deletes = len(set(out.stored_codes[minus[~renewed]].tolist()))
    here = removed.filter(pa.array(~leaving)).cast(added.schema)
    merged.steps.append(("rows", pa.concat_tables([here, added])))
    if leaving.any():
        merged.steps.append(("leave", removed.filter(pa.array(leaving)).cast(added.schema)))
    return merged


def _last_events(batch: ChangeBatch, out: Resolved) -> Index:
    """The last event of each key that is applied or was before, -1 for keys without one."""
    last = np.full(out.keys, -1, dtype=np.int64)
    events = np.flatnonzero(out.apply | out.superseded)
    last[out.codes[events]] = events
    return last


def _wanted(
    batch: ChangeBatch, out: Resolved, order: Sequenced, scope: Scope, last: Index, touched: Index
) -> tuple[Index, npt.NDArray[np.bool_]]:
    """Events whose rows are added, and which stored rows stay."""
    stored = 0 if out.stored_codes is None else len(out.stored_codes)
    keep = np.zeros(stored, dtype=np.bool_)
    newest: dict[int, tuple[int, int]] = {}
    if stored and out.stored_versions and out.stored_codes is not None:
        for row, key in enumerate(out.stored_codes.tolist()):
            version = out.stored_versions[row]
            if key not in newest or version > newest[key][0]:
                newest[key] = (version, row)
    plus: list[int] = []
    events = last[touched]
    versions = to_ints(order.version[events])
    gone = (batch.op[events] == Op.DELETE).tolist()
    for key, event, version, delete in zip(touched.tolist(), events.tolist(), versions, gone, strict=True):
        # Where versions may tie, the later event wins; one that was applied is applied again, which changes nothing.
        if key in newest and (newest[key][0] >= version if scope.unique_versions else newest[key][0] > version):
            # Applied already, or superseded: the newest stored row is the wanted one.
            keep[newest[key][1]] = True
            out.counts["superseded"] += 1
            if order.trace is not None:
                outranked = newest[key][0]
                order.trace.note(int(batch.offset[event]), "superseded", OUTRANKED, version=outranked)
            continue
        if not delete:
            plus.append(event)
    return np.array(plus, dtype=np.int64), keep


def _minus(out: Resolved, last: Index, keep: npt.NDArray[np.bool_]) -> Index:
    """Stored rows of the touched keys that have to go."""
    if out.stored_codes is None or not len(out.stored_codes):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(~keep & (last[out.stored_codes] >= 0))


def _with_rest(added: pa.Table, schema: pa.Schema, system: System) -> pa.Table:
    """The rows with all columns of the table. Those that the stream does not fill have their defaults."""
    defaults = dict(system.defaults)
    for field in schema:
        if field.name not in added.column_names:
            value, count = defaults.get(field.name), added.num_rows
            values = pa.nulls(count, field.type) if value is None else pa.repeat(value.cast(field.type), count)
            added = added.append_column(field, values)
    return added


def _negated(rows: pa.Table, system: System) -> pa.Table:
    assert system.sign is not None
    at = rows.column_names.index(system.sign)
    sign = pa.array(np.full(rows.num_rows, -1, dtype=np.int8))
    return rows.set_column(at, system.sign, sign)


def _leaving(out: Resolved, batch: ChangeBatch, scope: Scope, minus: Index, plus: Index) -> npt.NDArray[np.bool_]:
    """A mask of the rows to remove that have a successor at another place (their −1 is inserted after its +1).

    Only where that is certain: a column may change and the expression over it in the sorting key or partition not.
    """
    leaving = np.zeros(len(minus), dtype=np.bool_)
    if not scope.places or not len(plus):
        return leaving
    assert out.stored is not None
    assert out.stored_codes is not None
    successor = np.full(out.keys, -1, dtype=np.int64)
    successor[out.codes[plus]] = np.arange(len(plus))
    at = successor[out.stored_codes[minus]]
    have = np.flatnonzero(at >= 0)
    if not len(have):
        return leaving
    new = rows_of(out, batch, plus[at[have]])
    old = out.stored.rows.take(pa.array(minus[have])).select(new.column_names).cast(new.schema)
    both = pa.concat_tables([old, new])
    moved = _differ(both, scope.places)
    certain = _changed(both, (*scope.sorting, *scope.sharding))
    leaving[have] = moved & certain
    # Of the others alone: what the client cannot place of them is in the insert that the server then divides.
    rest = np.flatnonzero(moved & ~certain)
    if len(rest):
        leaving[have[rest]] = _elsewhere(both.take(pa.array(np.r_[rest, rest + len(have)])), scope)
    return leaving


def _differ(both: pa.Table, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """A mask of the rows of the first half that differ in these columns from those of the second, in the same order."""
    rows = both.num_rows // 2
    codes = factorize(both.select(list(names))).codes
    differ: npt.NDArray[np.bool_] = codes[:rows] != codes[rows:]
    return differ


def _changed(both: pa.Table, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """The same for columns that are stored otherwise for certain.

    A null may be stored as the default that the other row has.
    """
    rows = both.num_rows // 2
    found = np.zeros(rows, dtype=np.bool_)
    for name in names:
        null = np.asarray(flat(both.column(name)).is_null())
        found |= _differ(both, [name]) & (null[:rows] == null[rows:])
    return found


def _elsewhere(both: pa.Table, scope: Scope) -> npt.NDArray[np.bool_]:
    """The same for table partitions. Where only the server knows, it divides the insert that has both rows."""
    rows = both.num_rows // 2
    own = np.zeros(2 * rows, dtype=np.int64)
    for number, (_, members) in enumerate(scope.partitions(both) or ()):
        own[members] = number
    differ: npt.NDArray[np.bool_] = own[:rows] != own[rows:]
    return differ
