"""Tables of PostgreSQL that change without end: keys move, large values are left out, columns are added.

What makes a stream hardest: with REPLICA IDENTITY DEFAULT a deleted row comes as its key, an update leaves out large
values that it did not change, and the halves of a key change are in two partitions.
"""

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.hand import PLACEHOLDER, Event, key_change, postgres
from tests.support.shop import Shop

__all__ = ["RoughShop"]

_KEYS = 60


@dataclass
class RoughShop(Shop):
    """A Shop with such tables; ``whole`` has their rows: table → key → row."""

    whole: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    """Columns of all tables that were not there at first."""
    records: dict[str, int] = field(default_factory=dict)
    """Records per topic, tombstones included."""
    _lsn: int = 1_000
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def add(self, table: str, engine: str = "replacing", *, partitions: int = 3, **more: Any) -> Path:
        file = super().add(table, engine, partitions=partitions, evolve="add_columns", **more)
        self.records[table] = 0
        self.whole[table] = {}  # from now on it changes
        return file

    def create(self, table: str, engine: str, columns: str = "") -> None:
        super().create(table, engine, f"big Nullable(String), {columns}")

    def add_column(self) -> None:
        """All source tables get another column; rows have NULL there until they are updated."""
        with self._guard:
            self.added.append(f"c{len(self.added) + 1}")
            for rows in self.whole.values():
                for row in rows.values():
                    row[self.added[-1]] = None

    def change(self, table: str, events: int = 1, **_: Any) -> None:
        with self._guard:
            for _ in range(events if table in self.whole else 0):
                self._transaction(table)

    def _transaction(self, table: str) -> None:
        rows, drawn = self.whole[table], self._random.random()
        self._lsn += 100
        commit, lsn = self._lsn - 70, self._lsn
        id_ = self._random.randrange(_KEYS)
        old = rows.get(id_)
        if old is None:
            rows[id_] = self._row(id_, f"big {id_} {lsn} " + "x" * 200)
            self._post(table, [postgres("c", {"id": id_}, None, rows[id_], commit, lsn)])
            return
        gone = dict.fromkeys(old, None) | {"id": id_}
        if drawn < 0.15:
            del rows[id_]
            deleted = postgres("d", {"id": id_}, gone, None, commit, lsn)
            self._post(table, [deleted, Event({"id": id_}, None)])
            return
        free = [k for k in range(_KEYS) if k not in rows]
        moves = drawn < 0.4 and bool(free)
        to = self._random.choice(free) if moves else id_
        kept = self._random.random() < 0.7
        row = self._row(to, old["big"] if kept else f"big {to} {lsn} " + "y" * 200)
        after = {**row, "big": PLACEHOLDER} if kept else row
        rows[to] = row
        if not moves:
            self._post(table, [postgres("u", {"id": id_}, None, after, commit, lsn)])
            return
        del rows[id_]
        left = postgres("d", {"id": id_}, gone, None, commit, lsn)
        self._post(table, key_change(left, postgres("c", {"id": to}, None, after, commit, lsn)))

    def _row(self, id_: int, big: str) -> dict[str, Any]:
        more = {name: self._lsn if self._random.random() < 0.8 else None for name in self.added}
        return {"id": id_, "v": f"{id_}-{self._lsn}", "big": big, **more}

    def _post(self, table: str, events: list[Event]) -> None:
        for event in events:
            value = None if event.value is None else json.dumps(event.value).encode()
            headers = list(event.headers or [])
            self._producer.produce(
                self.topic(table), key=json.dumps(event.key).encode(), value=value, headers=headers or None
            )
            self.records[table] += 1
            self.sent[table] += value is not None
        self._producer.poll(0)

    def _difference(self, table: str) -> object:
        place, engine = f"{self.database}.{table}", self.engines[table]
        found = {int(r["id"]): dict(r) for r in self.client.rows(f"SELECT * FROM {place}_current")}
        # A column in which no event has had a value yet is not in the table.
        wanted = {k: {n: v for n, v in row.items() if v is not None} for k, row in self.whole[table].items()}
        have = {k: {n: v for n, v in row.items() if v is not None} for k, row in found.items()}
        if have != wanted:
            keys = sorted(k for k in have.keys() | wanted.keys() if have.get(k) != wanted.get(k))
            return {k: {"is": have.get(k), "should be": wanted.get(k)} for k in keys[:3]} | {"keys": len(keys)}
        return self._stored_wrong(table, engine)

    def _stored_wrong(self, table: str, engine: str) -> object:
        """What is wrong with the signs or the number of rows."""
        if engine in ("collapsing", "versioned"):
            return self.wrong_sums(table)
        if engine == "append":
            [counted] = self.client.rows(f"SELECT count() AS n FROM {self.database}.{table}")
            return None if counted["n"] == self.sent[table] else {**counted, "sent": self.sent[table]}
        return None
