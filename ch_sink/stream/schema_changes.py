"""Schema changes of the target: the table and its view get the new columns, even if a kill comes in between."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ch_sink.decode import joined
from ch_sink.model.change import UnknownColumn
from ch_sink.pipeline.plan import Barrier
from ch_sink.ports import ChangedColumn, Ledger, SchemaChangeBegun, SchemaChangeFinished
from ch_sink.table.model import TargetTable

__all__ = ["SchemaChanges"]

log = logging.getLogger("ch_sink")


class TableEvolution(Protocol):
    """Alters the target table (`ch_sink.clickhouse.Evolution`)."""

    def carry_out(self, table: TargetTable, columns: Sequence[UnknownColumn], key: Sequence[str]) -> TargetTable:
        """Add or widen the columns and recreate the current-state view; returns the table afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class SchemaChanges:
    """Alters one stream's table; the ledger records the beginning and the end of each change."""

    evolution: TableEvolution
    ledger: Ledger

    def carry_out(self, table: TargetTable, barriers: Sequence[Barrier]) -> TargetTable:
        """Add the columns at which ranges ended; returns the table afterwards. Raises as Evolution does."""
        columns = joined([column for barrier in barriers for column in barrier.columns])
        key = next((b.key for b in barriers if b.key), ())
        self.ledger.record(
            SchemaChangeBegun(tuple(ChangedColumn(c.name, c.clickhouse_type or "") for c in columns), key)
        )
        table = self.evolution.carry_out(table, columns, key)
        changed = [found for c in columns if (found := table.column(c.name)) is not None]
        done = tuple(ChangedColumn(c.name, c.type) for c in changed)
        log.warning("%s has new columns: %s", table.qualified, "; ".join(f"{c.name} {c.type}" for c in done))
        self.ledger.record(SchemaChangeFinished(done))
        return table

    def finish(self, table: TargetTable) -> TargetTable:
        """Recreate the view if a job was killed after it had altered the table.

        No later range would do it, since the columns exist now. Raises as Evolution does.
        """
        begun = self.ledger.open_schema_change()
        if begun is not None:
            table = self.evolution.carry_out(table, (), begun.key)
            self.ledger.record(SchemaChangeFinished(begun.columns))
        return table
