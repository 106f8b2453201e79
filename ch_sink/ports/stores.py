"""The stores of a stream (rows, handed-over values, waiting records, dead letters), and the reading of its topic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.model.change import HandoverId, Records
from ch_sink.ports.ledger import Fence


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
    """Currently stored rows by key, with sequential consistency if the table is replicated."""

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        """Look rows up; one query per call.

        Args:
            keys: distinct keys, columns named and typed as the target's key columns.
            below: for each key the version below which its row has to be, typed as the version column is inserted; only
                for tables that keep every change.
        """
        ...


@dataclass(frozen=True, slots=True)
class Insert:
    """One insert: one block and one token, of one table partition or of many that the server tells apart."""

    rows: pa.Table
    label: str
    """Identifies the insert within its chunk (the table partition's value and the step); part of the token."""
    partial: bool = False
    """Rows that were stored before are left out."""

    @property
    def step(self) -> str:
        """The first part of the label: inserts of one step are stored before those of the next."""
        return self.label.partition("/")[0]


class TableWriter(Protocol):
    """Inserts blocks once."""

    def write(self, insert: Insert, token: str, *, fence: Fence | None = None, by_content: bool = False) -> int:
        """Insert as one block under the deduplication token; returns rows the server reports as written.

        Args:
            fence: the insert takes effect only while this execution may insert.
            by_content: the token is extended by a digest of the block, so that it never stands for other rows. For
                tables where storing a block twice does no harm, and dropping one that has changed does.

        Raises:
            ClickHouseError: it fails, and a retry would not help.
            LedgerConflict: the execution is superseded; nothing was stored.
        """
        ...

    def roll_up(self, rollup: str, rows: pa.Table, token: str, *, fence: Fence | None = None) -> None:
        """Add signed rows of the table to one of its rollups, once for each token. Raises as `write` does."""
        ...


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Row values that the delete halves of key changes handed over, for the ids asked for."""

    found: dict[HandoverId, int]
    """Id → row of ``rows``; -1 if the delete half was seen but its row was found nowhere."""
    rows: pa.Table
    """Source columns of the target, Arrow types as inserted."""


class Handover(Protocol):
    """Values of rows that change their key, handed from the delete half to the create half; the first entry stays."""

    def get(self, ids: Sequence[HandoverId]) -> HandedOver:
        """The entries stored for these ids; one query per call."""
        ...

    def put(self, ids: Sequence[HandoverId], rows: pa.Table, known: npt.NDArray[np.bool_], token: str) -> None:
        """Store entries, one per id: ``rows`` has a row for each (nulls where ``known`` is False)."""
        ...


@dataclass(frozen=True, slots=True)
class AppliedSwap:
    """The trace of a create half that was applied while the former row of its key was still to leave."""

    inner: int
    """Its position inside the transaction, by which the former row is handed over."""
    closed: int = -1
    """Offset of the delete half that closed the swap in the same release, -1 if the swap is still open."""


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """A record that waits for a hand-over, with the order position that it had on arrival."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    epoch: int
    commit: int
    """Effective commit position (80 bits)."""
    since: float = 0.0
    """The time at which it was stored, in seconds since 1970."""
    swap: AppliedSwap | None = None
    """If it does not wait any more: the swap of keys that it opened. Such a record has no value."""


class Pending(Protocol):
    """Records of one stream that wait for a hand-over, until they are resolved."""

    def put(
        self,
        topic_id: str,
        partition: int,
        records: Sequence[PendingRecord],
        token: str,
        *,
        fence: Fence | None = None,
    ) -> None:
        """Store records; a repeat of an offset is stored once. One with a swap counts as applied.

        Raises LedgerConflict if the execution is superseded: what has been applied since must not wait again.
        """
        ...

    def open(self, topic_id: str, partition: int) -> list[PendingRecord]:
        """The records that still wait, and those whose swap may still be open, by offset."""
        ...

    def places(self) -> dict[tuple[str, int], int]:
        """Topic ids and partitions of which `open` returns anything, in order: how many records wait there."""
        ...

    def resolve(self, topic_id: str, partition: int, offsets: Sequence[int]) -> None:
        """Mark records as applied (or given up), and their swaps as over."""
        ...

    def released(self, topic_id: str, partition: int, first: int, end: int) -> list[int]:
        """Offsets in [first, end) that were applied and do not wait again since."""
        ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The whole record that was not applied, and the reason."""

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
    """A dead letter as it is stored. Times in seconds since 1970."""

    letter: DeadLetter
    time: float
    retried: float | None = None
    """The time at which it was settled; None if it is open."""
    outcome: str = ""
    """How: ``applied``, ``superseded``, ``waiting`` or ``dropped``."""


class DeadLetters(Protocol):
    """Stores records that cannot be applied; a repeat of the same offset is stored once."""

    def put(self, letters: Sequence[DeadLetter], token: str) -> None: ...

    def failed(self, partition: int, first: int, end: int) -> Sequence[int]:
        """Offsets in [first, end) of the records that have not been applied since, in order."""
        ...


class History(Protocol):
    """Earlier records of the same partition."""

    def before(self, offset: int, limit: int) -> Records:
        """Up to ``limit`` records at offsets below ``offset``, the nearest ones, in offset order."""
        ...


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as the registry holds it."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: tuple[str, ...] = ()
    """Texts of the schemas that it refers to, in order of dependency."""


class SchemaRegistry(Protocol):
    """The schemas to which records in Confluent framing refer by id."""

    def find(self, schema_id: int) -> RegisteredSchema | None:
        """The schema of this id, None if there is none. Raises RegistryError if the registry cannot be reached."""
        ...
