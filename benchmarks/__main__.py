"""Prints figures with machine, versions and spread.

python -m benchmarks         the whole job on one large topic
python -m benchmarks fleet   one job of many topics
"""

import argparse
import json
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import fleet
from benchmarks.machine import describe
from benchmarks.whole import run, spread

HISTORY = Path(__file__).with_name("history.jsonl")


def main() -> int:
    if sys.argv[1:2] == ["fleet"]:
        return fleet.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--grow", type=int, default=4, help="how many times as long the topic is for the memory figure")
    parser.add_argument("--keep", action="store_true", help="append the result to benchmarks/history.jsonl")
    given = parser.parse_args()
    machine = describe()
    print(*(f"{name}: {value}" for name, value in machine.items()), sep="\n")
    print("command: python -m benchmarks", *sys.argv[1:])
    figures = run(given.events, given.repeat)
    longer = run(given.events * given.grow, 1).memory[0] if given.grow > 1 else 0.0
    ratios = figures.ratios()
    limits = [figures.limit(i) for i in range(len(figures.whole))]
    print(f"\n{given.events:,} events of about 770 bytes, {given.repeat} repeats: median (lowest to highest)")
    for name, values in (
        ("consume only", figures.consume),
        ("insert only", figures.insert),
        ("one after the other (limit)", limits),
        ("decode only, one core", figures.decode),
        ("whole job", figures.whole),
    ):
        print(f"  {name:28}{spread(values)}")
    print(
        f"  whole job / limit            {statistics.median(ratios):8.2f}      ({min(ratios):.2f} to {max(ratios):.2f})"
    )
    print(f"  peak memory of a worker      {max(figures.memory):8.0f} MiB")
    if longer:
        print(f"    {given.events * given.grow:,} events{longer:22.0f} MiB")
    if given.keep:
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine,
            "events": given.events,
            "consume": figures.consume,
            "insert": figures.insert,
            "decode": figures.decode,
            "whole": figures.whole,
            "ratios": ratios,
            "memory_mib": figures.memory,
            "memory_mib_longer": {str(given.grow): longer},
        }
        with HISTORY.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
