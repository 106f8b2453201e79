"""MergeTree: the history of changes, every change a row.

Tables without a key are kept as a multiset: an update is a −1 of the row before and a +1 of the row after, and the
view repeats each row as often as its signs sum to.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.errors import StreamFailed
from ch_sink.merge.resolved import Merged, Pool, Resolved, rows_at, rows_of
from ch_sink.model.change import ChangeBatch, Op, Records
from ch_sink.order import COUNT_AGAIN, Layout, Sequenced, Words
from ch_sink.order.version import to_int, to_words
from ch_sink.table.model import SOURCE_TIME, TargetTable

_LAST = 10_413_791_999_999
"""Milliseconds from 1970 to the end of 2299, the last time of a DateTime64(3)."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a chunk, and what is stored of each besides its row."""

    batch: ChangeBatch
    order: Sequenced
    times: npt.NDArray[np.int64]
    """The time at which each was made, in milliseconds since 1970."""
    table: TargetTable
    layout: Layout | None

    @classmethod
    def of(
        cls, batch: ChangeBatch, records: Records, order: Sequenced, table: TargetTable, layout: Layout | None
    ) -> "Changes":
        """The time is the source's, or that of the record in Kafka where the event states none."""
        sent = records.timestamps[batch.source_index]
        times = np.clip(np.where(batch.source_ts > 0, batch.source_ts, sent), 0, _LAST)
        return cls(batch, order, times, table, layout)

    def marked(
        self, rows: pa.Table, events: npt.NDArray[np.int64], sign: npt.NDArray[np.int64], versions: Words
    ) -> pa.Table:
        """The rows of these events with those of the sink's own columns that the table has."""
        table = self.table
        if table.column("_op") is not None:
            letters = pa.array([chr(o) for o in range(256)])
            rows = rows.append_column("_op", letters.take(pa.array(self.batch.op[events].astype(np.int64))))
        if table.column("_sign") is not None:
            rows = rows.append_column("_sign", pa.array(sign.astype(np.int8)))
        if table.column("_version") is not None and self.layout is not None:
            rows = rows.append_column("_version", self.layout.to_arrow(versions))
        if table.column(SOURCE_TIME) is not None:
            times = pa.array(self.times[events]).cast(pa.timestamp("ms", tz="UTC"))
            rows = rows.append_column(SOURCE_TIME, times)
        return rows


def merge_append(changes: Changes, out: Resolved) -> Merged:
    """One row per change of a table with a key; a delete has sign −1 and the last known values.

    The delete of a key's former owner has the version just below the row that took the key, which is the newest.
    """
    batch, order = changes.batch, changes.order
    events = np.flatnonzero(out.apply)
    rows = rows_of(out, batch, events)
    sign = np.where(batch.op[events] == Op.DELETE, -1, 1)
    rows = changes.marked(rows, events, sign, order.version[events])
    gone = int((sign < 0).sum())
    merged = Merged([("rows", rows)], upserts=len(events) - gone, deletes=gone)
    swapped = [entry for entry in out.swapped if entry.below]
    if swapped:
        assert batch.key is not None
        index = np.array([entry.event for entry in swapped], dtype=np.int64)
        left = rows_at(out, batch, np.array([entry.row for entry in swapped], dtype=np.int64))
        for name in batch.key.column_names:
            at = left.schema.get_field_index(name)
            key = batch.key.column(name).take(pa.array(index)).cast(left.schema.field(at).type)
            left = left.set_column(at, left.schema.field(at), key)
        minus = np.full(len(index), -1, dtype=np.int64)
        left = changes.marked(left, index, minus, to_words([entry.below for entry in swapped]))
        merged.steps = [("rows", pa.concat_tables([rows, left]))]
        merged.deletes += len(index)
    return merged


def count_once(
    batch: ChangeBatch, order: Sequenced, counted: Mapping[str, tuple[int, bool]]
) -> dict[str, tuple[int, bool]]:
    """Of each source name the position of the snapshot that is counted, −1 for none, and whether changes have followed.

    ``counted``: the same before the batch. The rows of one snapshot share its position.

    Raises:
        StreamFailed: a row is of another snapshot. It may be counted already, and has no key that would tell.
    """
    after = dict(counted)
    for i in np.flatnonzero(order.keep).tolist():
        name = batch.source_name[int(batch.source_code[i])]
        position, (known, followed) = to_int(batch.commit, i), after.get(name, (-1, False))
        if batch.op[i] != Op.READ:
            after[name] = known, True
            continue
        if followed or known not in (-1, position):
            raise StreamFailed(
                f"the event at offset {int(batch.offset[i])} is a row of another snapshot of source {name!r}: without "
                "a key, nothing tells whether the table has the row already",
                hint=COUNT_AGAIN,
            )
        after[name] = position, False
    return after


def merge_multiset(changes: Changes) -> Merged:
    """Rows of a table without a key: −1 of what was, +1 of what is, in event order."""
    batch, order = changes.batch, changes.order
    pool = Pool(batch.after)
    start = pool.add(batch.before) if batch.before is not None else 0
    events: list[int] = []
    refs: list[int] = []
    signs: list[int] = []
    for i in np.flatnonzero(order.keep).tolist():
        op = batch.op[i]
        if op in (Op.UPDATE, Op.DELETE) and batch.before is not None and batch.has_before[i]:
            events.append(i)
            refs.append(start + i)
            signs.append(-1)
        if op in (Op.CREATE, Op.READ, Op.UPDATE):
            events.append(i)
            refs.append(i)
            signs.append(1)
    index = np.array(events, dtype=np.int64)
    at = np.array(refs, dtype=np.int64)
    columns = [pool.take(name, at) for name in batch.after.column_names]
    rows = pa.table(columns, schema=batch.after.schema)
    sign = np.array(signs, dtype=np.int64)
    rows = changes.marked(rows, index, sign, order.version[index])
    gone = int((sign < 0).sum())
    if order.trace is not None:
        for i in dict.fromkeys(events):
            counted = "one such row less" if batch.op[i] == Op.DELETE else "one such row more"
            order.trace.note(int(batch.offset[i]), "counted", counted)
    return Merged([("rows", rows)], upserts=len(sign) - gone, deletes=gone)
