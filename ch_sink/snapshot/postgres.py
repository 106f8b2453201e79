"""PostgreSQL: rows by COPY, as texts; positions in the write-ahead log."""

from collections.abc import Iterator, Sequence

import psycopg
from psycopg import sql

from ch_sink.errors import SourceError
from ch_sink.snapshot.reader import SourceAddress, Value

__all__ = ["PostgresReader"]

_SETTINGS = "-c timezone=UTC -c datestyle=ISO -c intervalstyle=iso_8601 -c bytea_output=hex -c extra_float_digits=1"
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""


class PostgresReader:
    """One table, over one connection."""

    def __init__(self, address: SourceAddress) -> None:
        self._address = address
        self._table = sql.Identifier(address.schema, address.table)
        try:
            self._connection = psycopg.connect(
                host=address.host,
                port=address.port,
                dbname=address.database,
                user=address.username or None,
                password=address.password or None,
                autocommit=True,
                connect_timeout=10,
                client_encoding="utf8",
                options=_SETTINGS,
            )
        except psycopg.Error as error:
            raise self._failure("does not let ch_sink in", error) from None

    def position(self) -> int:
        try:
            row = self._connection.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::text").fetchone()
        except psycopg.Error as error:
            raise self._failure("does not tell its position", error) from None
        return int(row[0]) if row else 0

    def columns(self) -> dict[str, str]:
        try:
            found = self._connection.execute(_COLUMNS, (self._table.as_string(self._connection),)).fetchall()
        except psycopg.Error as error:
            raise self._failure("cannot be described", error) from None
        return {str(name): str(kind) for name, kind in found}

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        copy = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(listed, self._table)
        try:
            with self._connection.cursor() as cursor, cursor.copy(copy) as out:
                batch: list[tuple[Value, ...]] = []
                for row in out.rows():
                    batch.append(row)
                    if len(batch) >= size:
                        yield batch
                        batch = []
                if batch:
                    yield batch
        except psycopg.Error as error:
            raise self._failure("cannot be read", error) from None

    def close(self) -> None:
        self._connection.close()

    def _failure(self, what: str, error: psycopg.Error) -> SourceError:
        text = str(error).strip().split("\n")[0]
        return SourceError(
            f"source {self._address.shown} {what}: {text}",
            hint="Check source.url, the user, and its right to SELECT from the table.",
        )
