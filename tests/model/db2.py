"""How the Db2 connector reports a transaction: after its change-data tables and source block, no recorded stream."""

from typing import ClassVar

from tests.model.events import Connector, Event, Wire
from tests.model.source import Change, Transaction


class Db2(Connector):
    """SQL Replication on Linux: whole images in the order of commits, LSNs of 16 bytes.

    The first 8 bytes of a commit's LSN are those of a log write, which several commits may share. Unique keys are
    checked at a statement's end.
    """

    kind = "db2"
    schema_name = "db2"
    own_fields: ClassVar[list[tuple[str, str, bool]]] = [
        ("schema", "string", False),
        ("table", "string", False),
        ("change_lsn", "string", True),
        ("commit_lsn", "string", True),
    ]
    base = 0x15_0000
    together = 5
    """Ticks whose commits are written to the log at once."""
    _last: str | None = None

    def describe(self, tx: Transaction) -> list[Event]:
        events: list[Event] = []
        for change in tx.changes:
            source = self._source(tx.commit_ms, "false", change, tx.commit_tick)
            if self.moves(change) and change.before is not None and change.after is not None:
                events += self.moved(source, change.before, change.after, tx.commit_ms)
                continue
            op = {"insert": "c", "update": "u", "delete": "d"}[change.kind]
            events.append(self.change(op, source, change.before, change.after, tx.commit_ms, self.next_unit()))
        return events

    def here(self, tx: Transaction | None, tick: int, ms: int, snapshot: str) -> Wire:
        return self._source(ms, snapshot, None, tick, None if tx is None else self._last)

    def regress(self, tick: int, drop: int, *, forget: bool) -> None:
        self.base = max(0x100, self.base - drop)

    def transaction_id(self, event: Event) -> str:
        return str((event.source or {})["commit_lsn"])

    def _source(self, ms: int, snapshot: str, change: Change | None, tick: int, changed: str | None = None) -> Wire:
        number = self.base + tick
        if change is not None:
            changed = self._last = f"00000000:00000000:{(self.base + change.tick) * 211:016x}"
        commit = f"00000000:{number // self.together:08x}:{number:016x}"
        own: Wire = {"schema": "DB2INST1", "table": self.table.name, "change_lsn": changed, "commit_lsn": commit}
        return self.common(ms, snapshot, None) | own
