"""The narrow seams between the pure core and the world; each has one real and one in-memory implementation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.change import Records

__all__ = ["DeadLetter", "DeadLetters", "History", "Insert", "PositionId", "RowLookup", "StoredRows", "TableWriter"]

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
