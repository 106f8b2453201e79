"""Two workers of one core against ``local[2]``: ``python -m benchmarks cluster [--events N] [--repeat N]``.

The workers are those of a Spark standalone cluster on this machine. Each run is a `ch_sink run --once` of its own, on a
topic and on one of twice the length: the difference is free of the start of Spark. A run that is too short to be told
from the start counts as none; a quiet machine takes some six minutes for all.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.suite.changes import changes
from benchmarks.suite.formats import encoder
from benchmarks.suite.place import DATABASE, Place, place
from benchmarks.suite.report import spread
from benchmarks.suite.workloads import WORKLOADS
from tests.support.cluster import cluster

__all__ = ["main"]

_LEAST = 0.05
"""Share of the shorter run by which the longer one must take longer."""
_ROOT = Path(__file__).resolve().parent.parent


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cluster", description=__doc__)
    parser.add_argument("--events", type=int, default=500_000, help="of the shorter topic; the longer has twice that")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    print("command: python -m benchmarks cluster", *arguments, "\n")
    workload = WORKLOADS["json"]
    with place(None) as where, cluster(workers=2) as two:
        topics = {count: f"cluster_{count}" for count in (given.events, 2 * given.events)}
        for count, topic in topics.items():
            records = encoder(workload.form, workload.rows).records
            where.fill(topic, records(workload.rows, changes(workload.rows, workload.mix, count)))
        rates: dict[str, list[float]] = {}
        # In turn, so that what else the machine does meets both.
        for number in range(given.repeat):
            for name, master in (("local[2]", "local[2]"), ("two workers", two.url)):
                short, long = (
                    _run(where, topic, f"t{number}_{count}_{name[:3]}", master) for count, topic in topics.items()
                )
                rate = given.events / (long - short) if long - short > _LEAST * short else None
                shown = f"{rate:10,.0f} events/s" if rate else "too short to be told from the start"
                print(f"{name:12}  {short:6.1f} s, {long:6.1f} s  {shown}", flush=True)
                rates.setdefault(name, []).extend([rate] if rate else [])
    print(f"\n{given.events:,} events, {given.repeat} repeats: median (lowest to highest) in thousand events/s")
    for name, found in rates.items():
        print(f"  {name:12}  {spread(found, 1e-3) if found else '–'}")
    if not all(rates.values()):
        print("more --events are needed")
        return 1
    both = [statistics.median(found) for found in rates.values()]
    print(f"  two workers / local[2]  {both[1] / both[0]:.2f}")
    return 0


def _run(where: Place, topic: str, table: str, master: str) -> float:
    """Seconds of a job on a fresh table."""
    workload = WORKLOADS["json"]
    where.table(workload, table)
    config = where.config(workload, topic, table, spark={"conf": {"spark.executor.memory": "600m"}})
    began = time.perf_counter()
    command = [sys.executable, "-m", "ch_sink", "run", str(config), "--once", "--quiet", "--master", master]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode or not where.client.rows(f"SELECT count() AS n FROM {DATABASE}.{table}")[0]["n"]:
        raise RuntimeError(f"the job on {master} ended with {done.returncode}: {done.stderr[-2000:]}")
    return seconds
