"""The ports in memory: for tests and benchmarks that need no server.

They keep the promises of the protocols, including those about repeats. Nothing survives the process.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.model.change import HandoverId
from ch_sink.ports import (
    DeadLetter,
    Fence,
    HandedOver,
    PendingRecord,
    RegisteredSchema,
    StoredLetter,
)

__all__ = ["MemoryDeadLetters", "MemoryHandover", "MemoryPending", "MemoryRegistry"]


@dataclass(slots=True)
class MemoryDeadLetters:
    """Dead letters of one stream and topic; the newest entry of an offset counts."""

    clock: Callable[[], float] = time.time
    stored: dict[tuple[int, int], StoredLetter] = field(default_factory=dict)

    def put(self, letters: Sequence[DeadLetter], token: str) -> None:
        for letter in letters:
            self.stored[letter.partition, letter.offset] = StoredLetter(letter, self.clock())

    def list(self, limit: int = 100, *, retried: bool = False) -> list[StoredLetter]:
        """Dead letters by partition and offset; those applied since only on request."""
        found = [self.stored[place] for place in sorted(self.stored)]
        return [s for s in found if retried or s.retried is None][:limit]

    def failed(self, partition: int, first: int, end: int) -> Sequence[int]:
        """See DeadLetters."""
        return sorted(o for (p, o), s in self.stored.items() if p == partition and first <= o < end and not s.retried)

    def count(self) -> dict[str, int]:
        """Dead letters not yet applied, by kind."""
        kinds = sorted(s.letter.kind for s in self.stored.values() if s.retried is None)
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def settle(self, places: Sequence[tuple[int, int]], outcome: str) -> None:
        """Note what became of dead letters, by (partition, offset)."""
        for place in places:
            if place in self.stored:
                self.stored[place] = replace(self.stored[place], retried=self.clock(), outcome=outcome)


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


class MemoryRegistry:
    """Schemas by id."""

    def __init__(self, schemas: Mapping[int, RegisteredSchema]) -> None:
        self._schemas = dict(schemas)

    def find(self, schema_id: int) -> RegisteredSchema | None:
        return self._schemas.get(schema_id)
