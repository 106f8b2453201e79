"""What a call costs: seconds of the process's own time, and the memory that it has at most."""

import ctypes
import gc
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PEAK = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Cost:
    """``mib``: beyond what the process had before; 0 where the system does not tell."""

    seconds: float
    mib: float


def costing(call: Callable[[], object]) -> Cost:
    """What this call costs."""
    gc.collect(0)
    _trim()
    before = _reset()
    began = time.process_time()
    call()
    seconds = time.process_time() - began
    return Cost(seconds, (_kib("VmHWM") - before) / 1024 if before else 0.0)


def _trim() -> None:
    """Give back what earlier calls have freed: else it would serve this one unseen."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _reset() -> int:
    """Let the peak begin anew; what the process has now, in KiB, 0 if the system does not tell."""
    try:
        _PEAK.write_text("5")
        return _kib("VmRSS")
    except OSError:
        return 0


def _kib(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    return 0
