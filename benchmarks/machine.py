"""The machine on which a figure was measured."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

__all__ = ["describe"]


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
