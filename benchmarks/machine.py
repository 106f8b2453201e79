"""The machine on which a figure was measured."""

import os
import platform
import threading
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

__all__ = ["Memory", "describe"]


def describe() -> dict[str, str]:
    """Machine and versions."""
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    packages = ("pyspark", "pyarrow", "msgspec", "confluent-kafka", "clickhouse-connect", "chdb-core")
    load = os.getloadavg()[0]
    return {
        "cpu": f"{os.cpu_count()} × {cpu}",
        "load before": f"{load:.1f}",
        "python": platform.python_version(),
        **{p: version(p) for p in packages},
    }


class Memory:
    """Peak resident memory (MiB) of this process's own Python workers while the block runs, sampled every 50 ms."""

    def __init__(self) -> None:
        self.peak = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.peak = max([self.peak, *(_rss(p) for p in _workers())])
            time.sleep(0.05)


def _workers() -> list[Path]:
    """Python workers that are descendants of this process; the machine may run other Spark applications."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(process.name))
    found: list[Path] = []
    waiting = [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            waiting.append(child)
            process = Path("/proc") / str(child)
            with suppress(OSError):
                if b"pyspark.daemon" in (process / "cmdline").read_bytes():
                    found.append(process)
    return found


def _rss(process: Path) -> float:
    try:
        pages = int((process / "statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
