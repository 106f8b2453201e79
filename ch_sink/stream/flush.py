"""When a stream with few new events is read, so that hundreds of small tables do not make as many parts a second."""

from dataclasses import dataclass

__all__ = ["ACTIVE", "Flush"]

ACTIVE = 10.0
"""Seconds after its last batch for which a stream counts as active."""
_FEW = 20
"""Active streams up to which nothing waits by itself."""
_RATE = 100.0
"""Batches of a second that a job does not exceed by itself, unless events would wait too long."""
_LONGEST = 1.0
"""Seconds for which events wait by themselves at most."""


@dataclass(frozen=True, slots=True)
class Flush:
    """How long events may wait for more."""

    interval: float | None = None
    """Seconds; None: by the number of the job's active streams."""
    rows: int = 10_000
    """Events of which there are as many do not wait."""

    def longest(self, active: int) -> float:
        """Seconds for which events may wait, by the number of the job's active streams."""
        if self.interval is not None:
            return self.interval
        return min(_LONGEST, active / _RATE) if active > _FEW else 0.0

    def waits(self, events: int, waited: float, active: int) -> bool:
        """Whether so many events, of which the first may have waited for so many seconds, wait on."""
        return events < self.rows and waited < self.longest(active)
