"""CPU time and memory of this process and its descendants, by what they are."""

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

__all__ = ["Usage", "Watch"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Usage:
    """By kind: driver (this process), sink (a `ch_sink run` of its own), jvm, workers, server, broker."""

    cpu: dict[str, float] = field(default_factory=dict)
    """Seconds of CPU time."""
    memory: dict[str, float] = field(default_factory=dict)
    """Peak resident memory of one process in MiB."""
    most: float = 0.0
    """Peak of all processes of the job together (driver, JVM, workers) in MiB."""


class Watch:
    """Samples while the block runs; a process that lives for less than a sample is missed."""

    def __init__(self, every: float = 0.1) -> None:
        self.usage = Usage()
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._first: dict[int, float] = {}
        self._last: dict[int, tuple[str, float]] = {}

    def __enter__(self) -> Self:
        for process, kind, cpu, _ in _sample():
            self._first[process] = cpu
            self._last[process] = kind, cpu
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        for process, (kind, cpu) in self._last.items():
            self.usage.cpu[kind] = self.usage.cpu.get(kind, 0.0) + cpu - self._first.get(process, 0.0)

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self._look()

    def _look(self) -> None:
        together = 0.0
        for process, kind, cpu, memory in _sample():
            self._last[process] = kind, cpu
            self.usage.memory[kind] = max(memory, self.usage.memory.get(kind, 0.0))
            together += memory if kind in ("driver", "jvm", "workers") else 0.0
        self.usage.most = max(self.usage.most, together)


def _sample() -> list[tuple[int, str, float, float]]:
    """Process, kind, CPU seconds, MiB."""
    stats: dict[int, tuple[int, float, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        cpu = (int(fields[11]) + int(fields[12])) / _TICKS
        stats[int(folder.name)] = int(fields[1]), cpu, int(fields[21]) * _PAGE / 2**20
    mine, grown = {os.getpid()}, True
    while grown:
        found = {process for process, (parent, _, _) in stats.items() if parent in mine} - mine
        mine |= found
        grown = bool(found)
    return [(p, _kind(p), stats[p][1], stats[p][2]) for p in mine if p in stats]


def _kind(process: int) -> str:
    if process == os.getpid():
        return "driver"
    try:
        command = (Path("/proc") / str(process) / "cmdline").read_bytes()
    except OSError:
        return "other"
    # The JVM's properties name the daemon, so it comes first.
    if b"org.apache.spark" in command:
        return "jvm"
    if b"ch_sink\0run\0" in command:
        return "sink"
    # The product's own daemon forks the workers of a local master.
    if b"pyspark.daemon" in command or b"ch_sink.spark.daemon" in command:
        return "workers"
    if b"kafka" in command.lower() and b"java" in command:
        return "broker"
    return "server" if b"clickhouse" in command else "other"
