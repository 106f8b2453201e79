"""The fault scripts of `tests.support.fault_scripts` over the real engine, its merges stopped."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from ch_sink.clickhouse import (
    ClickHouseLedger,
    ClickHouseTableAdmin,
    Client,
    detect,
)
from ch_sink.model.policy import Policy
from ch_sink.stream.ports import StreamSettings
from ch_sink.table.rollup import RollupChoice
from ch_sink.table.views import view_of
from tests.model import Batch, History, Layout
from tests.model.reference import difference, sign_faults
from tests.support.cases import drawn, log_faults
from tests.support.fault_scripts import POLICY, Script, scripts
from tests.support.harness import batches_of, topic_of
from tests.support.kills import Fault
from tests.support.local_runner import LocalBatch, LocalRunner
from tests.support.rollups import computed
from tests.support.stream import engine_ports

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
        ports = engine_ports(
            client, own_tables, "", stream, topic, policy,
            open_ledger=lambda: ClickHouseLedger(client, own_tables, "ledger", stream),
            admin=ClickHouseTableAdmin(
                client,
                database,
                self.table.name.partition(".")[2],
                policy,
                rollups=tuple(replace(one, name=self.table.rollup(one.name)) for one in rollups),
            ),
        )  # fmt: skip
        self.ports = ports
        self.runner = LocalRunner(StreamSettings(stream, topic.name, policy), ports)

    def run(self, plan: list[Batch]) -> None:
        self.runner.run(batches_of(plan, collapsing=self.collapsing))
        self.runner.stop()


IN_MEMORY = ("stale replica", "restored")
"""Kinds that only the ports in memory can do: one engine is one server, which takes nothing back."""


class _Clock:
    offset = 0

    def time(self) -> float:
        return time.time() + self.offset


def engine_scripts(first: int, histories: int, each: int) -> Iterator[Script]:
    """The drawn scripts without what only the ports in memory can do."""
    for script in scripts(first, histories, each):
        faults = {n: [f for f in found if f.what not in IN_MEMORY] for n, found in script.faults.items()}
        yield replace(script, faults={n: found for n, found in faults.items() if found})


def engine_faults(
    client: Client,
    database: str,
    own_tables: str,
    script: Script,
    happened: Counter[str] | None = None,
    rollups: Sequence[RollupChoice] = (),
) -> list[str]:
    """What is wrong at the end of the script; its table is dropped. Merges are stopped; rollups are merged, too."""
    history, plan = drawn(script.case)
    made = EngineRun(client, database, own_tables, history, script.case.engine, POLICY, rollups=rollups)
    table, clock = made.table, _Clock()
    client.command(f"SYSTEM STOP MERGES {table.name}")

    def happen(fault: Fault) -> None:
        if fault.what == "clock":
            clock.offset += fault.value
        elif fault.what == "setting":
            size = runner.settings.chunk_offsets if fault.value < 0 else fault.value
            keyed = script.case.engine != "append without key"
            values = replace(POLICY.values, out_of_range=("fail", "clamp")[fault.value % 2 if keyed else 0])
            runner.settings = replace(runner.settings, chunk_offsets=size, policy=replace(POLICY, values=values))

    settings = replace(made.runner.settings, chunk_offsets=script.size or 50_000)
    runner = LocalRunner(settings, replace(made.ports, clock=clock.time), on_fault=happen)
    try:
        for number, batch in enumerate(batches_of(plan, collapsing=made.collapsing)):
            cuts: Mapping[int, list[int]] = {} if script.size else {p: list(c) for p, c in batch.cuts.items()}
            faults = script.faults.get(number, ())
            runner.run([LocalBatch(batch.ranges, cuts, batch.order, faults, groups=1 + script.case.seed % 2)])
        runner.stop()
        if happened is not None:
            happened.update(runner.happened)
        wrong = [f"view: {found}" for found in [difference(history, table.view())] if found]
        if made.collapsing:
            wrong += sign_faults(history.table, table.raw(), "_sign", history.truth)
        if script.case.engine == "append":
            wrong += log_faults(history, table.raw())
        for merged in (False, True) if rollups and plan else ():  # without a batch the stream was not opened
            for rollup in rollups if merged else ():
                client.command(f"OPTIMIZE TABLE {table.name}_{rollup.name} FINAL")
            wrong += computed(history, table.rolled_up)
        return wrong + _stored_twice(table, script.case.engine)
    except Exception as error:  # noqa: BLE001 (it is what was found)
        return [f"{type(error).__name__}: {error}"]
    finally:
        for rollup in rollups:
            client.command(f"DROP TABLE IF EXISTS {table.name}_{rollup.name}_current")
            client.command(f"DROP TABLE IF EXISTS {table.name}_{rollup.name} SYNC")
        client.command(f"DROP TABLE {table.name}_current")
        client.command(f"DROP TABLE {table.name} SYNC")


def _stored_twice(table: EngineTable, engine: str) -> list[str]:
    if engine not in ("replacing", "sign"):
        return []
    own = "_is_deleted" if engine == "replacing" else "_sign"
    names = list(dict.fromkeys([*table.layout.table.key, *table.layout.order_by, "_version", own]))
    found = Counter(tuple(str(row[name]) for name in names) for row in table.raw())
    return [f"stored {n}x: {dict(zip(names, row, strict=True))}" for row, n in found.items() if n > 1]
