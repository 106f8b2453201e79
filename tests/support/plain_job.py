"""The job without Spark, as a program of its own to be killed: driver, ledger and tasks are the product's.

``python -m tests.support.plain_job CONFIG OFFSETS SEED`` reads what the topic holds, OFFSETS of each partition at a
time, and prints ``begin N`` before each batch and ``end N`` after it. What it planned is noted before it is carried
out, as Spark's checkpoint does; so a new process runs a batch that was begun once more, with the same ranges.
"""

import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ch_sink.config import load
from ch_sink.spark.driver import StreamDriver

__all__ = ["main"]


class OneProcess:
    """What the driver asks of Spark: tasks, here one after the other in this process, in a drawn order."""

    def __init__(self, rng: random.Random) -> None:
        self.sparkContext = self
        self.rng = rng

    def broadcast(self, thing: Any) -> SimpleNamespace:
        return SimpleNamespace(value=thing)

    def parallelize(self, tasks: Iterable[str], _slices: int) -> "_Tasks":
        return _Tasks(list(tasks), self.rng)


class _Tasks:
    def __init__(self, tasks: list[str], rng: random.Random) -> None:
        self.tasks, self.rng = tasks, rng
        self.work: Callable[[Iterator[str]], Iterator[str]] = iter

    def mapPartitions(self, work: Callable[[Iterator[str]], Iterator[str]]) -> "_Tasks":  # noqa: N802 (Spark's name)
        self.work = work
        return self

    def collect(self) -> list[str]:
        order = list(range(len(self.tasks)))
        self.rng.shuffle(order)
        found = {i: list(self.work(iter([self.tasks[i]]))) for i in order}
        return [text for i in sorted(found) for text in found[i]]


class _Ranges:
    """The rows of one micro-batch."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def collect(self) -> list[Any]:
        return [SimpleNamespace(asDict=lambda row=row: row) for row in self.rows]


def main(config: str, offsets: str, seed: str) -> None:
    settings = load(Path(config))
    checkpoint = Path(settings.checkpoint)
    checkpoint.mkdir(parents=True, exist_ok=True)
    driver = StreamDriver(settings, OneProcess(random.Random(seed)))  # type: ignore[arg-type]
    driver.open()
    driver.open_waiting()
    driver.drain()
    number = len(list(checkpoint.glob("*.planned")))
    if number and not (checkpoint / f"{number - 1}.done").exists():
        number -= 1
    while rows := _planned(checkpoint, number, driver, int(offsets)):
        _say(f"begin {number}")
        driver._run_batch(_Ranges(rows))  # type: ignore[arg-type]
        (checkpoint / f"{number}.done").touch()
        _say(f"end {number}")
        number += 1
    driver.close()


def _planned(checkpoint: Path, number: int, driver: StreamDriver, offsets: int) -> list[dict[str, Any]]:
    note = checkpoint / f"{number}.planned"
    if note.exists():
        return list(json.loads(note.read_text()))
    topic = driver.topic
    before = json.loads((checkpoint / f"{number - 1}.planned").read_text()) if number else []
    at = {**topic.low, **{r["partition"]: r["end"] for r in before}}
    rows = [
        {
            "topic_id": topic.topic_id,
            "partition": p,
            "start": at[p],
            "end": min(at[p] + offsets, topic.high[p]),
            "lost": 0,
            "high": topic.high[p],
        }
        for p in sorted(at)
    ]
    if all(r["start"] == r["end"] for r in rows):
        return []
    fresh = note.with_suffix(".new")
    fresh.write_text(json.dumps(rows))
    os.replace(fresh, note)
    return rows


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
