"""Draws what happens at the source: few keys, hot ones, and the hard cases often."""

from collections import Counter
from dataclasses import dataclass
from datetime import date, timedelta

from tests.model.choose import Chooser
from tests.model.knobs import Knobs
from tests.model.shapes import Row, TableShape
from tests.model.source import Refused, SourceDatabase, Transaction

_TAGS = ("a", None, "", "b", 'q"uote\\back', "é漢🦀\nline\ttab", "not __debezium_unavailable_value", "NULL")
_TEXTS = ("x", "y" * 40, None, "z" * 64, "", "long é漢🦀 \"'\\ " * 6)
_DAYS = (*(date(2026, 1, 1) + timedelta(days=17 * step) for step in range(5)), date(1969, 12, 31))
_WORDS = ("a", "b", "é漢🦀", 'q"\\\n{x},[y]')


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the source and its connector allow."""

    changes: bool = True
    """False: inserts and truncates only (no replica identity)."""
    direct_swaps: bool = False
    truncate: bool = True
    """SQL Server refuses to truncate a captured table."""
    truncate_alone: bool = True
    """The source commits before and after a truncate by itself."""


class Script:
    """Carries out drawn operations on a database until all transactions are closed."""

    def __init__(self, choose: Chooser, database: SourceDatabase, knobs: Knobs, can: Abilities) -> None:
        self.choose, self.database, self.knobs, self.can = choose, database, knobs, can
        self.table: TableShape = database.table
        self.features: Counter[str] = Counter()
        self.slots: list[Transaction | None] = [None]
        self._gone: list[Row] = []

    def fill(self, rows: int) -> None:
        """The rows that are there before any connector looks."""
        tx = self.database.begin()
        for _ in range(rows):
            self._try(lambda: self.database.insert(tx, self.new_row()))
        self.database.commit(tx)

    def touch(self, operations: int) -> None:
        """Inserts and plain updates only: what may happen while a snapshot is started again."""
        tx = self.database.begin()
        for _ in range(operations):
            if self.choose.chance(40) or not self.can.changes:
                self._try(lambda: self.database.insert(tx, self.new_row()))
            else:
                self._update(tx)
        self.database.commit(tx)

    def run(self, operations: int, overlapping: bool) -> None:
        self.slots = [None] * (3 if overlapping else 1)
        for _ in range(operations):
            slot = self.choose.integer(0, len(self.slots) - 1)
            tx = self.slots[slot]
            if tx is None:
                tx = self.slots[slot] = self.database.begin()
            self._operation(tx)
            if self.choose.chance(40):
                self._close(slot)
        for slot in range(len(self.slots)):
            self._close(slot)

    def _close(self, slot: int) -> None:
        tx = self.slots[slot]
        if tx is None:
            return
        if self.knobs.rollbacks and tx.changes and self.choose.chance(6):
            self.database.rollback(tx)
            self.features["rollback"] += 1
        else:
            if any(other and other is not tx and other.begin_tick < self.database.tick for other in self.slots):
                self.features["overlap"] += bool(tx.changes)
            self.database.commit(tx)
        self.slots[slot] = None

    def _operation(self, tx: Transaction) -> None:
        actions = [self._insert]
        if self.can.changes:
            actions += [self._update] * 4 + [self._insert, self._delete, self._reinsert, self._noop]
            if self.table.key and self.knobs.key_changes:
                actions += [self._move] * 3 + [self._back_and_forth, self._shift]
                if self.knobs.swaps:
                    actions += [self._swap] * self.knobs.swap_share
        if self.can.truncate and self.knobs.truncate != "none" and self.choose.chance(6):
            actions = [self._truncate]
        self._try(lambda: self.choose.choice(actions)(tx))
        if not self.choose.chance(85):
            self.database.advance(ms=self.choose.integer(0, 900))

    def _try(self, action: object) -> None:
        try:
            action()  # type: ignore[operator]
        except Refused:
            self.features["refused"] += 1

    def new_row(self) -> Row:
        row: Row = {}
        for column in self.table.columns:
            row[column.name] = self.value(column.name)
        return row

    def value(self, name: str) -> int | str | date | None:
        choose = self.choose
        if name == "id":
            return choose.integer(1, 4) if choose.chance(97) else 9_007_199_254_740_993
        if name == "k":
            return choose.integer(0, 2) - 1
        if name == "s":
            return choose.choice(_WORDS)
        if name in ("n", "a"):
            return None if choose.chance(15) else choose.integer(0, 3) if choose.chance(80) else -(2**31)
        if name == "tag":
            return choose.choice(_TAGS)
        if name == "big":
            return choose.choice(_TEXTS)
        if name == "place":
            return choose.integer(0, 3)
        return choose.choice(_DAYS)

    def _new_key(self) -> Row:
        return {name: self.value(name) for name in self.table.key}

    def _pick(self, tx: Transaction) -> int:
        rows = self.database.free_rows(tx)
        if not rows:
            raise Refused("no row to change")
        # The oldest row is the hot one.
        return rows[max(self.choose.integer(-3, len(rows) - 1), 0)]

    def _insert(self, tx: Transaction) -> None:
        self.database.insert(tx, self.new_row())

    def _some_values(self) -> Row:
        names = [column.name for column in self.table.columns if column.name not in self.table.key]
        chosen = {self.choose.choice(names) for _ in range(self.choose.integer(1, 3))}
        return {name: self.value(name) for name in names if name in chosen}

    def _update(self, tx: Transaction) -> None:
        rows = {self._pick(tx): self._some_values()}
        if self.choose.chance(15):
            rows |= {self._pick(tx): self._some_values()}
        for row_id, values in rows.items():
            before = self.database.live[row_id]
            if any(values.get(name, before.get(name)) != before.get(name) for name in ("place", "day")):
                self.features["place_move"] += 1
        self.database.update(tx, rows)

    def _noop(self, tx: Transaction) -> None:
        self.database.update(tx, {self._pick(tx): {}})
        self.features["noop_update"] += 1

    def _delete(self, tx: Transaction) -> None:
        row_ids = [self._pick(tx)]
        if self.choose.chance(20):
            row_ids = list(dict.fromkeys([*row_ids, self._pick(tx)]))
        self.database.delete(tx, row_ids)

    def _reinsert(self, tx: Transaction) -> None:
        """Delete and insert of one key in one transaction."""
        row_id = self._pick(tx)
        old = dict(self.database.live[row_id])
        self.database.delete(tx, [row_id])
        self.database.insert(tx, old | self._some_values())
        self.features["reinsert"] += 1

    def _move(self, tx: Transaction) -> None:
        values = self._new_key() | (self._some_values() if self.choose.chance(30) else {})
        self.database.update(tx, {self._pick(tx): values})

    def _back_and_forth(self, tx: Transaction) -> None:
        """A→B→A, or with a change of the row at B."""
        row_id = self._pick(tx)
        old = {name: self.database.live[row_id][name] for name in self.table.key}
        new = self._new_key()
        self.database.update(tx, {row_id: new})
        if self.choose.chance(40):
            self.database.update(tx, {row_id: self._some_values()})
        self.database.update(tx, {row_id: old})
        self.features["back_and_forth"] += old != new

    def _shift(self, tx: Transaction) -> None:
        """``SET id = id + 1`` of several rows in one statement, in an order in which no row is in the way."""
        name = "id" if "id" in self.table.key else "k"
        rows = self.database.free_rows(tx)
        rows.sort(key=lambda row_id: -int(str(self.database.live[row_id][name])))
        count = self.choose.integer(1, 3)
        moved: dict[int, Row] = {}
        for row_id in rows[:count]:
            moved[row_id] = {name: int(str(self.database.live[row_id][name])) + 1}
        if not moved:
            raise Refused("no row to shift")
        self.database.update(tx, moved)
        self.features["shift"] += len(moved) > 1

    def _swap(self, tx: Transaction) -> None:
        """Two rows exchange their keys: in one statement with a deferred constraint, else through a third key."""
        first, second = self._pick(tx), self._pick(tx)
        if first == second:
            raise Refused("one row only")
        one, two = self.database.live[first], self.database.live[second]
        key_one = {name: one[name] for name in self.table.key}
        key_two = {name: two[name] for name in self.table.key}
        if self.can.direct_swaps and self.knobs.rotations and self.choose.chance(30):
            self._rotate(tx, {first: key_one, second: key_two})
            return
        if self.can.direct_swaps:
            if self.choose.chance(25):
                rest = [column.name for column in self.table.columns if column.name not in self.table.key]
                self.database.update(tx, {second: {name: one[name] for name in rest}})
                two = self.database.live[second]
            self.database.update(tx, {first: key_two, second: key_one}, deferred=True)
            self.features["swap"] += 1
            rest = [column.name for column in self.table.columns if column.name not in self.table.key]
            self.features["swap_of_equal_rows"] += all(one[name] == two[name] for name in rest)
            return
        spare = dict(key_one)
        spare |= {"id": 900} if "id" in spare else {"k": 900}
        self.database.update(tx, {first: spare})
        self.database.update(tx, {second: key_one})
        self.database.update(tx, {first: key_two})
        self.features["swap_by_third_key"] += 1

    def _rotate(self, tx: Transaction, keys: dict[int, Row]) -> None:
        """These rows and a third one take each other's keys, in one statement with a deferred constraint."""
        third = self._pick(tx)
        if third in keys:
            raise Refused("two rows only")
        keys[third] = {name: self.database.live[third][name] for name in self.table.key}
        rows, taken = list(keys), list(keys.values())
        self.database.update(tx, dict(zip(rows, taken[1:] + taken[:1], strict=True)), deferred=True)
        self.features["rotation"] += 1

    def _truncate(self, tx: Transaction) -> None:
        if (self.can.truncate_alone or self.knobs.truncate == "alone") and tx.changes:
            raise Refused("a truncate must be alone here")
        self.database.truncate(tx)
        self.features["truncate"] += 1
        if self.can.truncate_alone or self.knobs.truncate == "alone":
            slot = self.slots.index(tx)
            self.database.commit(tx)
            self.slots[slot] = None
