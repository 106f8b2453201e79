"""A model's layout as a table of the real engine: what Run feeds, and what the engine answers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from ch_sink.clickhouse import (
    AnyKeyLookup,
    ClickHouseDeadLetters,
    ClickHouseHandover,
    ClickHouseLedger,
    ClickHousePending,
    ClickHouseTableAdmin,
    ClickHouseWriter,
    Client,
    detect,
)
from ch_sink.decode import Decoder
from ch_sink.model.policy import Policy
from ch_sink.stream.ports import StreamSettings
from ch_sink.table.rollup import RollupChoice
from ch_sink.table.views import view_of
from tests.model import Batch, History, Layout
from tests.support.harness import batches_of, topic_of
from tests.support.local_runner import LocalPorts, LocalRunner
from tests.support.memory_stream import MemoryGroup

__all__ = ["DDL", "EngineRun", "EngineTable"]

HISTORY = "_op LowCardinality(String), _sign Int8, _version UInt128, _source_time DateTime64(3, 'UTC')"
DDL: Mapping[str, tuple[str, str]] = {
    "replacing": ("ReplacingMergeTree(_version, _is_deleted)", "_version UInt128, _is_deleted UInt8"),
    "sign": ("ReplacingMergeTree(_version)", "_version UInt128, _sign Int8"),
    "collapsing": ("CollapsingMergeTree(_sign)", "_sign Int8, _version UInt128"),
    "versioned": ("VersionedCollapsingMergeTree(_sign, _version)", "_sign Int8, _version UInt128"),
    "append": ("MergeTree", HISTORY),
    "append without key": ("MergeTree", HISTORY),
}
"""Engine of the model's runs → its clause, and the columns of its own."""
_numbers = count(1)


class EngineTable:
    """One new table and what its readers see."""

    def __init__(
        self, client: Client, database: str, layout: Layout, engine: str, policy: Policy, version: str = "UInt128"
    ) -> None:
        self.client, self.engine, self.layout = client, engine, layout
        self.name = f"{database}.t{next(_numbers)}"
        clause, own = DDL[engine]
        own = own.replace("UInt128", version)
        order = ", ".join(layout.order_by) or "tuple()"
        partition = f"PARTITION BY {layout.partition_by} " if layout.partition_by else ""
        client.command(
            f"CREATE TABLE {self.name} ({layout.columns_sql}, {own}) ENGINE = {clause} {partition}ORDER BY ({order}) "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )
        self.target = detect(client, database, self.name.partition(".")[2], policy)
        client.command(view_of(self.target, layout.table.key))

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

    def rollup(self, name: str) -> str:
        """Name of a rollup of this table."""
        return f"{self.name.partition('.')[2]}_{name}"

    def rolled_up(self, name: str) -> list[dict[str, Any]]:
        """The rows of a rollup's view."""
        return self.client.rows(f"SELECT * FROM {self.name}_{name}_current")

    def merge(self) -> None:
        self.client.command(f"OPTIMIZE TABLE {self.name} FINAL")


class EngineRun:
    """A run of a history into a new table, with every port the real one."""

    def __init__(
        self,
        client: Client,
        database: str,
        own_tables: str,
        history: History,
        engine: str,
        policy: Policy,
        *,
        version: str = "UInt128",
        rollups: Sequence[RollupChoice] = (),
    ) -> None:
        self.table = EngineTable(client, database, history.layout, engine, policy, version)
        self.collapsing = engine in ("collapsing", "versioned")
        topic = topic_of(history)
        stream = f"model/{self.table.name}"
        ports = LocalPorts(
            open_ledger=lambda: ClickHouseLedger(client, own_tables, "ledger", stream),
            admin=ClickHouseTableAdmin(
                client,
                database,
                self.table.name.partition(".")[2],
                policy,
                rollups=tuple(replace(one, name=self.table.rollup(one.name)) for one in rollups),
            ),
            topics=topic,
            group=MemoryGroup(),
            pending=ClickHousePending(client, own_tables, "pending", stream),
            dead_letters=ClickHouseDeadLetters(client, own_tables, "dead_letters", stream, topic.topic_id),
            writer=lambda table: ClickHouseWriter(client, table),
            lookup=lambda table: AnyKeyLookup(client, table),
            handover=lambda table: ClickHouseHandover(client, own_tables, "handover", stream, table),
            decoder=lambda table, want: Decoder(table, policy, want_before=want),
            records=topic.read,
            history=topic.history,
        )
        self.ports = ports
        self.runner = LocalRunner(StreamSettings(stream, topic.name, policy), ports)

    def run(self, plan: list[Batch]) -> None:
        self.runner.run(batches_of(plan, collapsing=self.collapsing))
        self.runner.stop()
