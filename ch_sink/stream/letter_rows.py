"""What a table holds of the change that a dead letter states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.model.change import ChangeBatch, Op
from ch_sink.order.version import POSITION_SHIFT, to_ints, to_words
from ch_sink.pipeline.target import Target
from ch_sink.ports import RowLookup
from ch_sink.types.column import Column

__all__ = ["LetterRows"]


@dataclass(frozen=True, slots=True)
class LetterRows:
    """The rows of one batch of letters."""

    batch: ChangeBatch
    target: Target
    lookup: RowLookup

    def shows(self, event: int) -> bool:
        """Whether the row of the change's key is what the change makes of it."""
        batch = self.batch
        if batch.key is None or batch.op[event] == Op.TRUNCATE:
            return False
        stored = self._living(self.lookup.fetch(batch.key.slice(event, 1)).rows)
        if batch.op[event] == Op.DELETE:
            return not stored.num_rows
        left_out = {name for out in (batch.unavailable, batch.absent) for name, mask in out.items() if mask[event]}
        stated = [name for name in batch.after.column_names if name not in left_out]
        return stored.num_rows == 1 and _same(stored, batch.after.slice(event, 1).select(stated))

    def is_below(self, event: int, version: int) -> bool:
        """Whether a table that keeps every change has a newer one of the key, which goes on winning."""
        key = self.batch.key
        if key is None or not self.target.appends or self.target.layout.kind == "time":
            return False
        return any(v > version for v in self.versions(self.lookup.fetch(key.slice(event, 1)).rows))

    def of_later_delivery(self, event: int, key: pa.Table, version: int) -> bool:
        """Whether a table that keeps every change has this one from a later delivery: the same row, at its position."""
        name = self.target.system.version
        if name is None or self.target.layout.kind != "wide":
            return False
        above = self.target.layout.to_arrow(to_words([self._next_position(version)]))
        stored = self.lookup.fetch(key, above).rows
        if not any(v > version for v in self.versions(stored)):
            return False
        deletes = bool(self.batch.op[event] == Op.DELETE)
        if deletes != ("_sign" in stored.column_names and stored.column("_sign")[0].as_py() < 0):
            return False
        return deletes or _same(stored, self.batch.after.slice(event, 1))

    def counted(self, versions: Mapping[int, int]) -> set[int]:
        """The events that a table without a key has counted: the same row and sign under the version of the event.

        Or under that of a later delivery, at its position. Rows of a snapshot share one position, and equal ones are
        several rows.

        ``versions``: event → its version.
        """
        layout, kinds = self.target.layout, {c.name: c for c in self.target.table.columns}
        sign = self.target.table.engine.sign_column or "_sign"
        names = [f.name for f in self.batch.after.schema if _compares(f.type, kinds.get(f.name))]
        if not self.target.appends or layout.kind == "time" or not names or sign not in kinds:
            return set()
        found = set[int]()
        rows = {event: row for event in versions if (row := self._counted_row(event, sign)) is not None}
        while rows:
            asked: dict[tuple[Any, ...], int] = {}  # equal rows one after the other
            for event, row in rows.items():
                asked.setdefault(_values(row, [*names, sign]), event)
            keys = pa.concat_tables([rows[event].select([*names, sign]) for event in asked.values()])
            above = [
                versions[event] + 1
                if layout.kind != "wide" or self.batch.op[event] == Op.READ
                else self._next_position(versions[event])
                for event in asked.values()
            ]
            stored = self.lookup.fetch(keys, layout.to_arrow(to_words(above))).rows
            for at, held in enumerate(self.versions(stored)):
                one = stored.slice(at, 1)
                event = asked.get(_values(one.select(keys.column_names).cast(keys.schema), keys.column_names), -1)
                if event >= 0 and (held == versions[event] or (held > versions[event] and _same(one, rows[event]))):
                    found.add(event)
            rows = {event: row for event, row in rows.items() if event not in asked.values()}
        return found

    def _counted_row(self, event: int, sign: str) -> pa.Table | None:
        """The row that the event adds, or removes if it is a delete, with its sign."""
        op, image = self.batch.op[event], self.batch.after
        if op == Op.DELETE:
            if self.batch.before is None or not self.batch.has_before[event]:
                return None
            image = self.batch.before
        if op == Op.TRUNCATE:
            return None
        return image.slice(event, 1).append_column(sign, pa.array([-1 if op == Op.DELETE else 1], pa.int8()))

    def _next_position(self, version: int) -> int:
        """The lowest version of the position that follows the one of a version."""
        lift = self.target.policy.versions.floor
        return (((version - lift) >> POSITION_SHIFT) + 1 << POSITION_SHIFT) + lift

    def versions(self, stored: pa.Table) -> list[int]:
        """Those of rows of the table."""
        name = self.target.system.version
        return to_ints(self.target.layout.from_arrow(stored.column(name))) if name is not None else []

    def _living(self, stored: pa.Table) -> pa.Table:
        engine = self.target.table.engine
        alive = np.ones(stored.num_rows, dtype=np.bool_)
        if engine.is_deleted_column in stored.column_names:
            alive &= stored.column(engine.is_deleted_column).to_numpy() == 0
        sign = engine.sign_column or "_sign"
        if sign in stored.column_names:
            alive &= stored.column(sign).to_numpy() > 0
        return stored.filter(pa.array(alive))


def _same(stored: pa.Table, row: pa.Table) -> bool:
    kept = row.select([name for name in row.column_names if name in stored.column_names])
    return bool(stored.select(kept.column_names).cast(kept.schema).equals(kept))


def _values(row: pa.Table, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row.column(name)[0].as_py() for name in names)


def _compares(kind: pa.DataType, column: Column | None) -> bool:
    """Whether values of a column can be looked up: plain ones. Times of day are sent in a form of their own."""
    plain = (
        pa.types.is_integer, pa.types.is_boolean, pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal,
        pa.types.is_string, pa.types.is_large_string, pa.types.is_binary,
    )  # fmt: skip
    if column is None or column.default_kind == "EPHEMERAL":
        return False
    if column.type.removeprefix("Nullable(").startswith(("Time", "JSON", "Object")):
        return False
    return any(is_kind(kind) for is_kind in plain)
