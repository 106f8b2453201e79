"""The narrow seams between the pure core and the world; each has one real and one in-memory implementation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    "Ledger",
    "PartitionTotals",
    "Pending",
    "PendingRecord",
    "PositionId",
    "RangeIntent",
    "RangeResult",
    "RegisteredSchema",
    "RowLookup",
    "SchemaRegistry",
    "StoredLetter",
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

    def released(self, topic_id: str, partition: int, first: int, end: int) -> list[int]:
        """Offsets in [first, end) that waited and were resolved, and were not put again since."""
        ...


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as the registry holds it."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: tuple[str, ...] = ()
    """Texts of the schemas whose names it uses, each after those that it uses itself."""


class SchemaRegistry(Protocol):
    """The schemas that records in Confluent framing name by their ids."""

    def find(self, schema_id: int) -> RegisteredSchema | None:
        """The schema of this id, None where the registry has none. Raises RegistryError when it cannot be asked."""
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


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter as it is kept. Times in seconds since 1970."""

    letter: DeadLetter
    time: float
    retried: float | None = None
    """When it was applied after all."""


class DeadLetters(Protocol):
    """Where records go that cannot be applied; a repeat of the same offset is stored once."""

    def put(self, letters: Sequence[DeadLetter], token: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RangeIntent:
    """An offset range [start, end) of one partition that is about to be read, and how it will be cut."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    chunk_offsets: int = 0
    chunk_bytes: int = 0
    attempt: int = 0
    """How many earlier intents overlap this range; the ledger fills it in."""


@dataclass(frozen=True, slots=True)
class RangeResult:
    """An offset range that was applied. It may end before the intended end (a barrier)."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    rows: int = 0
    deletes: int = 0
    dead_letters: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    cuts: tuple[int, ...] = ()
    state: str = ""
    """State of the partition at ``end``; opaque here."""
    started: float = 0.0
    """Seconds since 1970, as is ``finished``."""
    finished: float = 0.0
    source_time: int = 0
    """Source time of the newest event in milliseconds since 1970, 0 for none."""
    run_id: str = ""
    """Filled in by the ledger, as is ``batch``."""
    batch: int = 0


@dataclass(frozen=True, slots=True)
class PartitionTotals:
    """Sums over all results of one partition; a range that was done twice counts as it was done last."""

    topic: str
    topic_id: str
    partition: int
    next_offset: int
    rows: int
    deletes: int
    dead_letters: int
    counts: Mapping[str, int]
    state: str
    finished: float
    source_time: int


class Ledger(Protocol):
    """What one stream intended and finished. Reads see all earlier writes; each write is one block.

    A stream has one owner: whoever claimed it last. An owner that lost it learns so at its next write.
    """

    def claim(self, run_id: str) -> None:
        """Take the stream. A job that was killed does not hold it any longer than its OS process lives.

        Raises LedgerConflict while a job on this host works on it; a job elsewhere is displaced.
        """
        ...

    def release(self) -> None:
        """Give the stream back; nothing happens when it was lost or never claimed."""
        ...

    def check_claim(self) -> None:
        """Raises LedgerConflict when another job has claimed the stream since."""
        ...

    def intents(self, ranges: Sequence[RangeIntent]) -> list[RangeIntent]:
        """Record what a batch is about to read; returns the ranges with their attempts. Raises LedgerConflict."""
        ...

    def results(self, results: Sequence[RangeResult]) -> None:
        """Record what the batch of the last ``intents`` did. Raises LedgerConflict, and then records nothing."""
        ...

    def state_at(self, topic_id: str, partition: int, offset: int) -> str | None:
        """The state with which the last range ended that ends exactly there."""
        ...

    def progress(self, topic_id: str) -> dict[int, int]:
        """Partition → next offset: the end of the unbroken run of finished ranges that begins with the first one."""
        ...

    def topic_ids(self) -> list[str]:
        """Identities of the topics that the stream has read, the last one first."""
        ...

    def last_intents(self) -> list[RangeIntent]:
        """The ranges of the newest batch that was intended, finished or not."""
        ...

    def history(self, limit: int) -> list[RangeResult]:
        """The newest results, newest first."""
        ...

    def totals(self) -> list[PartitionTotals]:
        """Sums by topic and partition, in that order."""
        ...

    def put_cut(self, topic_id: str, partition: int, offset: int) -> None:
        """A chunk ends at this offset because the table lacked columns, whatever columns later attempts find."""
        ...

    def cuts(self, topic_id: str) -> dict[int, list[int]]:
        """Partition → offsets of `put_cut`, in order."""
        ...

    def note(self, kind: str, text: str) -> None:
        """Record a fact of the stream (a truncate's floor, a skipped stretch). Raises LedgerConflict."""
        ...

    def notes(self, kind: str) -> list[str]:
        """The texts noted under this kind, oldest first."""
        ...


Mask = npt.NDArray[np.bool_]
