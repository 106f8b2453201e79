"""Change events before they are bytes, and what all connectors do alike with a transaction."""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tests.model.shapes import Key, Row, TableShape
from tests.model.source import Change, Transaction

PLACEHOLDER = "__debezium_unavailable_value"
Wire = dict[str, Any]
Kind = Literal["change", "tombstone", "heartbeat", "begin", "end"]


@dataclass(slots=True)
class Event:
    """One record to be, before it has a partition, an offset and a clock of the connector."""

    kind: Kind
    op: str = ""
    key: Key | None = None
    before: Wire | None = None
    after: Wire | None = None
    source: Wire | None = None
    transaction: Wire | None = None
    half: Literal["", "delete", "create"] = ""
    other_key: Key | None = None
    """The new key of a delete half, the old key of a create half; None where the connector sends no header."""
    snapshot: Literal["", "initial", "incremental"] = ""
    unit: int = 0
    """Number of the source change; a restarted connector never begins inside one."""
    tx: int = 0
    """Number of the transaction, 0 for the initial snapshot; extras carry that of the record before them."""
    ms: int = 0
    real_before: Row | None = None
    real_after: Row | None = None
    """The row as it was in the source, free of fillers and placeholders."""
    after_regress: bool = False
    repeats: bool = False
    """Sent a second time under another position (GTID replay after a failover)."""
    body: Wire | None = None
    """Value of a heartbeat or transaction record."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The stream's place between two transactions: what rows of an incremental snapshot carry there."""

    tx: int
    source: Wire
    rows: list[Row]
    ms: int
    regressed: bool = False
    """Its position is one after the drop, its transaction one before it."""


class Connector(ABC):
    kind = ""
    schema_name = ""
    version = "3.5.0.Final"
    own_fields: ClassVar[list[tuple[str, str, bool]]] = []

    def __init__(self, table: TableShape, name: str, features: Counter[str], *, metadata: bool = False) -> None:
        self.table = table
        self.name = name
        self.features = features
        self.metadata = metadata
        """``provide.transaction.metadata``: a block in each event, and BEGIN and END records."""
        self._unit = 0

    # What the source systems differ in.

    @abstractmethod
    def describe(self, tx: Transaction) -> list[Event]:
        """The transaction's events, without tombstones and transaction metadata."""

    @abstractmethod
    def here(self, tx: Transaction | None, tick: int, ms: int, snapshot: str) -> Wire:
        """Source block of a snapshot row read at this place of the stream."""
        ...

    @abstractmethod
    def regress(self, tick: int, drop: int, *, forget: bool) -> None:
        """Later positions start again ``drop`` ticks below; ``forget``: the last commit is not known there."""
        ...

    @abstractmethod
    def transaction_id(self, event: Event) -> str: ...

    def rotate(self) -> bool:
        """Begin the next log file, if the source has such; returns whether it has."""
        return False

    # What is common.

    def snapshot(self, rows: list[Row], tick: int, ms: int) -> list[Event]:
        events = []
        for place, row in enumerate(rows):
            mark = "first" if place == 0 else "last" if place == len(rows) - 1 else "true"
            events.append(self._row("r", self.here(None, tick, ms, mark), row, ms, 0, "initial"))
        return events

    def incremental(self, boundary: Boundary, rows: list[Row]) -> list[Event]:
        return [self._row("r", boundary.source, row, boundary.ms, boundary.tx, "incremental") for row in rows]

    def stream(self, tx: Transaction) -> list[Event]:
        events = self.describe(tx)
        if not events:
            return []
        out: list[Event] = []
        for place, event in enumerate(events, 1):
            event.tx = tx.number
            if self.metadata:
                block = {"id": self.transaction_id(event), "total_order": place, "data_collection_order": place}
                event.transaction = block
            out.append(event)
            if event.op == "d":
                out.append(
                    Event("tombstone", key=event.key, half=event.half, other_key=event.other_key, unit=event.unit)
                )
                out[-1].tx, out[-1].ms = tx.number, event.ms
        if self.metadata:
            out = [self._marker("BEGIN", events[0], 0), *out, self._marker("END", events[-1], len(events))]
        return out

    def boundary(self, tx: Transaction) -> Boundary:
        ms = tx.commit_ms + 400
        return Boundary(tx.number, self.here(tx, tx.commit_tick, ms, "incremental"), tx.rows_after, ms)

    def image(self, row: Row | None) -> Wire | None:
        if row is None:
            return None
        return {column.name: column.encode(row[column.name]) for column in self.table.columns}

    def next_unit(self) -> int:
        self._unit += 1
        return self._unit

    def key(self, row: Row | None) -> Key | None:
        return self.table.key_of(row) if row is not None and self.table.key else None

    def common(self, ms: int, snapshot: str | None, sequence: str | None, db: str = "src") -> Wire:
        block: Wire = {"version": self.version, "connector": self.kind, "name": self.name, "ts_ms": ms}
        return block | {"snapshot": snapshot, "db": db, "sequence": sequence, "ts_us": ms * 1000, "ts_ns": ms * 10**6}

    def change(self, op: str, source: Wire, before: Row | None, after: Row | None, ms: int, unit: int) -> Event:
        """An event with whole images."""
        key = self.key(before if op == "d" else after)
        event = Event("change", op, key, self.image(before), self.image(after), source, unit=unit, ms=ms)
        event.real_before, event.real_after = before, after
        return event

    def moved(self, source: Wire, before: Row, after: Row, ms: int, *, headers: bool = True) -> list[Event]:
        """Both halves of a key change: the same source block, the same unit."""
        unit = self.next_unit()
        delete = self.change("d", source, before, None, ms, unit)
        create = self.change("c", source, None, after, ms, unit)
        if headers:
            delete.half, delete.other_key = "delete", create.key
            create.half, create.other_key = "create", delete.key
        self.features["key_change"] += 1
        return [delete, create]

    def moves(self, change: Change) -> bool:
        if change.kind != "update" or change.before is None or change.after is None:
            return False
        return self.table.key_of(change.before) != self.table.key_of(change.after)

    def _row(self, op: str, source: Wire, row: Row, ms: int, tx: int, snapshot: Any) -> Event:
        event = self.change(op, source, None, row, ms, self.next_unit())
        event.snapshot, event.tx = snapshot, tx
        return event

    def _marker(self, status: str, event: Event, count: int) -> Event:
        collections = [{"data_collection": f"{self._collection()}", "event_count": count}] if count else None
        body: Wire = {"status": status, "id": self.transaction_id(event), "event_count": count or None}
        body |= {"data_collections": collections, "ts_ms": event.ms}
        self.features["transaction_records"] += 1
        kind: Kind = "begin" if status == "BEGIN" else "end"
        return Event(kind, body=body, unit=event.unit, tx=event.tx, ms=event.ms)

    def _collection(self) -> str:
        return f"src.{self.table.name}"
