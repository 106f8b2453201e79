"""PostgreSQL: rows by COPY, as texts; positions in the write-ahead log."""

import re
import time
from collections.abc import Iterator, Sequence

import psycopg
from psycopg import sql

from ch_sink.errors import SourceError
from ch_sink.snapshot.reader import Part, SourceAddress, Value, between, url_options

_SETTINGS = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c bytea_output=hex -c extra_float_digits=1 "
    # Else the amounts have the separators of the server's country, and a row policy hides rows without a word.
    "-c lc_monetary=C -c row_security=off"
)
_COLUMNS = """
SELECT a.attname, (
  WITH RECURSIVE base (oid, modifier) AS (
    SELECT a.atttypid, a.atttypmod
    UNION ALL SELECT t.typbasetype, t.typtypmod FROM base JOIN pg_type t ON t.oid = base.oid WHERE t.typtype = 'd')
  SELECT CASE WHEN t.typtype IN ('e', 'c') OR e.typtype IN ('e', 'c', 'd') THEN 'type ' ELSE '' END
    || format_type(base.oid, base.modifier)
  FROM base JOIN pg_type t ON t.oid = base.oid LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
  WHERE t.typtype <> 'd')
FROM pg_attribute a WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
"""A domain counts as the type that it restricts, as it does for the connector.

Other names that users give begin with ``type``: an enum ``image`` has nothing to do with SQL Server's IMAGE.
"""
_ELSEWHERE = re.compile(r"^.+\.(?=(hstore|citext|ltree|geometry|geography)\b)")
"""The schema of an extension's type, where that is not in the search path."""

_ESTIMATE = """
SELECT sum(greatest(c.reltuples, 0)) FROM pg_class c WHERE c.oid = %(table)s::regclass
OR c.oid IN (SELECT relid FROM pg_partition_tree(%(table)s::regclass))"""
_PAGES = """
SELECT max(pg_relation_size(c.oid) / current_setting('block_size')::int) FROM pg_class c WHERE c.relkind IN ('r', 'm')
AND (c.oid = %(table)s::regclass OR c.oid IN (SELECT relid FROM pg_partition_tree(%(table)s::regclass)))"""
"""Pages of the table, or of its largest partition: the ranges hold for each of them."""


class PostgresReader:
    """One table, over one connection."""

    def __init__(self, address: SourceAddress) -> None:
        self.address = address
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
                **dict(url_options(address.url)),  # type: ignore[arg-type]
            )
        except psycopg.Error as error:
            raise self._failure("refuses the login", error) from None

    def position(self) -> int:
        try:
            row = self._connection.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::text").fetchone()
        except psycopg.Error as error:
            raise self._failure("does not show its position", error) from None
        return int(row[0]) if row else 0

    def settled(self, patience: float) -> int:
        position = self.position()
        # Two statements: the snapshot of one would be older than the position.
        newest = self._transaction("txid_snapshot_xmax")
        deadline = time.monotonic() + patience
        while self._transaction("txid_snapshot_xmin") < newest:
            if time.monotonic() > deadline:
                return 0
            time.sleep(0.05)
        return position

    def _transaction(self, function: str) -> int:
        try:
            row = self._connection.execute(
                sql.SQL("SELECT {}(txid_current_snapshot())").format(sql.Identifier(function))
            ).fetchone()
        except psycopg.Error as error:
            raise self._failure("does not show its transactions", error) from None
        return int(row[0]) if row else 0

    def columns(self) -> dict[str, str]:
        try:
            found = self._connection.execute(_COLUMNS, (self._table.as_string(self._connection),)).fetchall()
        except psycopg.Error as error:
            raise self._failure("cannot be described", error) from None
        return {str(name): _ELSEWHERE.sub("", str(kind)) for name, kind in found}

    def estimate(self) -> int:
        try:
            row = self._connection.execute(_ESTIMATE, {"table": self._table.as_string(self._connection)}).fetchone()
        except psycopg.Error as error:
            raise self._failure("cannot be described", error) from None
        return max(0, int(row[0])) if row and row[0] is not None else 0

    def parts(self, many: int) -> list[Part]:
        """Ranges of pages, in one exported snapshot. A view or a foreign table has no pages and is one part."""
        try:
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            snapshot = self._connection.execute("SELECT pg_export_snapshot()").fetchone()
            row = self._connection.execute(_PAGES, {"table": self._table.as_string(self._connection)}).fetchone()
        except psycopg.Error as error:
            raise self._failure("cannot be divided", error) from None
        name, pages = str(snapshot[0]) if snapshot else "", int(row[0] or 0) if row else 0
        # Older servers would read the whole table for each range.
        ranges = pages >= many and self._connection.info.server_version >= 140_000
        bounds = [pages * n // many for n in range(1, many)] if ranges else []
        starts, ends = ["", *(f"ctid >= '({b},0)'" for b in bounds)], [*(f"ctid < '({b},0)'" for b in bounds), ""]
        return [Part(" AND ".join(filter(None, both)), name) for both in zip(starts, ends, strict=True)]

    def part(self, part: Part, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        try:
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if part.snapshot:
                taken = sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(part.snapshot))
                self._connection.execute(taken)
        except psycopg.Error as error:
            raise self._failure("cannot be read", error) from None
        yield from self.rows(names, size, part.condition)

    def between(self, column: str, low: int | None, end: int | None) -> Part:
        return between(sql.Identifier(column).as_string(self._connection), low, end)

    def rows(self, names: Sequence[str], size: int, condition: str = "") -> Iterator[list[tuple[Value, ...]]]:
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        where = sql.SQL(" WHERE " + condition if condition else "")
        copy = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(listed, self._table, where)
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
            f"source {self.address.shown} {what}: {text}",
            hint="Check source.url, source.table, and the user's right to SELECT from it; row policies need BYPASSRLS.",
        )
