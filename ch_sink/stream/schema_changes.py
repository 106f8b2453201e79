"""The driver's part in schema evolution: the table gets its columns, and its view shows them, whoever dies between."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ch_sink.decode import joined
from ch_sink.model.change import UnknownColumn
from ch_sink.pipeline.plan import Barrier
from ch_sink.ports import Ledger
from ch_sink.table.model import TargetTable

__all__ = ["Evolving"]

log = logging.getLogger("ch_sink")

_BEGUN = "altering"
"""Kind of the ledger's notes: JSON of the key's columns before the table is altered, empty once its view is renewed."""


class TableEvolution(Protocol):
    """Alters the target table (`ch_sink.clickhouse.Evolution`)."""

    def carry_out(self, table: TargetTable, columns: Sequence[UnknownColumn], key: Sequence[str]) -> TargetTable:
        """Add or widen the columns, recreate the current-state view; returns the table as it is then."""
        ...


@dataclass(frozen=True, slots=True)
class Evolving:
    """Alters one stream's table, and remembers in the ledger what it has begun."""

    evolution: TableEvolution
    ledger: Ledger

    def carry_out(self, table: TargetTable, barriers: Sequence[Barrier]) -> TargetTable:
        """Give the table the columns that the ranges ended at; returns it as it is then. Raises as Evolution does."""
        columns = joined([column for barrier in barriers for column in barrier.columns])
        key = next((b.key for b in barriers if b.key), ())
        self.ledger.note(_BEGUN, json.dumps(key))
        table = self.evolution.carry_out(table, columns, key)
        done = "; ".join(f"{c.name} {found.type}" for c in columns if (found := table.column(c.name)) is not None)
        log.warning("%s has new columns of the source: %s", table.qualified, done)
        self.ledger.note("columns", done)
        self.ledger.note(_BEGUN, "")
        return table

    def finish(self, table: TargetTable) -> TargetTable:
        """Renew the view that a job altered the table for and did not come to.

        Nothing else would: no range ends any more for columns that are there by now. Raises as Evolution does.
        """
        begun = self.ledger.notes(_BEGUN)
        if begun and begun[-1]:
            table = self.evolution.carry_out(table, (), tuple(json.loads(begun[-1])))
            self.ledger.note(_BEGUN, "")
        return table
