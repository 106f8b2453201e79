"""MySQL and MariaDB: rows through an unbuffered cursor, as texts; positions in the binary log."""

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from ch_sink.errors import SourceError
from ch_sink.snapshot.reader import Part, SourceAddress, Value, between, key_ranges, url_options

_POS_BITS = 40
_SETTINGS = f"SET time_zone = '+00:00', sql_mode = '', sql_select_limit = {2**64 - 1}"
"""The server's own settings may cut results off, or fill a CHAR up with spaces."""
_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
"""Where the server's own level is READ UNCOMMITTED, a reader sees rows that may be rolled back."""
_ESTIMATE = "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_KEY = """
SELECT s.COLUMN_NAME FROM information_schema.STATISTICS s JOIN information_schema.COLUMNS c
USING (TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME) WHERE s.TABLE_SCHEMA = %s AND s.TABLE_NAME = %s
AND s.INDEX_NAME = 'PRIMARY' AND s.SEQ_IN_INDEX = 1 AND c.DATA_TYPE LIKE '%%int'"""


class MysqlReader:
    """One table, over one connection."""

    def __init__(self, address: SourceAddress) -> None:
        self.address = address
        self._table = f"{_quoted(address.schema)}.{_quoted(address.table)}"
        tls: dict[str, Any] = dict(url_options(address.url))
        if "ssl_ca" in tls:
            tls.update(ssl_verify_cert=True, ssl_verify_identity=True)
        try:
            self._connection = pymysql.connect(
                host=address.host,
                port=address.port,
                user=address.username,
                password=address.password,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=10,
                conv={},
                init_command=_SETTINGS,
                **tls,
            )
            with self._connection.cursor() as cursor:
                cursor.execute(_COMMITTED)
        except (pymysql.MySQLError, OSError) as error:  # the latter of a certificate's file
            raise self._failure("refuses the login", error) from None

    def position(self) -> int:
        """File number (24 bits) and position (40 bits), as versions hold them."""
        problem: pymysql.MySQLError | None = None
        for statement in ("SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"):
            try:
                with self._connection.cursor() as cursor:
                    cursor.execute(statement)
                    row = cursor.fetchone()
            except pymysql.MySQLError as error:
                problem = error
                continue
            number = re.search(r"\.(\d+)$", str(row[0])) if row else None
            return (int(number[1]) << _POS_BITS) | int(row[1]) if row and number else 0
        raise self._failure("does not show its position (needs REPLICATION CLIENT)", problem)

    def settled(self, patience: float) -> int:
        position = self.position()
        # A transaction is written to the log a moment before the engine shows it.
        time.sleep(min(1.0, patience))
        return position

    def columns(self) -> dict[str, str]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(f"SHOW COLUMNS FROM {self._table}")
                return {str(row[0]): _named(str(row[1])) for row in cursor.fetchall()}
        except pymysql.MySQLError as error:
            raise self._failure("cannot be described", error) from None

    def estimate(self) -> int:
        row = self._one(_ESTIMATE, self.address.schema, self.address.table)
        return int(row[0] or 0) if row else 0

    def parts(self, many: int) -> list[Part]:
        """Ranges of the primary key's first column, if that is an integer."""
        row = self._one(_KEY, self.address.schema, self.address.table)
        if row is None:
            return [Part("")]
        key = _quoted(str(row[0]))
        ends = self._one(f"SELECT MIN({key}), MAX({key}) FROM {self._table}")
        if ends is None or ends[0] is None:
            return [Part("")]
        return key_ranges(key, int(ends[0]), int(ends[1]), many)

    def part(self, part: Part, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        return self.rows(names, size, part.condition)

    def between(self, column: str, low: int | None, end: int | None) -> Part:
        return between(_quoted(column), low, end)

    def _one(self, query: str, *values: str) -> tuple[Any, ...] | None:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(query, values)
                found: tuple[Any, ...] | None = cursor.fetchone()
                return found
        except pymysql.MySQLError as error:
            raise self._failure("cannot be described", error) from None

    def rows(self, names: Sequence[str], size: int, condition: str = "") -> Iterator[list[tuple[Value, ...]]]:
        kinds = self.columns()
        listed = ", ".join(_selected(name, kinds.get(name, "")) for name in names)
        where = f" WHERE {condition}" if condition else ""
        cursor = self._connection.cursor(SSCursor)
        try:
            cursor.execute(f"SELECT {listed} FROM {self._table}{where}")
            while batch := cursor.fetchmany(size):
                yield list(batch)
        except pymysql.MySQLError as error:
            raise self._failure("cannot be read", error) from None
        finally:
            self._leave(cursor)

    def _leave(self, cursor: SSCursor) -> None:
        """The driver reads all rows that are left before it lets go of them, also from a server that is gone."""
        result = cursor._result
        if result is not None and result.unbuffered_active:
            result.unbuffered_active = False
            self.close()
        cursor.close()

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()

    def _failure(self, what: str, error: Exception | None) -> SourceError:
        said = error.args[-1] if error is not None and error.args else ""
        return SourceError(
            f"source {self.address.shown} {what}: {said}",
            hint="Check source.url, source.table, and the user's right to SELECT from it.",
        )


def _named(kind: str) -> str:
    """MySQL writes its own JSON otherwise than the connector does, which reads it from the binary log."""
    return "json (binary)" if kind == "json" else kind


def _selected(name: str, kind: str) -> str:
    """A FLOAT as a DOUBLE: as text it has six digits only. Of other numbers without the zeros that fill them up."""
    more = " + 0e0" if kind.startswith("float") else " + 0" if kind.endswith("zerofill") else ""
    return _quoted(name) + more


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
