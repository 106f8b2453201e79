"""A table in each engine: rows that writers change all the time, and quiet ones where differences are planted.

The planted differences are made by SQL of this file's own, and noted by key, kind and column.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ch_sink.clickhouse import Client
from tests.real.shapes import Dialect, Shape, quoted
from tests.real.writers import Source

_BUSY = 300
"""Ids that writers change."""
_QUIET, _DELETED = range(10_001, 13_001), range(13_001, 13_201)
_ENGINES = {
    "acct_replacing": "replacing",
    "acct_collapsing": "collapsing",
    "acct_versioned": "versioned-collapsing",
    "acct_keyless": "append",
}
_COLUMNS = (
    "id BIGINT NOT NULL{key}, owner VARCHAR(40), amount DECIMAL(20,4) NOT NULL, n BIGINT, day DATE, "
    "changed TIMESTAMP(6) NULL, note VARCHAR(60)"
)


def _values(rng: Random, id_: int) -> list[str]:
    return [
        str(id_),
        rng.choice(["NULL", "''", quoted(f"näme {rng.randint(0, 9)}"), quoted("l'été 🦀")]),
        f"{rng.randint(-(10**6), 10**6)}.{rng.randint(0, 9999):04d}",
        rng.choice(["NULL", str(rng.randint(-(2**60), 2**60))]),
        rng.choice(["NULL", "'2024-02-29'", "'1970-01-01'"]),
        rng.choice(["NULL", quoted(f"2026-01-{rng.randint(1, 28):02d} 12:00:00.{rng.randint(0, 999999):06d}")]),
        quoted(f"note {rng.random()}"),
    ]


def _step(table: str) -> Any:
    def step(rng: Random, sql: Dialect) -> list[str]:
        id_, other = rng.randint(1, _BUSY), rng.randint(1, _BUSY)
        values = _values(rng, id_)
        names = "id, owner, amount, n, day, changed, note"
        row = f"INSERT INTO {table} ({names}) VALUES ({', '.join(values)})"
        if table != "acct_keyless":
            row = sql.insert(table, names, values)
        free = f"NOT EXISTS (SELECT 1 FROM {table} b WHERE b.id = {other})"
        return rng.choice(
            [
                [row],
                [row],
                [f"UPDATE {table} SET amount = amount + 1, n = {values[3]} WHERE id = {id_}"],
                [f"UPDATE {table} SET owner = {values[1]}, changed = {values[5]} WHERE id = {id_}"],
                [f"UPDATE {table} SET id = {other} WHERE id = {id_} AND {free}"],
                [f"DELETE FROM {table} WHERE id = {id_}"],
                [f"DELETE FROM {table} WHERE id = {id_}", row],
            ]
        )

    return step


def account_shapes(source: str) -> list[Shape]:
    """The same table for each engine."""
    found = []
    for name, engine in _ENGINES.items():
        ddl = [f"CREATE TABLE {name} ({_COLUMNS.format(key='' if name == 'acct_keyless' else ' PRIMARY KEY')})"]
        if source == "postgres" and name == "acct_keyless":
            ddl.append(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        found.append(Shape(name, {source: ddl}, _step(name), engine))
    return found


def fill_quiet(source: Source) -> None:
    """Rows that nobody changes, and some that are to be deleted later."""
    rng = Random(f"quiet {source.name}")
    with source.session() as cursor:
        for shape in account_shapes(source.name):
            for first in range(_QUIET.start, _DELETED.stop, 400):
                rows = [f"({', '.join(_values(rng, id_))})" for id_ in range(first, min(first + 400, _DELETED.stop))]
                cursor.execute(f"INSERT INTO {shape.name} VALUES {', '.join(rows)}")


def delete_some(source: Source) -> None:
    """Delete the rows that are to be deleted."""
    with source.session() as cursor:
        for shape in account_shapes(source.name):
            cursor.execute(f"DELETE FROM {shape.name} WHERE id >= {_DELETED.start}")


@dataclass
class Planting:
    """Differences in one of the tables in ClickHouse."""

    client: Client
    database: str
    table: str
    wanted: dict[int, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """Id → kind, columns that differ. In the table without a key a row that differs is one missing and one extra."""

    def plant(self) -> None:
        """250 of them."""
        ids = self._some()
        self._change(ids, 50, "n", "ifNull(n, 0) + 1")
        self._change(ids, 25, "note", "concat(ifNull(note, ''), ' ')")
        self._change(ids, 50, "owner", "NULL", "owner IS NOT NULL")
        self._change(ids, 25, "amount", "toDecimal128('9999999999999999.9999', 4)")
        self._change(ids, 15, "day", "toDate32('2299-12-31')")
        missing = self._take(ids, 40)
        self._gone(missing)
        self._add(self._take(ids, 20), 1_000_000, lives=False)
        self._add(self._take(ids, 25), _DELETED.start, lives=True)
        self.wanted |= dict.fromkeys(missing, ("missing", ()))

    @property
    def _name(self) -> str:
        return f"{self.database}.{self.table}"

    def _some(self) -> Iterator[int]:
        ids = list(_QUIET)
        Random(self._name).shuffle(ids)
        return iter(ids)

    def _take(self, ids: Iterator[int], many: int, condition: str = "1") -> list[int]:
        """The next ids whose rows meet the condition."""
        found: list[int] = []
        fits = {int(r["id"]) for r in self.client.rows(f"SELECT id FROM {self._name}_current WHERE {condition}")}
        while len(found) < many:
            if (id_ := next(ids)) in fits:
                found.append(id_)
        return found

    def _rows(self, ids: list[int]) -> str:
        final = "" if self.table == "acct_keyless" else " FINAL"
        return f"FROM (SELECT * FROM {self._name}{final} WHERE id IN ({', '.join(map(str, ids))}))"

    def _insert(self, *selects: str) -> None:
        sql = " UNION ALL ".join(selects)
        self.client.command(f"INSERT INTO {self._name} SELECT * FROM ({sql})", settings={"max_threads": 1})

    def _minus(self, ids: list[int]) -> str:
        op = ", 'd' AS _op" if self.table == "acct_keyless" else ""
        return f"SELECT * REPLACE (toInt8(-1) AS _sign{op}) {self._rows(ids)}"

    def _change(self, ids: Iterator[int], many: int, column: str, value: str, condition: str = "1") -> None:
        chosen = self._take(ids, many, condition)
        newer = ", _version + 1 AS _version" if self.table == "acct_versioned" else ""
        changed = f"SELECT * REPLACE ({value} AS {column}{newer}) {self._rows(chosen)}"
        self._insert(*([] if self.table == "acct_replacing" else [self._minus(chosen)]), changed)
        self.wanted |= dict.fromkeys(chosen, ("different", (column,)))

    def _gone(self, ids: list[int]) -> None:
        if self.table == "acct_replacing":
            self._insert(f"SELECT * REPLACE (1 AS _is_deleted) {self._rows(ids)}")
        else:
            self._insert(self._minus(ids))

    def _add(self, ids: list[int], first: int, *, lives: bool) -> None:
        """Rows under other ids, from ``first`` on; ``lives``: those of rows which the source has deleted."""
        made = list(range(first, first + len(ids)))
        if lives and self.table == "acct_replacing":
            newest = f"SELECT * FROM {self._name} WHERE id IN ({', '.join(map(str, made))}) ORDER BY _version DESC"
            self._insert(f"SELECT * REPLACE (0 AS _is_deleted) FROM ({newest} LIMIT 1 BY id)")
        else:
            self._insert(f"SELECT * REPLACE (toInt64(transform(id, {ids}, {made}, 0)) AS id) {self._rows(ids)}")
        self.wanted |= dict.fromkeys(made, ("extra", ()))
