"""The narrow seams between the pure core and the world; each has one real and one in-memory implementation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.change import Records

__all__ = [
    "DeadLetter",
    "DeadLetters",
    "HandedOver",
    "Handover",
    "HandoverId",
    "History",
    "Insert",
    "Pending",
    "PendingRecord",
    "PositionId",
    "RowLookup",
    "StoredRows",
    "TableWriter",
]

PositionId = tuple[int, int, int, int, bytes, int, int]
"""Identity of a change: commit high, commit low, inner high, inner low, Kafka key bytes, op, source time (ms)."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows that the table holds for the keys asked for.

    ``rows`` has every insertable column of the table (source columns and system columns), Arrow types as the
    writer inserts them. Replacing tables: at most one row per key, the newest version, deleted rows included.
    Collapsing tables: every row of the key whose signs sum to more than zero, repeated that often.
    """

    rows: pa.Table

    def __len__(self) -> int:
        return int(self.rows.num_rows)


class RowLookup(Protocol):
    """Stored rows by key, as of now, with sequential consistency where the table is replicated."""

    def fetch(self, keys: pa.Table) -> StoredRows:
        """``keys``: distinct keys, columns named and typed as the target's key columns. One query per call."""
        ...


HandoverId = tuple[str, int, int, int, int]
"""Identity of a key change: source name, commit high and low, inner high and low (as the event states them)."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Row values that the delete halves of key changes handed over, for the ids asked for."""

    found: dict[HandoverId, int]
    """Id → row of ``rows``; -1 when the delete half was seen but its row is known nowhere."""
    rows: pa.Table
    """Source columns of the target, Arrow types as inserted."""


class Handover(Protocol):
    """Values of rows that change their key, from the delete half to the create half; the first entry stays."""

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        """The entries that are there for these ids; one query per call."""
        ...

    def put(self, ids: Sequence[HandoverId], rows: pa.Table, known: npt.NDArray[np.bool_], token: str) -> None:
        """Store entries, one per id: ``rows`` has a row for each (nulls where ``known`` is False)."""
        ...


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """A record that waits for a hand-over, with the order it was given when it arrived."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    epoch: int
    commit: int
    """Effective commit position (80 bits)."""
    since: float = 0.0
    """When it was put, in seconds since 1970."""


class Pending(Protocol):
    """Records of one stream that wait for a hand-over, until they are resolved."""

    def put(self, topic_id: str, partition: int, records: Sequence[PendingRecord], token: str) -> None:
        """Store records; a repeat of an offset is stored once."""
        ...

    def open(self, topic_id: str, partition: int) -> list[PendingRecord]:
        """The records that still wait, by offset."""
        ...

    def resolve(self, topic_id: str, partition: int, offsets: Sequence[int]) -> None:
        """Mark records as applied (or given up)."""
        ...


class History(Protocol):
    """Earlier records of the same partition."""

    def before(self, offset: int, limit: int) -> Records:
        """Up to ``limit`` records at offsets below ``offset``, the nearest ones, in offset order."""
        ...


@dataclass(frozen=True, slots=True)
class Insert:
    """One insert: one block, one table partition, one token."""

    rows: pa.Table
    label: str
    """Names the insert within its chunk (the table partition's value and the step); part of the token."""


class TableWriter(Protocol):
    """Inserts blocks once."""

    def write(self, insert: Insert, token: str) -> int:
        """Insert as one block under the deduplication token; returns rows the server reports as written.

        Raises ClickHouseError when it cannot be done and a retry would not help.
        """
        ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that was not applied, whole, with the reason."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    kind: str
    column: str | None
    reason: str


class DeadLetters(Protocol):
    """Where records go that cannot be applied; a repeat of the same offset is stored once."""

    def put(self, letters: Sequence[DeadLetter], token: str) -> None: ...


Mask = npt.NDArray[np.bool_]
