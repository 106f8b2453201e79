"""How the SQL Server connector reports a transaction: after its documentation, no recorded events are at hand."""

from collections import Counter
from typing import ClassVar

from tests.model.events import PLACEHOLDER, Connector, Event, Wire
from tests.model.shapes import Row, TableShape
from tests.model.source import Change, Transaction


class SqlServer(Connector):
    """SQL Server change tables: whole images, key updates as delete and create, keys exchanged by one statement
    folded into plain updates of both rows (the engine's split, sort and collapse of unique-key updates).

    ``headers``: the halves of a key change carry Debezium's headers. ``quoted``: ``event_serial_no`` is a text.
    ``tied``: both halves have the same serial number. ``max_placeholder``: unchanged ``(max)`` values arrive as the
    placeholder in both images of an update.
    """

    kind = "sqlserver"
    schema_name = "sqlserver"
    own_fields: ClassVar[list[tuple[str, str, bool]]] = [
        ("schema", "string", False),
        ("table", "string", False),
        ("change_lsn", "string", True),
        ("commit_lsn", "string", True),
        ("event_serial_no", "int64", True),
    ]

    def __init__(
        self,
        table: TableShape,
        name: str,
        features: Counter[str],
        *,
        metadata: bool = False,
        base: int = 0x2758 << 16,
        headers: bool = False,
        quoted: bool = False,
        tied: bool = False,
        max_placeholder: bool = False,
    ) -> None:
        super().__init__(table, name, features, metadata=metadata)
        self.base = base
        self.headers, self.quoted, self.tied, self.max_placeholder = headers, quoted, tied, max_placeholder
        self._last_change: str | None = None

    def lsn(self, tick: int) -> str:
        """``8hex:8hex:4hex`` of a counter whose low word has 16 bits."""
        number = self.base + tick * 0x900
        return f"{number >> 48 & 0xFFFFFFFF:08x}:{number >> 16 & 0xFFFFFFFF:08x}:{number & 0xFFFF:04x}"

    def describe(self, tx: Transaction) -> list[Event]:
        events: list[Event] = []
        commit = self.lsn(tx.commit_tick)
        for statement in tx.statements():
            if len(statement) > 1 and any(self.moves(change) for change in statement):
                events += self._collapsed(tx, statement, commit)
                continue
            for change in statement:
                events += self._tell(tx, change, commit)
        return events

    def here(self, tx: Transaction | None, tick: int, ms: int, snapshot: str) -> Wire:
        change = None if tx is None else self._last_change
        return self._source(ms, snapshot, change, self.lsn(tick), None)

    def regress(self, tick: int, drop: int, *, forget: bool) -> None:
        self.base = max(8, self.base - drop * 0x900 + 8)

    def transaction_id(self, event: Event) -> str:
        return str((event.source or {})["commit_lsn"])

    def _tell(self, tx: Transaction, change: Change, commit: str) -> list[Event]:
        lsn = self._last_change = self.lsn(change.tick)
        before, after, ms = change.before, change.after, tx.commit_ms
        if before is not None and after is not None:
            if self.moves(change):
                halves = self.moved(self._source(ms, "false", lsn, commit, 1), before, after, ms, headers=self.headers)
                halves[1].source = self._source(ms, "false", lsn, commit, 1 if self.tied else 2)
                return halves
            if before == after:
                self.features["unlogged_update"] += 1
                return []
            return [self._updated(self._source(ms, "false", lsn, commit, 2), before, after, ms)]
        op = "c" if before is None else "d"
        return [self.change(op, self._source(ms, "false", lsn, commit, 1), before, after, ms, self.next_unit())]

    def _collapsed(self, tx: Transaction, statement: list[Change], commit: str) -> list[Event]:
        olds = {self.table.key_of(c.before): c.before for c in statement if c.before is not None}
        news = {self.table.key_of(c.after): c.after for c in statement if c.after is not None}
        ms, events = tx.commit_ms, []
        for place, key in enumerate(sorted(olds.keys() | news.keys(), key=repr)):
            lsn = self._last_change = self.lsn(statement[min(place, len(statement) - 1)].tick)
            before, after = olds.get(key), news.get(key)
            if before is not None and after is not None:
                if before == after:
                    continue
                self.features["swap_as_updates"] += 1
                events.append(self._updated(self._source(ms, "false", lsn, commit, 2), before, after, ms))
            else:
                op = "c" if before is None else "d"
                source = self._source(ms, "false", lsn, commit, 1)
                events.append(self.change(op, source, before, after, ms, self.next_unit()))
        return events

    def _updated(self, source: Wire, before: Row, after: Row, ms: int) -> Event:
        event = self.change("u", source, before, after, ms, self.next_unit())
        if self.max_placeholder and event.before is not None and event.after is not None:
            for column in self.table.columns:
                value = before[column.name]
                if column.toastable and value is not None and value == after[column.name]:
                    event.before[column.name] = event.after[column.name] = PLACEHOLDER
                    self.features["placeholder"] += 1
        return event

    def _source(self, ms: int, snapshot: str, change: str | None, commit: str, serial: int | None) -> Wire:
        number = str(serial) if self.quoted and serial is not None else serial
        own: Wire = {"schema": "dbo", "table": self.table.name, "change_lsn": change, "commit_lsn": commit}
        return self.common(ms, snapshot, None) | own | {"event_serial_no": number}
