"""How long a stream waits for a server that is away, and when it tries again."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Patience", "Pauses"]


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses between attempts: they double from ``first`` to ``longest`` seconds, with jitter."""

    first: float = 1.0
    longest: float = 30.0
    jitter: Callable[[float, float], float] = field(default=random.uniform, compare=False)

    def before(self, attempt: int) -> float:
        """Seconds before the attempt after the ``attempt``-th failure in a row."""
        ceiling = min(self.first * 2.0 ** min(attempt - 1, 32), self.longest)
        return self.jitter(ceiling / 2, ceiling)


@dataclass(slots=True)
class Patience:
    """One stream's failures in a row. Times are seconds of any clock that never steps back."""

    retry_for: float = 3600.0
    """Seconds from the first failure to giving up; infinite for never."""
    pauses: Pauses = field(default_factory=Pauses)
    failures: int = 0
    began: float = math.inf
    """When the first failure came."""
    due: float = -math.inf
    """When to try again."""

    def failed(self, now: float) -> bool:
        """Note a failure; returns whether to try again, at ``due``."""
        self.failures += 1
        self.began = min(self.began, now)
        left = self.began + self.retry_for - now
        # The last attempt is made when the time is up, not a whole pause before.
        self.due = now + min(self.pauses.before(self.failures), max(left, 0.0))
        return left > 0

    def reset(self) -> None:
        """An attempt succeeded, or somebody asked for the next one at once."""
        self.failures, self.began, self.due = 0, math.inf, -math.inf
