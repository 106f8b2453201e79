"""A source database of one table: rows, row locks, transactions that overlap, and what each of them changed.

Time is a counter of ticks (one per statement, begin and commit) beside a clock in milliseconds. Connectors turn
ticks into positions: a change's tick is when it was made, a transaction's last tick is when it was committed, so
that positions of single changes are not in commit order once transactions overlap.
"""

from dataclasses import dataclass, field
from typing import Literal

from tests.model.shapes import Key, Row, TableShape

Kind = Literal["insert", "update", "delete", "truncate"]


@dataclass(frozen=True, slots=True)
class Change:
    """One row change. ``row`` is its place within its statement."""

    kind: Kind
    row_id: int
    before: Row | None
    after: Row | None
    tick: int
    ms: int
    statement: int
    row: int


@dataclass(slots=True)
class Transaction:
    number: int
    begin_tick: int
    changes: list[Change] = field(default_factory=list)
    commit_tick: int = 0
    commit_ms: int = 0
    rows_after: list[Row] = field(default_factory=list)
    """All committed rows right after this transaction's commit."""

    def statements(self) -> list[list[Change]]:
        """Its changes, grouped by statement."""
        groups: dict[int, list[Change]] = {}
        for change in self.changes:
            groups.setdefault(change.statement, []).append(change)
        return list(groups.values())


class Refused(Exception):
    """The database would make the statement wait or fail (lock, duplicate key): nothing was changed."""


class SourceDatabase:
    """One table. Statements raise Refused and leave everything as it was when they cannot be carried out."""

    def __init__(self, table: TableShape, ms: int = 1_795_268_200_000, step_ms: int = 7) -> None:
        self.table = table
        self.tick = 1
        self.ms = ms
        self.step_ms = step_ms
        self.live: dict[int, Row] = {}
        self.committed: dict[int, Row] = {}
        self.history: list[Transaction] = []
        """Committed transactions in commit order."""
        self.rolled_back = 0
        self._open: list[Transaction] = []
        self._row_locks: dict[int, Transaction] = {}
        self._key_locks: dict[Key, Transaction] = {}
        self._table_lock: Transaction | None = None
        self._next_row = 1
        self._next_statement = 1

    def advance(self, ms: int = 0) -> None:
        self.tick += 1
        self.ms += self.step_ms + ms

    def begin(self) -> Transaction:
        self.advance()
        transaction = Transaction(len(self.history) + len(self._open) + 1, self.tick)
        self._open.append(transaction)
        return transaction

    def free_rows(self, tx: Transaction) -> list[int]:
        """Rows that the transaction may change, in order of their making."""
        if self._table_lock not in (None, tx):
            return []
        return [row_id for row_id in self.live if self._row_locks.get(row_id, tx) is tx]

    def insert(self, tx: Transaction, row: Row) -> int:
        self._open_for(tx)
        key = self.table.key_of(row)
        if self.table.key:
            self._claim(tx, key)
            if any(self.table.key_of(other) == key for other in self.live.values()):
                raise Refused(f"duplicate key {key}")
        row_id = self._next_row
        self._next_row += 1
        self._apply(tx, [("insert", row_id, None, dict(row))])
        return row_id

    def update(self, tx: Transaction, rows: dict[int, Row], *, deferred: bool = False) -> None:
        """One statement: new values of some columns, per row, in the given order.

        Uniqueness is checked after each row, or at the end when the constraint is ``deferred``.
        """
        changes: list[tuple[Kind, int, Row | None, Row | None]] = []
        trial = dict(self.live)
        for row_id, values in rows.items():
            self._free(tx, row_id)
            before = trial[row_id]
            after = before | values
            if self.table.key_of(after) != self.table.key_of(before):
                self._claim(tx, self.table.key_of(before))
                self._claim(tx, self.table.key_of(after))
            trial[row_id] = after
            if not deferred:
                self._unique(trial)
            changes.append(("update", row_id, before, after))
        self._unique(trial)
        self._apply(tx, changes)

    def delete(self, tx: Transaction, row_ids: list[int]) -> None:
        for row_id in row_ids:
            self._free(tx, row_id)
        self._apply(tx, [("delete", row_id, self.live[row_id], None) for row_id in row_ids])

    def truncate(self, tx: Transaction) -> None:
        if any(other is not tx and other.changes for other in self._open):
            raise Refused("another transaction holds row locks")
        if any(owner is not tx for owner in self._row_locks.values()):
            raise Refused("another transaction holds row locks")
        self._open_for(tx)
        self._table_lock = tx
        self.advance()
        tx.changes.append(Change("truncate", 0, None, None, self.tick, self.ms, self._next_statement, 0))
        self._next_statement += 1
        self.live.clear()

    def commit(self, tx: Transaction) -> None:
        self.advance()
        tx.commit_tick, tx.commit_ms = self.tick, self.ms
        for change in tx.changes:
            if change.kind == "truncate":
                self.committed.clear()
            elif change.after is None:
                del self.committed[change.row_id]
            else:
                self.committed[change.row_id] = change.after
        tx.rows_after = [dict(row) for row in self.committed.values()]
        self._release(tx)
        if tx.changes:
            tx.number = len(self.history) + 1
            self.history.append(tx)

    def rollback(self, tx: Transaction) -> None:
        """Undo. Positions the transaction used stay used; connectors never report it."""
        self.advance()
        if any(change.kind == "truncate" for change in tx.changes):
            self.live = dict(self.committed)
        else:
            for change in reversed(tx.changes):
                if change.before is None:
                    del self.live[change.row_id]
                else:
                    self.live[change.row_id] = change.before
        self.rolled_back += bool(tx.changes)
        self._release(tx)

    def rows(self) -> list[Row]:
        """The committed rows, sorted: the truth."""
        return sorted((dict(row) for row in self.committed.values()), key=lambda row: repr(self.table.canonical(row)))

    def _apply(self, tx: Transaction, changes: list[tuple[Kind, int, Row | None, Row | None]]) -> None:
        self.advance()
        for place, (kind, row_id, before, after) in enumerate(changes):
            if place:
                self.tick += 1
            self._row_locks[row_id] = tx
            for image in (before, after):
                if image is not None and self.table.key:
                    self._key_locks[self.table.key_of(image)] = tx
            if after is None:
                del self.live[row_id]
            else:
                self.live[row_id] = after
            tx.changes.append(Change(kind, row_id, before, after, self.tick, self.ms, self._next_statement, place))
        self._next_statement += 1

    def _open_for(self, tx: Transaction) -> None:
        if self._table_lock not in (None, tx):
            raise Refused("the table is locked by a truncate")

    def _free(self, tx: Transaction, row_id: int) -> None:
        self._open_for(tx)
        if self._row_locks.get(row_id, tx) is not tx:
            raise Refused(f"row {row_id} is locked")

    def _claim(self, tx: Transaction, key: Key) -> None:
        if self._key_locks.get(key, tx) is not tx:
            raise Refused(f"key {key} is locked")

    def _unique(self, rows: dict[int, Row]) -> None:
        if self.table.key and len({self.table.key_of(row) for row in rows.values()}) < len(rows):
            raise Refused("duplicate key")

    def _release(self, tx: Transaction) -> None:
        self._open.remove(tx)
        if self._table_lock is tx:
            self._table_lock = None
        self._row_locks = {row: owner for row, owner in self._row_locks.items() if owner is not tx}
        self._key_locks = {key: owner for key, owner in self._key_locks.items() if owner is not tx}
