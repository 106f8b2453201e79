"""Insert blocks once."""

from collections.abc import Mapping
from typing import TypedDict

import pyarrow as pa

from ch_sink.clickhouse.arrow_io import fenced_query, needs_query, readable
from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.fence import SETTINGS, under
from ch_sink.clickhouse.rollups import roll_up
from ch_sink.clickhouse.settings import Retry
from ch_sink.errors import TableError
from ch_sink.ports import Fence, Insert
from ch_sink.table.model import Family, TargetTable

PINNED: dict[str, str | int] = {
    # The acknowledgement means "stored", and the token belongs to exactly this block.
    "async_insert": 0,
    "insert_deduplicate": 1,
    "deduplicate_insert": "enable",
    # A fenced insert is an INSERT … SELECT. By default 26.1 ignores its token unless the query ends with ORDER BY ALL.
    "deduplicate_insert_select": "enable_even_for_bad_queries",
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    # One record batch is one block and one part per table partition, whatever the server's profile says.
    "max_insert_threads": 1,
    "input_format_parallel_parsing": 0,
    "max_insert_block_size": 1 << 30,
    "max_insert_block_size_bytes": 0,
    "min_insert_block_size_rows": 1 << 30,
    "min_insert_block_size_bytes": 0,
    "input_format_max_block_size_bytes": 0,
    "input_format_max_block_wait_ms": 0,
    "use_strict_insert_block_limits": 0,
    # Rows whose partition the client cannot compute are sent as one block: the server splits it, a token per part.
    "max_partitions_per_insert_block": 0,
    # Columns by name; an absent one and a null in a column that is not Nullable take the column's default.
    "input_format_null_as_default": 1,
    "input_format_defaults_for_omitted_fields": 1,
    "input_format_arrow_case_insensitive_column_matching": 0,
    "input_format_arrow_allow_missing_columns": 1,
    "input_format_skip_unknown_fields": 0,
    "enable_time_time64_type": 1,
    # A Distributed table answers when its shards have stored the rows.
    "distributed_foreground_insert": 1,
    "insert_distributed_sync": 1,
}
"""Settings of every insert into a target table; the user's own cannot change them."""


class _Options(TypedDict):
    """The way to insert a block, fenced or not."""

    settings: Mapping[str, str | int]
    doing: str
    retry: Retry | None
    by_content: bool


class ClickHouseWriter:
    """The TableWriter of one target table, over HTTP in Arrow.

    Each insert is one request; a repeat after a time-out sends the same bytes under the same token, which a table
    with a deduplication window stores once.
    """

    def __init__(self, client: Client, table: TargetTable, *, retry: Retry | None = None) -> None:
        self._client, self._table = client, table
        self._retry = retry
        self._settings = PINNED
        if table.engine.family is Family.COLLAPSING:
            # The server would make one −1 of two −1 and one +1 of a block.
            self._settings = {**PINNED, "optimize_on_insert": 0}
        self._insertable = {c.name for c in table.columns if c.insertable}
        self.rows = 0
        """Rows sent so far."""

    def write(self, insert: Insert, token: str, *, fence: Fence | None = None, by_content: bool = False) -> int:
        """Insert one block under its token; returns the rows that the server reports as written.

        Raises:
            TableError: the block has a column that the table lacks or computes itself.
            ClickHouseUnavailable: no attempt reached the server or succeeded there.
            ClickHouseError, AccessDenied: it refuses.
            LedgerConflict: the execution is superseded; nothing was stored.
        """
        rows = insert.rows
        strange = [name for name in rows.column_names if name not in self._insertable]
        if strange:
            raise TableError(
                f"{self._table.qualified} has no insertable column {strange[0]!r}",
                hint="If the table was altered while the stream ran, start the stream again.",
            )
        if not rows.num_rows:
            return 0
        rows = readable(self._table, rows)
        options: _Options = {
            # One block is read and written by one thread; more of them only wait for each other.
            "settings": {**self._settings, "max_threads": 1, "insert_deduplication_token": token},
            "doing": f"insert {rows.num_rows} rows into {self._table.qualified} ({insert.label})",
            "retry": self._retry,
            "by_content": by_content,
        }
        condition = fence.condition if fence is not None else ""
        if fence is not None and not condition:
            fence.check()
        if not condition and not needs_query(self._table, rows):
            written = self._client.insert(self._table.qualified, rows, **options)
        else:
            written = self._by_query(rows, fence, condition, options)
        self.rows += rows.num_rows
        return written

    def roll_up(self, rollup: str, rows: pa.Table, token: str, *, fence: Fence | None = None) -> None:
        """See TableWriter.roll_up."""
        wanted = next(one for one in self._table.rollups if one.choice.name == rollup)
        roll_up(self._client, self._table, wanted, rows, token, fence, {**PINNED, "max_threads": 1})

    def _by_query(self, rows: pa.Table, fence: Fence | None, condition: str, options: _Options) -> int:
        options["settings"] = {**options["settings"], **SETTINGS}
        query = fenced_query(self._table, rows, condition)
        query_id = fence.query_id if fence is not None and condition else ""
        with under(fence):
            return self._client.insert(
                self._table.qualified, rows, **options, query=(rows.column_names, query), query_id=query_id
            )
