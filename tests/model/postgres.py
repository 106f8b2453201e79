"""How the PostgreSQL connector reports a transaction."""

from collections import Counter
from typing import ClassVar

from tests.model.events import PLACEHOLDER, Connector, Event, Wire
from tests.model.shapes import TOASTED, Row, TableShape, Value
from tests.model.source import Change, Transaction


class Postgres(Connector):
    """PostgreSQL through pgoutput. ``identity``: default, full or nothing (only inserts and truncates then).

    ``sequence`` is [end of the last commit reported before this transaction, lsn of the change].
    """

    kind = "postgresql"
    schema_name = "postgresql"
    own_fields: ClassVar[list[tuple[str, str, bool]]] = [
        ("schema", "string", False),
        ("table", "string", False),
        ("txId", "int64", True),
        ("lsn", "int64", True),
        ("xmin", "int64", True),
        ("origin", "string", True),
        ("origin_lsn", "int64", True),
    ]
    stride = 56

    def __init__(
        self,
        table: TableShape,
        name: str,
        features: Counter[str],
        *,
        metadata: bool = False,
        identity: str = "default",
        base: int = 27_000_000,
    ) -> None:
        super().__init__(table, name, features, metadata=metadata)
        self.identity = identity
        self.base = base
        self.last_commit: int | None = None

    def lsn(self, tick: int) -> int:
        return self.base + tick * self.stride

    def describe(self, tx: Transaction) -> list[Event]:
        events: list[Event] = []
        for change in tx.changes:
            source = self._source(tx.commit_ms, "false", tx.number + 735, self.lsn(change.tick))
            if self.moves(change) and change.before is not None and change.after is not None:
                halves = self.moved(source, change.before, change.after, tx.commit_ms)
                halves[0].before = self._old(change.before)
                halves[1].after = self._new(change)
                if PLACEHOLDER in (halves[1].after or {}).values():
                    self.features["placeholder_in_create_half"] += 1
                events += halves
                continue
            op = {"insert": "c", "update": "u", "delete": "d", "truncate": "t"}[change.kind]
            event = self.change(op, source, change.before, change.after, tx.commit_ms, self.next_unit())
            event.before = self._old(change.before) if op == "d" or self.identity == "full" else None
            event.after = self._new(change)
            if PLACEHOLDER in (event.after or {}).values():
                self.features["placeholder"] += 1
            events.append(event)
        if self.last_commit is None and events:
            self.features["null_sequence"] += 1
        self.last_commit = self.lsn(tx.commit_tick) + 30
        return events

    def here(self, tx: Transaction | None, tick: int, ms: int, snapshot: str) -> Wire:
        if tx is None:
            return self._source(ms, snapshot, 735, self.lsn(tick))
        known = self.last_commit
        if known is not None:
            self.last_commit = self.lsn(tick)
        source = self._source(ms, snapshot, None, self.lsn(tick) + 20) | {"lsn": None}
        self.last_commit = known
        return source

    def regress(self, tick: int, drop: int, *, forget: bool) -> None:
        self.base -= drop * self.stride - 8
        self.last_commit = None if forget else self.lsn(tick)

    def transaction_id(self, event: Event) -> str:
        source = event.source or {}
        return f"{source['txId']}:{source['lsn']}"

    def _old(self, row: Row | None) -> Wire | None:
        if row is None or self.identity == "full":
            return self.image(row)
        if not self.table.key:
            return None
        image = self.image(row) or {}
        return {
            column.name: image[column.name] if column.name in self.table.key else column.filler
            for column in self.table.columns
        }

    def _new(self, change: Change) -> Wire | None:
        image = self.image(change.after)
        if image is None or change.before is None or self.identity == "full":
            return image
        for column in self.table.columns:
            value: Value = change.before[column.name]
            unchanged = image[column.name] == value
            if column.toastable and isinstance(value, str) and len(value) >= TOASTED and unchanged:
                image[column.name] = PLACEHOLDER
        return image

    def _source(self, ms: int, snapshot: str, tx_id: int | None, lsn: int) -> Wire:
        last = "null" if self.last_commit is None else f'"{self.last_commit}"'
        block = self.common(ms, snapshot, f'[{last},"{lsn}"]')
        block |= {"schema": "public", "table": self.table.name, "txId": tx_id, "lsn": lsn, "xmin": None}
        return block | {"origin": None, "origin_lsn": None}

    def _collection(self) -> str:
        return f"public.{self.table.name}"
