"""The fault scripts of `tests.support.fault_scripts` over the real engine, its merges stopped."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ch_sink.clickhouse import Client
from ch_sink.table.rollup import RollupChoice
from tests.model.reference import difference, sign_faults
from tests.support.cases import drawn, log_faults
from tests.support.engine_table import EngineRun, EngineTable
from tests.support.fault_scripts import POLICY, Script, scripts
from tests.support.harness import batches_of
from tests.support.kills import Fault
from tests.support.local_runner import LocalBatch, LocalRunner
from tests.support.rollups import computed

__all__ = ["IN_MEMORY", "engine_faults", "engine_scripts"]

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
            values = replace(POLICY.values, out_of_range=("fail", "clamp")[fault.value % 2])
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
