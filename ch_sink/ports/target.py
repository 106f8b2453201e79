"""The target table: looking rows up, and writing them."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

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
