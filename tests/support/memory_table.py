"""A merge-engine table in a few lines of Python: what the sink inserted, and what the engine would answer.

Rows are kept as inserted; the answer follows ClickHouse's rules (newest version of a sorting key; sums of signs).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.ports import HandedOver, HandoverId, Insert, PendingRecord, StoredRows
from ch_sink.table.model import Family, TargetTable

Row = dict[str, Any]


class MemoryTable:
    """Table, row lookup and writer in one."""

    def __init__(self, table: TargetTable, key: tuple[str, ...], schema: pa.Schema) -> None:
        self.table, self.key = table, key
        self.schema = schema.append(pa.field("_version", pa.binary(16)))
        for name, kind in (("_sign", pa.int8()), ("_is_deleted", pa.uint8()), ("_op", pa.string())):
            if table.column(name) is not None:
                self.schema = self.schema.append(pa.field(name, kind))
        self.rows: list[Row] = []
        self.tokens: set[str] = set()
        self.lookups = 0
        self.fail_after: int | None = None

    def write(self, insert: Insert, token: str) -> int:
        if self.fail_after is not None:
            if self.fail_after == 0:
                raise Killed
            self.fail_after -= 1
        if token in self.tokens:
            return 0
        self.tokens.add(token)
        self.rows.extend(insert.rows.to_pylist())
        return insert.rows.num_rows

    def fetch(self, keys: pa.Table) -> StoredRows:
        self.lookups += 1
        wanted = {tuple(k.values()) for k in keys.to_pylist()}
        mine = [r for r in self.rows if tuple(r[c] for c in self.key) in wanted]
        if self.table.engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING):
            found = self._live(mine)
        else:
            newest: dict[tuple, Row] = {}
            version = self.version
            for row in mine:
                key = tuple(row[c] for c in self.key)
                if key not in newest or version(row) >= version(newest[key]):
                    newest[key] = row
            found = list(newest.values())
        return StoredRows(pa.Table.from_pylist(found, schema=self.schema))

    @staticmethod
    def version(row: Row) -> int:
        return int.from_bytes(row["_version"], "little")

    def _live(self, rows: Sequence[Row]) -> list[Row]:
        sign = self.table.engine.sign_column or "_sign"
        totals: Counter[tuple] = Counter()
        for row in rows:
            totals[tuple((c, v) for c, v in row.items() if c != sign)] += row[sign]
        return [{**dict(items), sign: 1} for items, total in totals.items() for _ in range(max(total, 0))]

    def sums(self) -> dict[tuple, int]:
        """Sum of signs by key."""
        out: Counter[tuple] = Counter()
        for row in self.rows:
            out[tuple(row[c] for c in self.key)] += row[self.table.engine.sign_column or "_sign"]
        return dict(out)

    def current_rows(self) -> list[Row]:
        """Live rows as FINAL shows them, or the view of an append table, whole."""
        if self.table.engine.family is Family.MERGE_TREE and self.key:
            last: dict[tuple, Row] = {}
            for row in self.rows:
                at = tuple(row[c] for c in self.key)
                if at not in last or self.version(row) > self.version(last[at]):
                    last[at] = row
            return [r for r in last.values() if r["_sign"] > 0]
        if self.table.engine.family is Family.MERGE_TREE:
            return self._copies()
        if self.table.engine.family is not Family.REPLACING:
            return self._live(self.rows)
        newest: dict[tuple, Row] = {}
        for row in self.rows:
            at = tuple(row[c] for c in self.table.sorting_key)
            if at not in newest or self.version(row) >= self.version(newest[at]):
                newest[at] = row
        return [r for r in newest.values() if not self._deleted(r)]

    def _copies(self) -> list[Row]:
        """Each row as often as its signs sum to; the versions of the changes do not matter."""
        totals: Counter[tuple] = Counter()
        own = self.table.system_columns
        for row in self.rows:
            totals[tuple((c, v) for c, v in row.items() if c not in own)] += row["_sign"]
        return [dict(items) for items, total in totals.items() for _ in range(max(total, 0))]

    def current(self) -> list[Row]:
        """Live rows without the sink's own columns."""
        own = self.table.system_columns
        return [{c: v for c, v in r.items() if c not in own} for r in self.current_rows()]

    def _deleted(self, row: Row) -> bool:
        engine = self.table.engine
        if engine.is_deleted_column:
            return row[engine.is_deleted_column] == 1
        return engine.sign_column is not None and row[engine.sign_column] == -1


class Killed(Exception):
    """The process died here."""


class MemoryHandover:
    def __init__(self) -> None:
        self.entries: dict[HandoverId, tuple[bool, pa.Table]] = {}

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        found, tables = {}, []
        for key in ids:
            if key in self.entries and key not in found:
                known, row = self.entries[key]
                found[key] = len(tables) if known else -1
                if known:
                    tables.append(row)
        return HandedOver(found, pa.concat_tables(tables) if tables else pa.table({}))

    def put(self, ids: Sequence[HandoverId], rows: pa.Table, known: np.ndarray, token: str) -> None:
        for i, key in enumerate(ids):
            self.entries.setdefault(key, (bool(known[i]), rows.slice(i, 1)))


class MemoryPending:
    def __init__(self) -> None:
        self.records: dict[tuple[int, int], PendingRecord] = {}
        self.done: set[tuple[int, int]] = set()

    def put(self, topic_id: str, partition: int, records: Sequence[PendingRecord], token: str) -> None:
        for record in records:
            self.records.setdefault((partition, record.offset), record)

    def open(self, topic_id: str, partition: int) -> list[PendingRecord]:
        return [
            r
            for (p, o), r in sorted(self.records.items(), key=lambda x: x[0])
            if p == partition and (p, o) not in self.done
        ]

    def resolve(self, topic_id: str, partition: int, offsets: Sequence[int]) -> None:
        self.done |= {(partition, o) for o in offsets}

    def released(self, topic_id: str, partition: int, first: int, end: int) -> list[int]:
        return sorted(o for p, o in self.done if p == partition and first <= o < end)


class MemoryLetters:
    def __init__(self) -> None:
        self.letters: list = []

    def put(self, letters: Sequence, token: str) -> None:
        self.letters.extend(letters)
