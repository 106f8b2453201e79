"""``python -m benchmarks compare A B``: whether B differs from A by more than the spread of both.

Each is a line of the history: its number (from 1, or from the end if negative) or its commit. Machines differ and
drift, so ratios to the limits of the same run are compared as well as rates.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["compare", "main", "verdict"]

HISTORY = Path(__file__).with_name("history.jsonl")


def verdict(before: Sequence[float], after: Sequence[float]) -> str:
    """``faster``, ``slower``, or ``same`` where the ranges of the two overlap."""
    if min(after) > max(before):
        return "faster"
    return "slower" if max(after) < min(before) else "same"


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """One line for each workload that both have."""
    found = {one["name"]: one for one in before["results"]}
    lines = []
    for one in after["results"]:
        if one["name"] not in found:
            continue
        words = [f"{one['name']:28}"]
        for name in ("steady", "ratio"):
            old, new = ([r[name] for r in w["repeats"]] for w in (found[one["name"]], one))
            change = statistics.median(new) / statistics.median(old) - 1
            words.append(f"{name} {change:+.0%} {verdict(old, new):7}")
        lines.append("  ".join(words).rstrip())
    return lines


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print(__doc__)
        return 2
    runs: list[dict[str, Any]] = [json.loads(line) for line in HISTORY.read_text(encoding="utf-8").splitlines()]
    chosen = [_find(runs, one) for one in arguments]
    for one in chosen:
        print(f"{one['time']}  {one['commit']}  {one['machine']['cpu']}  load {one['machine']['load before']}")
    print(*compare(*chosen), sep="\n")
    return 0


def _find(runs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    if name.lstrip("-").isdecimal() and 1 <= abs(int(name)) <= len(runs):
        return runs[int(name) - 1 if int(name) > 0 else int(name)]
    for run in reversed(runs):
        if str(run["commit"]).startswith(name):
            return run
    raise SystemExit(f"no run {name!r} in {HISTORY}; it has {len(runs)}")
