"""``backfill`` against streaming of the same snapshot: ``python -m benchmarks backfill --rows 2000000``.

The topic has a snapshot and nothing else. Each way fills a table of its own, in turn; a first run of either, on a short
topic, is not counted. For each: seconds on the clock, processor seconds by kind of process, the parts that its inserts
made, and, since fewer parts are merged less, processor seconds until the server has nothing left to merge.
"""

import argparse
import time
from collections.abc import Callable, Mapping

from benchmarks.machine import describe
from benchmarks.suite.changes import Mix, changes
from benchmarks.suite.formats import encoder
from benchmarks.suite.place import DATABASE, Place, place
from benchmarks.suite.processes import Watch
from benchmarks.suite.workloads import Workload
from ch_sink.config import Config, load
from ch_sink.spark.bulk import SparkLoad
from ch_sink.spark.job import run_streams
from ch_sink.spark.session import build_application
from ch_sink.trust.backfill import backfilled
from ch_sink.trust.refill_wiring import refill_of

__all__ = ["main"]

_WORKLOADS = {
    "one partition": Workload("snapshot", mix=Mix(snapshot=100)),
    "60 partitions": Workload("snapshot", mix=Mix(snapshot=100), partition_by="id % 60"),
}
_KINDS = ("driver", "jvm", "workers", "server", "broker")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks backfill")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=2)
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    print("command: python -m benchmarks backfill", *arguments)
    ways: Mapping[str, Callable[[Config], None]] = {"streaming": _stream, "backfill": _backfill}
    with place(None) as where:
        rows, mix = _WORKLOADS["one partition"].rows, Mix(snapshot=100)
        for topic, many in (("short", 20_000), ("snapshot", given.rows)):
            where.fill(topic, encoder("json", rows).records(rows, changes(rows, mix, many)))
        print(f"\n{given.rows:,} rows; seconds")
        print("  table           way             time " + "".join(f"{kind:>9}" for kind in _KINDS) + "    total  parts")
        for name, workload in _WORKLOADS.items():
            kind = name.replace(" ", "_")
            for way, run in ways.items():
                _run(where, workload, "short", f"{kind}_{way}_warm", run)
            for number in range(given.repeat):
                for way, run in ways.items():
                    figures = _run(where, workload, "snapshot", f"{kind}_{way}_{number}", run)
                    print(f"  {name:14}  {way:10} {figures}", flush=True)
    return 0


def _run(where: Place, workload: Workload, topic: str, table: str, run: Callable[[Config], None]) -> str:
    where.table(workload, table)
    config = load(where.config(workload, topic, table))
    with Watch() as watch:
        began = time.perf_counter()
        run(config)
        seconds = time.perf_counter() - began
        parts = _parts(where, table)
        _merged(where, table)
    cpu = watch.usage.cpu
    each = "".join(f"{cpu.get(kind, 0.0):9.1f}" for kind in _KINDS)
    return f"{seconds:9.1f} {each} {sum(cpu.values()):8.1f} {parts:6}"


def _stream(config: Config) -> None:
    run_streams([config], once=True)


def _backfill(config: Config) -> None:
    def spark() -> SparkLoad:
        return SparkLoad(build_application([config]), config.to_task_json())

    backfilled(refill_of(config, 0), spark, apply=True)


def _parts(where: Place, table: str) -> int:
    """How many parts the inserts have made: each took the next number of the table."""
    [found] = where.client.rows(
        f"SELECT max(max_block_number) AS n FROM system.parts WHERE database = '{DATABASE}' "
        f"AND table = '{table}' AND active"
    )
    return int(found["n"])


def _merged(where: Place, table: str) -> None:
    where.client.command(f"OPTIMIZE TABLE {DATABASE}.{table} FINAL")
