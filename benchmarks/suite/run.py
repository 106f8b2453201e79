"""The whole job on generated topics: ``python -m benchmarks suite [--full] [--only NAME]… [--keep] [--svg FILE]``."""

import argparse
import json
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.suite.compare import HISTORY
from benchmarks.suite.measure import measure
from benchmarks.suite.place import place
from benchmarks.suite.report import bars, table
from benchmarks.suite.workloads import QUICK, WORKLOADS


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks suite", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all workloads, five repeats")
    parser.add_argument("--only", action="append", choices=sorted(WORKLOADS), help="this workload")
    parser.add_argument("--events", type=int, default=300_000, help="of the shorter topic; the longer has twice that")
    parser.add_argument("--repeat", type=int, help="default 3, 5 with --full")
    parser.add_argument("--url", help="a ClickHouse server; its database ch_sink_bench is dropped. Default: embedded")
    parser.add_argument("--keep", action="store_true", help=f"append the results to {HISTORY.name}")
    parser.add_argument("--svg", type=Path, help="write the plot to this file")
    given = parser.parse_args(arguments)
    names = given.only or (list(WORKLOADS) if given.full else QUICK)
    machine = describe()
    print(*(f"{name}: {value}" for name, value in machine.items()), sep="\n")
    print("command: python -m benchmarks suite", *arguments, "\n")
    results = []
    with place(given.url) as where:
        for name in names:
            found = measure(where, WORKLOADS[name], given.events, given.repeat or (5 if given.full else 3)).as_json()
            results.append(found)
            print(table([found]).splitlines()[-1], flush=True)
    print("\n" + table(results))
    if given.svg:
        given.svg.write_text(bars(results), encoding="utf-8")
    if given.keep:
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": _commit(),
            "machine": machine,
            "results": results,
        }
        with HISTORY.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    return 0


def _commit() -> str:
    ran = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return ran.stdout.strip() or "unknown"
