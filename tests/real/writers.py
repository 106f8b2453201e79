"""Sessions that change a source at the same time, in transactions that overlap."""

import threading
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import psycopg
import pymysql

from tests.real.shapes import Dialect, Shape, shapes
from tests.real.stand.mariadb import MariaDB
from tests.real.stand.postgres import PostgreSQL

Source = MariaDB | PostgreSQL

# What concurrent sessions do to each other: lock wait, deadlock, duplicate key. The transaction is rolled back.
_EXPECTED = {1205, 1213, 1062, "55P03", "40P01", "23505"}


def make_tables(source: Source, rng: Random, steps: int) -> None:
    """All shapes' tables, with rows from this many steps each, and the table of marks."""
    sql = Dialect(source.name)
    with source.session() as cursor:
        for shape in shapes(source.name):
            for statement in shape.ddl[source.name]:
                cursor.execute(statement)
        cursor.execute("CREATE TABLE mark (id INT NOT NULL PRIMARY KEY)")
    write(source, rng, sql, steps)


def write(source: Source, rng: Random, sql: Dialect, steps: int, mine: Sequence[Shape] = ()) -> None:
    """This many steps on each table, or on each of ``mine``, each a transaction."""
    connection = source.connect()
    for shape in mine or shapes(source.name):
        for _ in range(steps):
            _transaction(connection, shape.step(rng, sql))
    connection.close()


def add_columns(source: Source) -> None:
    """Each of the shapes' later columns by a statement of its own, while writers hold locks."""
    for shape in shapes(source.name):
        for column in shape.later:
            for attempt in range(10):
                with source.session() as cursor:
                    try:
                        cursor.execute(f"ALTER TABLE {shape.name} ADD COLUMN {column}")
                    except (pymysql.MySQLError, psycopg.Error) as error:
                        if attempt == 9 or _code(error) not in _EXPECTED:
                            raise
                    else:
                        break


class Writer(threading.Thread):
    """Random transactions until told to stop, about ``rate`` a second; ``done`` counts those committed."""

    def __init__(self, source: Source, seed: str, rate: float, mine: Sequence[Shape] = ()) -> None:
        """``mine``: the tables that it writes to, if not all."""
        super().__init__(name=f"writer {source.name} {seed}", daemon=True)
        self.done = 0
        self.error: Exception | None = None
        self._mine = list(mine or shapes(source.name))
        self.source, self._rng, self._rate = source, Random(f"{source.name} {seed}"), rate
        self.over = threading.Event()
        self.grown = threading.Event()
        """Set once the shapes' later columns are there."""

    def run(self) -> None:
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - told to the test by ``end``
            self.error = error

    def end(self) -> int:
        """Let the last transaction finish. Raises what ended the thread early."""
        self.over.set()
        self.join(60)
        if self.error is not None:
            raise self.error
        return self.done

    def _write(self) -> None:
        rng, connection = self._rng, self.source.connect()
        mine = self._mine
        while not self.over.is_set():
            sql = Dialect(self.source.name, self.grown.is_set())
            shape = rng.choice(mine)
            if shape.alone is not None and rng.random() < 0.1:
                statements = shape.alone(rng, sql)
                pauses, keep = 0.0, True
            else:
                statements = _several(rng, sql, shape, mine)
                pauses, keep = rng.choice([0.0, 0.0, 0.01, 0.05]), rng.random() > 0.05
            self.done += _transaction(connection, statements, pauses, keep=keep)
            time.sleep(rng.expovariate(self._rate))
        connection.close()


def _several(rng: Random, sql: Dialect, shape: Shape, mine: list[Shape]) -> list[str]:
    """Steps on one table, often on others too."""
    chosen = [shape] * rng.randint(1, 3) + [rng.choice(mine) for _ in range(rng.randint(0, 2))]
    return [statement for one in chosen for statement in one.step(rng, sql)]


def _transaction(connection: Any, statements: list[str], pause: float = 0.0, *, keep: bool = True) -> bool:
    """Whether it was committed. Raises what concurrency does not explain."""
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                time.sleep(pause)
        connection.commit() if keep else connection.rollback()
    except (pymysql.MySQLError, psycopg.Error) as error:
        connection.rollback()
        if _code(error) not in _EXPECTED:
            raise RuntimeError(f"{error}: {statements}") from error
        return False
    return keep


def _code(error: Exception) -> Any:
    return error.sqlstate if isinstance(error, psycopg.Error) else error.args[0]
