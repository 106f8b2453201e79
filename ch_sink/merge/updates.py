"""Values that an event makes from an earlier one: updates of parts of a document."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.decode.isolate import of_record
from ch_sink.errors import DecodeError
from ch_sink.merge.key_codes import flat
from ch_sink.merge.resolved import UNSET, Resolved
from ch_sink.model.change import BadRecord, ChangeBatch


def apply_updates(batch: ChangeBatch, out: Resolved) -> None:
    """Make the values of the events whose base the walk has found, in Kafka order, and put them into the pool.

    An event whose value cannot be made is bad. It changes nothing: what follows starts from the row before
    it, as it would in a later chunk.
    """
    if not any(out.bases.values()):
        return
    made = {column: _Made(column, batch, out) for column in batch.updates}
    # A column that is made from another one needs that one's new value first.
    columns = sorted(made, key=lambda column: batch.updates[column].base != column)
    for i in sorted({i for bases in out.bases.values() for i in bases}):
        for column in columns:
            if i not in out.bases[column]:
                continue
            try:
                made[column].put(i, _value(batch, out, made, column, i))
            except Exception as error:
                if not of_record(error):
                    raise
                why = error.message if isinstance(error, DecodeError) else type(error).__name__
                out.apply[i] = False
                reason = f"column {column!r}: the update cannot be applied to the stored value: {why}"
                out.bad.append(BadRecord(int(batch.source_index[i]), reason, "unresolved", column))
                _pass_over(i, out)
                break
    for values in made.values():
        values.replace()


def _value(batch: ChangeBatch, out: Resolved, made: Mapping[str, "_Made"], column: str, i: int) -> pa.Array:
    """The new value of a column in an event. Raises DecodeError."""
    update = batch.updates[column]
    own = out.bases[column][i]
    if update.base == column:
        return update.changes[i](made[column].value(own))
    base = made[update.base].value(i)
    if not base and i in update.otherwise:
        return update.otherwise[i](made[column].value(own))
    return update.changes[i](base)


def _pass_over(i: int, out: Resolved) -> None:
    """Let everything after an event that is not applied start from the row that its key had before it."""
    before = int(out.previous[i])
    later = np.flatnonzero(out.codes == out.codes[i])
    later = later[later > i]
    for refs in (out.image, out.previous):
        refs[later[refs[later] == i]] = before
    for column, refs in out.origin.items():
        there = int(refs[before]) if 0 <= before < len(refs) and refs[before] != UNSET else before
        refs[later[refs[later] == i]] = there
        bases = out.bases.get(column, {})
        bases.update({e: there for e in later.tolist() if bases.get(e) == i})


class _Made:
    """One column's new values."""

    def __init__(self, column: str, batch: ChangeBatch, out: Resolved) -> None:
        self._column, self._batch, self._out = column, batch, out
        self._before: pa.Array = out.pool.column(column)
        self._at: dict[int, int] = {}
        self._made: list[pa.Array] = []

    def put(self, event: int, value: pa.Array) -> None:
        self._at[event] = len(self._made)
        self._made.append(value)

    def value(self, row: int) -> Any:
        """The current value of a row of the pool."""
        if row in self._at:
            return self._made[self._at[row]][0].as_py()
        return self._before[row].as_py()

    def replace(self) -> None:
        """Put the new values into the pool's first segment."""
        if not self._made:
            return
        own = flat(self._batch.after.column(self._column))
        where = np.arange(len(own))
        where[list(self._at)] = len(own) + np.fromiter(self._at.values(), dtype=np.int64)
        values = pa.concat_arrays([own, *(part.cast(own.type) for part in self._made)])
        self._out.pool.replace(self._column, values.take(pa.array(where)))
