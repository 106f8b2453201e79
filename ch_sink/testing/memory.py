"""The ports in memory: what ``replay``, benchmarks of the plan and tests run on when no server is wanted.

They keep the promises of the protocols, those about repeats included, and nothing survives the process.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.ports import (
    DeadLetter,
    HandedOver,
    HandoverId,
    Insert,
    PendingRecord,
    RegisteredSchema,
    StoredLetter,
    StoredRows,
)
from ch_sink.table.model import Family, TargetTable

__all__ = ["MemoryDeadLetters", "MemoryHandover", "MemoryPending", "MemoryRegistry", "MemoryTable"]


class MemoryTable:
    """A target table: writer and lookup at once. Rows are kept as they were inserted, nothing is merged."""

    def __init__(self, table: TargetTable, key_columns: tuple[str, ...]) -> None:
        self._table, self._keys = table, key_columns
        self._blocks: list[pa.Table] = []
        self._tokens: set[str] = set()

    def write(self, insert: Insert, token: str) -> int:
        """See TableWriter.write: a token that was seen is dropped with whatever it brings."""
        if token in self._tokens or not insert.rows.num_rows:
            return 0
        self._tokens.add(token)
        self._blocks.append(insert.rows)
        return int(insert.rows.num_rows)

    @property
    def rows(self) -> pa.Table | None:
        """All rows in the order of insertion, None before the first."""
        return pa.concat_tables(self._blocks, promote_options="default") if self._blocks else None

    def fetch(self, keys: pa.Table) -> StoredRows:
        """See RowLookup.fetch."""
        rows = self.rows
        if rows is None:
            return StoredRows(pa.table({n: pa.array([], type=keys.schema.field(n).type) for n in keys.column_names}))
        wanted = set(_tuples(keys.select(list(self._keys))))
        mine_ = [i for i, key in enumerate(_tuples(rows.select(list(self._keys)))) if key in wanted]
        found = rows.take(pa.array(mine_, pa.int64()))
        collapses = self._table.engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING)
        return StoredRows(self._alive(found) if collapses else self._newest(found))

    def _newest(self, rows: pa.Table) -> pa.Table:
        name = self._table.engine.version_column or ("_version" if "_version" in rows.column_names else None)
        versions = _ordered(rows.column(name)) if name else [0] * rows.num_rows
        best: dict[tuple[Any, ...], int] = {}
        for i, key in enumerate(_tuples(rows.select(list(self._keys)))):
            if key not in best or versions[i] >= versions[best[key]]:
                best[key] = i
        return rows.take(pa.array(sorted(best.values()), pa.int64()))

    def _alive(self, rows: pa.Table) -> pa.Table:
        sign = self._table.engine.sign_column or "_sign"
        others = rows.drop_columns([sign])
        sums: dict[tuple[Any, ...], int] = {}
        first: dict[tuple[Any, ...], int] = {}
        for i, (values, step) in enumerate(zip(_tuples(others), rows.column(sign).to_pylist(), strict=True)):
            sums[values] = sums.get(values, 0) + step
            first.setdefault(values, i)
        index = [first[values] for values, total in sums.items() for _ in range(max(total, 0))]
        found = rows.take(pa.array(index, pa.int64()))
        place = found.schema.get_field_index(sign)
        return found.set_column(place, found.schema.field(sign), pa.array(np.ones(len(index), np.int8)))


def _tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    columns = [[_hashable(v) for v in column.to_pylist()] for column in rows.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((k, _hashable(v)) for k, v in value.items())
    if isinstance(value, list):
        return tuple(_hashable(v) for v in value)
    if isinstance(value, float) and value != value:
        return "nan"
    return value


def _ordered(column: pa.ChunkedArray) -> list[Any]:
    values = column.to_pylist()
    # Wide integers travel as little-endian bytes.
    return [int.from_bytes(v, "little") if isinstance(v, bytes) else v for v in values]


@dataclass(slots=True)
class MemoryDeadLetters:
    """Dead letters of one stream and topic; the newest entry of an offset counts."""

    clock: Callable[[], float] = time.time
    stored: dict[tuple[int, int], StoredLetter] = field(default_factory=dict)

    def put(self, letters: Sequence[DeadLetter], token: str) -> None:
        for letter in letters:
            self.stored[letter.partition, letter.offset] = StoredLetter(letter, self.clock())

    def list(self, limit: int = 100, *, retried: bool = False) -> list[StoredLetter]:
        """Letters by partition and offset; those applied since only when asked for."""
        found = [self.stored[place] for place in sorted(self.stored)]
        return [s for s in found if retried or s.retried is None][:limit]

    def count(self) -> dict[str, int]:
        """Letters not yet applied, by kind."""
        kinds = sorted(s.letter.kind for s in self.stored.values() if s.retried is None)
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def mark_retried(self, places: Sequence[tuple[int, int]]) -> None:
        """Mark letters as applied, by (partition, offset)."""
        for place in places:
            if place in self.stored:
                self.stored[place] = replace(self.stored[place], retried=self.clock())


@dataclass(slots=True)
class MemoryHandover:
    """Values of rows that change their key; the first entry of an id stays. ``types``: the target's source columns."""

    types: dict[str, pa.DataType]
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
        """A row with the columns that the target has by now: those that came since are null."""
        for name, kind in self.types.items():
            if name not in row.column_names:
                row = row.append_column(name, pa.nulls(row.num_rows, kind))
        return row.select(list(self.types))


@dataclass(slots=True)
class MemoryPending:
    """Records that wait for a hand-over; a record that is put again waits again."""

    stored: dict[tuple[str, int], dict[int, PendingRecord]] = field(default_factory=dict)
    resolved: dict[tuple[str, int], set[int]] = field(default_factory=dict)

    def put(self, topic_id: str, partition: int, records: Sequence[PendingRecord], token: str) -> None:
        self.stored.setdefault((topic_id, partition), {}).update({r.offset: r for r in records})
        self.resolved.setdefault((topic_id, partition), set()).difference_update(r.offset for r in records)

    def open(self, topic_id: str, partition: int) -> list[PendingRecord]:
        waiting = self.stored.get((topic_id, partition), {})
        return [waiting[offset] for offset in sorted(waiting)]

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
