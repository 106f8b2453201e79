"""A model's layout as a table of the real engine: what Run feeds, and what the engine answers."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from ch_sink.clickhouse import ClickHouseHandover, ClickHousePending, ClickHouseWriter, Client, detect
from ch_sink.decode import Decoder
from ch_sink.model.policy import Policy
from ch_sink.ports import Insert, StoredRows
from ch_sink.spark.task import _Lookup
from ch_sink.table.truncate import truncate_statement
from ch_sink.table.view import view_of
from tests.model import History, Layout
from tests.support.harness import Run
from tests.support.memory_table import Killed

__all__ = ["DDL", "EngineTable", "engine_run"]

DDL: Mapping[str, tuple[str, str]] = {
    "replacing": ("ReplacingMergeTree(_version, _is_deleted)", "_version UInt128, _is_deleted UInt8"),
    "sign": ("ReplacingMergeTree(_version)", "_version UInt128, _sign Int8"),
    "collapsing": ("CollapsingMergeTree(_sign)", "_sign Int8, _version UInt128"),
    "versioned": ("VersionedCollapsingMergeTree(_sign, _version)", "_sign Int8, _version UInt128"),
    "append": ("MergeTree", "_op LowCardinality(String), _sign Int8, _version UInt128"),
    "append without key": ("MergeTree", "_op LowCardinality(String), _sign Int8, _version UInt128"),
}
"""Engine of the model's runs → its clause, and the columns of its own."""
_numbers = count(1)


class EngineTable:
    """Writer and lookup of one new table, with a kill on demand; then its readers."""

    def __init__(self, client: Client, database: str, layout: Layout, engine: str, policy: Policy) -> None:
        self.client, self.engine, self.layout = client, engine, layout
        self.name = f"{database}.t{next(_numbers)}"
        clause, own = DDL[engine]
        order = ", ".join(layout.order_by) or "tuple()"
        partition = f"PARTITION BY {layout.partition_by} " if layout.partition_by else ""
        client.command(
            f"CREATE TABLE {self.name} ({layout.columns_sql}, {own}) ENGINE = {clause} {partition}ORDER BY ({order}) "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )
        self.target = detect(client, database, self.name.partition(".")[2], policy)
        client.command(view_of(self.target, layout.table.key))
        self._writer, self._lookup = ClickHouseWriter(client, self.target), _Lookup(client, self.target)
        self.fail_after: int | None = None

    def write(self, insert: Insert, token: str) -> int:
        if self.fail_after is not None:
            if self.fail_after == 0:
                raise Killed
            self.fail_after -= 1
        return self._writer.write(insert, token)

    def fetch(self, keys: pa.Table) -> StoredRows:
        return self._lookup.fetch(keys)

    def truncate(self, version: int) -> None:
        self.client.command(truncate_statement(self.target, version, "_version"))

    def view(self, **settings: Any) -> list[dict[str, Any]]:
        return self.client.rows(f"SELECT * FROM {self.name}_current", settings=settings)

    def final(self) -> list[dict[str, Any]]:
        """``FINAL`` and no more than the mark of deleted rows, as a user would write it."""
        alive = {"sign": "WHERE _sign != -1", "replacing": "", "collapsing": "", "versioned": ""}[self.engine]
        # Rows that left a table partition are paired inside each partition only.
        own = {"do_not_merge_across_partitions_select_final": 1} if self.engine in ("collapsing", "versioned") else {}
        names = ", ".join(c.name for c in self.layout.table.columns)
        return self.client.rows(f"SELECT {names} FROM {self.name} FINAL {alive}", settings=own)

    def raw(self) -> list[dict[str, Any]]:
        return self.client.rows(f"SELECT * FROM {self.name}")

    def merge(self) -> None:
        self.client.command(f"OPTIMIZE TABLE {self.name} FINAL")


def engine_run(client: Client, database: str, own_tables: str, history: History, engine: str, policy: Policy) -> Run:
    """A run of a history into a new table, with every port the real one."""
    table = EngineTable(client, database, history.layout, engine, policy)
    stream = f"model/{table.name}"
    return Run(
        history,
        table.target.engine,
        policy=policy,
        detected=table.target,
        table=table,
        handover=ClickHouseHandover(client, own_tables, "handover", stream, table.target),
        pending=ClickHousePending(client, own_tables, "pending", stream),
        decoder=lambda want: Decoder(table.target, policy, want_before=want),
        truncate=table.truncate,
    )


def without_own(rows: Sequence[Mapping[str, Any]], layout: Layout) -> list[dict[str, Any]]:
    return [{c.name: row[c.name] for c in layout.table.columns} for row in rows]
