"""Handed-over values and waiting records of one stream in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.model.change import HandoverId
from ch_sink.ports import Fence, HandedOver, PendingRecord


@dataclass(slots=True)
class MemoryHandover:
    """Values of rows that change their key; the first entry of an id stays.

    ``types``: the target's source columns; by default those of the rows that were put.
    """

    types: dict[str, pa.DataType] = field(default_factory=dict)
    stored: dict[HandoverId, pa.Table | None] = field(default_factory=dict)

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        found: dict[HandoverId, int] = {}
        rows: list[pa.Table] = []
        for identity in ids:
            if identity not in self.stored or identity in found:
                continue
            row = self.stored[identity]
            found[identity] = -1 if row is None else len(rows)
            if row is not None:
                rows.append(self._as_now(row))
        empty = pa.table({name: pa.array([], type=kind) for name, kind in self.types.items()})
        return HandedOver(found, pa.concat_tables(rows) if rows else empty)

    def put(self, ids: Sequence[HandoverId], rows: pa.Table, known: npt.NDArray[np.bool_], token: str) -> None:
        for i, identity in enumerate(ids):
            if identity not in self.stored:
                self.stored[identity] = rows.slice(i, 1) if known[i] else None

    def _as_now(self, row: pa.Table) -> pa.Table:
        """The row with the target's current columns; those added since are null."""
        if not self.types:
            return row
        for name, kind in self.types.items():
            if name not in row.column_names:
                row = row.append_column(name, pa.nulls(row.num_rows, kind))
        return row.select(list(self.types))


@dataclass(slots=True)
class MemoryPending:
    """Records that wait for a hand-over; a record that is stored again waits again. ``len`` counts those that wait."""

    stored: dict[tuple[str, int], dict[int, PendingRecord]] = field(default_factory=dict)
    resolved: dict[tuple[str, int], set[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(r.swap is None for records in self.stored.values() for r in records.values())

    def put(
        self,
        topic_id: str,
        partition: int,
        records: Sequence[PendingRecord],
        token: str,
        *,
        fence: Fence | None = None,
    ) -> None:
        if fence is not None:
            fence.check()
        self.stored.setdefault((topic_id, partition), {}).update({r.offset: r for r in records})
        applied = self.resolved.setdefault((topic_id, partition), set())
        applied.difference_update(r.offset for r in records)
        applied.update(r.offset for r in records if r.swap is not None)

    def open(self, topic_id: str, partition: int) -> list[PendingRecord]:
        waiting = self.stored.get((topic_id, partition), {})
        return [waiting[offset] for offset in sorted(waiting)]

    def places(self) -> dict[tuple[str, int], int]:
        found = {place: records.values() for place, records in sorted(self.stored.items()) if records}
        return {place: sum(r.swap is None for r in records) for place, records in found.items()}

    def resolve(self, topic_id: str, partition: int, offsets: Sequence[int]) -> None:
        for offset in offsets:
            if self.stored.get((topic_id, partition), {}).pop(offset, None) is not None:
                self.resolved.setdefault((topic_id, partition), set()).add(offset)

    def released(self, topic_id: str, partition: int, first: int, end: int) -> list[int]:
        return sorted(o for o in self.resolved.get((topic_id, partition), set()) if first <= o < end)
