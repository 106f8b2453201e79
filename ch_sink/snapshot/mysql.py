"""MySQL and MariaDB: rows through an unbuffered cursor, as texts; positions in the binary log."""

import re
from collections.abc import Iterator, Sequence

import pymysql
from pymysql.cursors import SSCursor

from ch_sink.errors import SourceError
from ch_sink.snapshot.reader import SourceAddress, Value

__all__ = ["MysqlReader"]

_POS_BITS = 40


class MysqlReader:
    """One table, over one connection."""

    def __init__(self, address: SourceAddress) -> None:
        self._address = address
        self._table = f"{_quoted(address.schema)}.{_quoted(address.table)}"
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
                init_command="SET time_zone = '+00:00'",
            )
        except pymysql.MySQLError as error:
            raise self._failure("does not let ch_sink in", error) from None

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
        raise self._failure("does not tell its position (needs REPLICATION CLIENT)", problem)

    def columns(self) -> dict[str, str]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(f"SHOW COLUMNS FROM {self._table}")
                return {str(row[0]): str(row[1]) for row in cursor.fetchall()}
        except pymysql.MySQLError as error:
            raise self._failure("cannot be described", error) from None

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        listed = ", ".join(_quoted(name) for name in names)
        try:
            with self._connection.cursor(SSCursor) as cursor:
                cursor.execute(f"SELECT {listed} FROM {self._table}")
                while batch := cursor.fetchmany(size):
                    yield list(batch)
        except pymysql.MySQLError as error:
            raise self._failure("cannot be read", error) from None

    def close(self) -> None:
        self._connection.close()

    def _failure(self, what: str, error: pymysql.MySQLError | None) -> SourceError:
        said = error.args[-1] if error is not None and error.args else ""
        return SourceError(
            f"source {self._address.shown} {what}: {said}",
            hint="Check source.url, the user, and its right to SELECT from the table.",
        )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
