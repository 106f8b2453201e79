"""The sink's own small tables: their location, inserts and reads."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from ch_sink.clickhouse.arrow_io import Keys
from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.settings import Retry
from ch_sink.errors import ClickHouseError, ClickHouseUnavailable
from ch_sink.types.sql import quote

_WRITE: dict[str, str | int] = {
    "async_insert": 0,
    "max_insert_threads": 1,
    "input_format_parallel_parsing": 0,
    "max_insert_block_size": 1 << 30,
    "min_insert_block_size_rows": 1 << 30,
    "min_insert_block_size_bytes": 0,
    "use_strict_insert_block_limits": 0,
    "input_format_defaults_for_omitted_fields": 1,
}

_QUORUM_WAIT = 5_000
"""Milliseconds for replicas to fetch a few rows."""
_QUORUM_PAUSE = 1.0
_QUORUM_TRIES = 12
"""Until the session of a dead replica has ended, 30 seconds by default, and some more."""
_NO_QUORUM = frozenset({285, 286, 319})
"""TOO_FEW_LIVE_REPLICAS, UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE, UNKNOWN_STATUS_OF_INSERT."""
_ONCE = Retry(attempts=1)
NO_TABLE = (60, 81)
"""UNKNOWN_TABLE, UNKNOWN_DATABASE."""

HEADERS = pa.list_(pa.struct([pa.field("name", pa.binary()), pa.field("value", pa.binary())]))
"""Arrow type of a record's headers."""


class StateTable:
    """One of the sink's own tables, by database and name. Raises as Client does."""

    def __init__(self, client: Client, database: str, name: str) -> None:
        self.client, self.database, self.name = client, database, name
        self.qualified = f"{quote(database)}.{quote(name)}"

    def insert(self, rows: pa.Table, *, token: str | None = None, everywhere: bool = False) -> None:
        """Insert as one block: under a token, or without deduplication if the engine makes a repeat harmless.

        ``everywhere``: return when all active replicas have the rows, whichever server is asked for them next. They are
        counted again after each wait, so a replica that dies meanwhile delays this by its session timeout at most.
        """
        if not rows.num_rows:
            return
        once: dict[str, str | int] = (
            {"insert_deduplicate": 0, "deduplicate_insert": "disable"}
            if token is None
            else {"insert_deduplicate": 1, "deduplicate_insert": "enable", "insert_deduplication_token": token}
        )
        settings = {**_WRITE, **once}
        with self._existing():
            if not everywhere or not self.client.is_replicated(self.database, self.name):
                self.client.insert(self.qualified, rows, settings=settings)
                return
            self.client.retry.run(lambda: self._to_all(rows, settings))

    @contextmanager
    def _existing(self) -> Iterator[None]:
        """Name the next step if the server does not know the table."""
        try:
            yield
        except ClickHouseError as error:
            if error.code not in NO_TABLE:
                raise
            raise ClickHouseError(
                f"the sink's own table {self.database}.{self.name} does not exist",
                code=error.code,
                hint="Create it with `ch_sink init CONFIG --apply`.",
            ) from None

    def _to_all(self, rows: pa.Table, settings: Mapping[str, str | int]) -> None:
        # A replica that was killed has its session in the keeper for a while, and counts as active until then.
        for left in reversed(range(_QUORUM_TRIES)):
            try:
                self.client.insert(self.qualified, rows, settings={**settings, **self._quorum()}, retry=_ONCE)
                return
            except ClickHouseUnavailable as error:
                if error.code not in _NO_QUORUM or not left:
                    raise
            self.client.retry.sleep(_QUORUM_PAUSE)

    def _quorum(self) -> dict[str, str | int]:
        found = self.client.rows(
            "SELECT active_replicas AS n FROM system.replicas "
            "WHERE database = {database:String} AND table = {name:String}",
            {"database": self.database, "name": self.name},
            doing=f"count the replicas of {self.qualified}",
        )
        n = int(found[0]["n"]) if found else 0
        return {"insert_quorum": n, "insert_quorum_timeout": _QUORUM_WAIT} if n > 1 else {}

    def rows(self, sql: str, **parameters: object) -> list[dict[str, Any]]:
        """Rows of a query in which ``$table`` is the table's name. Sees all earlier writes."""
        with self._existing():
            return self.client.rows(
                sql.replace("$table", self.qualified), parameters, of=self, doing=f"read {self.qualified}"
            )

    def columns(self) -> frozenset[str]:
        """Names of the table's columns; empty if the table does not exist."""
        found = self.client.rows(
            "SELECT name FROM system.columns WHERE database = {database:String} AND table = {table:String}",
            {"database": self.database, "table": self.name},
            doing=f"inspect the columns of {self.qualified}",
        )
        return frozenset(str(r["name"]) for r in found)

    def arrow(self, sql: str, parameters: Mapping[str, object], keys: Keys | None = None) -> pa.Table:
        """Like `rows`, as Arrow."""
        with self._existing():
            return self.client.arrow(
                sql.replace("$table", self.qualified),
                parameters,
                settings={"transform_null_in": 1},
                keys=keys,
                of=self,
                doing=f"read {self.qualified}",
            )

    def rewrite(self, columns: str, where: str, parameters: Mapping[str, object], keys: Keys | None = None) -> None:
        """Insert a newer version of rows; ``columns`` is a select list over their newest version."""
        sql = f"INSERT INTO {self.qualified} {columns} FROM {self.qualified} FINAL WHERE {where}"
        self._insert_select(sql, parameters, keys)

    def select_into(self, sql: str, keys: Keys | None = None, **parameters: object) -> None:
        """Run an ``INSERT INTO $table … SELECT`` whose repeat the engine makes harmless."""
        self._insert_select(sql.replace("$table", self.qualified), parameters, keys)

    def _insert_select(self, sql: str, parameters: Mapping[str, object], keys: Keys | None = None) -> None:
        settings: dict[str, str | int] = {
            **_WRITE,
            "insert_deduplicate": 0,
            "deduplicate_insert_select": "disable",
            # A replaced column keeps its name; conditions refer to the stored one.
            "prefer_column_name_to_alias": 1,
        }
        with self._existing():
            self.client.command(
                sql, parameters, settings=settings, keys=keys, of=self, doing=f"rewrite rows of {self.qualified}"
            )


def headers_in(headers: Sequence[tuple[str, bytes | None]]) -> list[dict[str, bytes | None]]:
    """Headers as values of `HEADERS`."""
    return [{"name": name.encode(), "value": value} for name, value in headers]


def headers_out(stored: Sequence[Mapping[str, bytes | None]] | None) -> tuple[tuple[str, bytes | None], ...]:
    """Inverse of `headers_in`."""
    return tuple(((h["name"] or b"").decode("utf-8", "replace"), h["value"]) for h in stored or ())
