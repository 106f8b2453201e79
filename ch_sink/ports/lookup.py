"""Stored rows by key."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

__all__ = ["RowLookup", "StoredRows"]


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
