"""PostgreSQL: rows by COPY, as texts; positions in the write-ahead log."""

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import sql

from ch_sink.snapshot.reader import Part, SourceAddress, SqlReader, Value, url_options

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
SELECT sum(greatest(c.reltuples, 0)) FROM pg_class c WHERE c.oid = %s::regclass
OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::regclass))"""
_PAGES = """
SELECT max(pg_relation_size(c.oid) / current_setting('block_size')::int) FROM pg_class c WHERE c.relkind IN ('r', 'm')
AND (c.oid = %s::regclass OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::regclass)))"""
"""Pages of the table, or of its largest partition: the ranges hold for each of them."""


class PostgresReader(SqlReader):
    """One table, over one connection."""

    _connection: psycopg.Connection[tuple[Any, ...]]
    _errors = (psycopg.Error,)
    _estimate = _ESTIMATE
    _hint = "Check source.url, source.table, and the user's right to SELECT from it; row policies need BYPASSRLS."

    def __init__(self, address: SourceAddress) -> None:
        super().__init__(address)
        self._table = f"{self._quoted(address.schema)}.{self._quoted(address.table)}"
        self._names = (self._table, self._table)
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
        query = "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::text"
        row = self._one(query, doing="does not show its position")
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
        row = self._one(f"SELECT {function}(txid_current_snapshot())", doing="does not show its transactions")
        return int(row[0]) if row else 0

    def columns(self) -> dict[str, str]:
        return {str(name): _ELSEWHERE.sub("", str(kind)) for name, kind in self._all(_COLUMNS, self._table)}

    def parts(self, many: int) -> list[Part]:
        """Ranges of pages, in one exported snapshot. A view or a foreign table has no pages and is one part."""
        failing = "cannot be divided"
        self._all("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", doing=failing)
        snapshot = self._one("SELECT pg_export_snapshot()", doing=failing)
        row = self._one(_PAGES, *self._names, doing=failing)
        name, pages = str(snapshot[0]) if snapshot else "", int(row[0] or 0) if row else 0
        # Older servers would read the whole table for each range.
        ranges = pages >= many and self._connection.info.server_version >= 140_000
        bounds = [pages * n // many for n in range(1, many)] if ranges else []
        starts, ends = ["", *(f"ctid >= '({b},0)'" for b in bounds)], [*(f"ctid < '({b},0)'" for b in bounds), ""]
        return [Part(" AND ".join(filter(None, both)), name) for both in zip(starts, ends, strict=True)]

    def part(self, part: Part, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        self._all("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", doing="cannot be read")
        if part.snapshot:
            taken = sql.Literal(part.snapshot).as_string(self._connection)
            self._all(f"SET TRANSACTION SNAPSHOT {taken}", doing="cannot be read")
        yield from self.rows(names, size, part.condition)

    def rows(self, names: Sequence[str], size: int, condition: str = "") -> Iterator[list[tuple[Value, ...]]]:
        copy = f"COPY ({self._select(names, condition)}) TO STDOUT"
        try:
            with self._connection.cursor() as cursor, cursor.copy(copy.encode()) as out:
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

    def _quoted(self, name: str) -> str:
        return sql.Identifier(name).as_string()

    def _said(self, error: Exception) -> str:
        return str(error).strip().split("\n")[0]
