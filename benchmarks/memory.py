"""Peak memory of a job against the length of its topic: ``python -m benchmarks memory [--events N …]``.

Each run is a `ch_sink run --once` of its own. Memory does not depend on what else the machine does; the seconds do.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.machine import describe
from benchmarks.suite.changes import changes
from benchmarks.suite.formats import encoder
from benchmarks.suite.place import DATABASE, place
from benchmarks.suite.processes import Watch
from benchmarks.suite.workloads import WORKLOADS

__all__ = ["main"]

_PROCESSES = ("sink", "jvm", "workers")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="json")
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    print("command: python -m benchmarks memory", *arguments, "\n")
    workload = WORKLOADS[given.workload]
    made = encoder(workload.form, workload.rows)
    with place(None) as where:
        where.registry.ids = {n: {"schema": text} for n, text in made.schemas.items()}
        print(f"{'events':>12}  {'seconds':>8}  {'driver':>7}  {'JVM':>7}  {'largest worker':>14}   (MiB)")
        for count in given.events:
            name = f"memory_{count}"
            where.fill(name, made.records(workload.rows, changes(workload.rows, workload.mix, count)))
            where.table(workload, name)
            config, began = where.config(workload, name, name), time.perf_counter()
            with Watch() as watch:
                command = [sys.executable, "-m", "ch_sink", "run", str(config), "--once"]
                subprocess.run(command, check=True, capture_output=True)
            found = [watch.usage.memory.get(kind, 0.0) for kind in _PROCESSES]
            seconds = time.perf_counter() - began
            print(f"{count:12,}  {seconds:8.1f}  {found[0]:7.0f}  {found[1]:7.0f}  {found[2]:14.0f}", flush=True)
            where.client.command(f"DROP TABLE {DATABASE}.{name} SYNC")
    return 0
