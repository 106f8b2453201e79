"""How many dead letters stop a stream."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ch_sink.errors import StreamFailed
from ch_sink.model.counts import counted

_WINDOW = 1_000
"""The rate of dead letters is that of the newest batches with so many records together; fewer are not judged."""


@dataclass(frozen=True, slots=True)
class ErrorLimits:
    """How many records may become dead letters before the stream stops; None for no limit."""

    most: int | None = None
    """Dead letters of the stream that are neither applied nor dropped since."""
    rate: float | None = None
    """Dead letters among the newest records, from 0 to 1."""


@dataclass(slots=True)
class ErrorWatch:
    """Compares one stream's dead letters with ``errors.max`` and ``errors.max_rate``."""

    limits: ErrorLimits
    waiting: Callable[[], int]
    """Asks how many dead letters are neither applied nor dropped; only asked if there is a limit for them."""
    _batches: deque[tuple[int, int]] = field(default_factory=deque)
    """Records and dead letters of the newest batches."""

    def expect_few(self) -> None:
        """Raises StreamFailed if more dead letters wait than ``errors.max`` allows."""
        if self.limits.most is None:
            return
        waiting = self.waiting()
        if waiting > self.limits.most:
            raise StreamFailed(
                f"{counted(waiting, 'dead letter')} of this stream, and errors.max is {self.limits.most}",
                hint="See `ch_sink dead-letters list CONFIG`; retry or drop them, or raise errors.max. "
                "Then run `ch_sink resume CONFIG`.",
            )

    def add(self, records: int, dead_letters: int) -> None:
        """A batch has ended. Raises StreamFailed if it goes beyond a limit; what it did is recorded by then."""
        self._batches.append((records, dead_letters))
        while len(self._batches) > 1 and sum(n for n, _ in self._batches) - self._batches[0][0] >= _WINDOW:
            self._batches.popleft()
        if not dead_letters:
            return
        read, bad = (sum(column) for column in zip(*self._batches, strict=True))
        if self.limits.rate is not None and read >= _WINDOW and bad > self.limits.rate * read:
            self._batches.clear()  # whoever resumes the stream accepts these
            raise StreamFailed(
                f"{bad} of the last {read} records became dead letters, and errors.max_rate is {self.limits.rate:g}",
                hint="See `ch_sink dead-letters list CONFIG` for the reasons; fix the cause or raise errors.max_rate. "
                "Then run `ch_sink resume CONFIG`.",
            )
        self.expect_few()
