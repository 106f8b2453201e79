"""Inserts of blocks, each stored once."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

__all__ = ["Insert", "TableWriter"]


@dataclass(frozen=True, slots=True)
class Insert:
    """One insert: one block, one table partition, one token."""

    rows: pa.Table
    label: str
    """Identifies the insert within its chunk (the table partition's value and the step); part of the token."""


class TableWriter(Protocol):
    """Inserts blocks once."""

    def write(self, insert: Insert, token: str) -> int:
        """Insert as one block under the deduplication token; returns rows the server reports as written.

        Raises ClickHouseError if it fails and a retry would not help.
        """
        ...
