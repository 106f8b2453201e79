"""The pace of a job's streams: when they read, how much, when a slot is free, and when a failed one tries again.

`Flush`: a stream with few new events waits for more, so that hundreds of small tables do not make as many parts a
second. `fair_shares`: how many offsets each stream may read in its next batch. `Slots`: when the executor is about to
have a free slot; only then is it worth asking what a further batch would read, since what was asked for while all slots
were taken would be old by the time its tasks begin. Where streams have several ClickHouse servers, the calls of one
leave a slot to the others, since it may hang in all that they take. `Patience`: how long an unavailable server is
retried.
"""

import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ch_sink.stream.tasks import ExecuteWithin, Task, TaskResult, weight

K = TypeVar("K", int, str)

GIVE_UP_SECONDS = 30.0
"""How often a quiet stream looks at changes that wait: they may have waited long enough."""
ACTIVE_SECONDS = 10.0
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


LONG = 50_000
"""Offsets above which a stream's backlog is long."""
FEW = 2_000
"""Offsets up to which a partition counts as live."""
_TURN = 100_000
"""Offsets of long backlogs that are read at once while others are live: about a second of work."""


def in_turn(limit: int | None) -> int:
    """The limit of a stream with a long backlog while others are live."""
    return _TURN if limit is None else min(limit, _TURN)


def shared(needs: Mapping[K, int], limit: int) -> dict[K, int]:
    """Share the limit equally; what one does not need is left to the others."""
    shares = dict.fromkeys(needs, 0)
    # Smallest need first: its unused share is left to those after it.
    waiting = sorted((one for one in needs if needs[one]), key=lambda one: (needs[one], one))
    for number, one in enumerate(waiting):
        # Rounded up, so that a limit below their number still moves one of them.
        shares[one] = min(needs[one], -(-limit // (len(waiting) - number)))
        limit -= shares[one]
    return shares


def fair_shares(needs: Mapping[str, int], limits: Mapping[str, int | None]) -> dict[str, int | None]:
    """Share the largest of the limits among the streams that have something to read.

    No stream gets more than its own limit, or less than one offset. One without a limit does not take part: None.
    """
    limited = {name: limit for name in needs if (limit := limits[name]) is not None}
    shares = shared(
        {name: min(needs[name], limit) for name, limit in limited.items()}, max(limited.values(), default=0)
    )
    return {name: max(1, shares[name]) if name in limited else None for name in needs}


_LEAD = 0.2
"""Seconds from the question for watermarks to the first task: their answer, the intents, the executor's own start."""
_RECENT = 0.3
"""Share of the last call in what is known of the executor's pace."""


@dataclass(eq=False, slots=True)
class Call:
    """A batch to execute."""

    slots: int
    """The slots that it takes."""
    server: str = ""
    """The ClickHouse server of its streams."""
    runs: bool = False
    ends: float = math.inf
    """The time at which its call is expected to end."""


class Slots:
    """An executor whose calls are watched. Used by several threads."""

    def __init__(self, execute: ExecuteWithin, count: Callable[[], int], now: Callable[[], float]) -> None:
        self._execute, self._ask, self._now = execute, count, now
        self._lock = threading.Condition()
        self._count = 1
        self._shared = False
        self._pace = math.inf
        """Seconds a slot takes for a task's unit of weight."""
        self._taken: list[Call] = []

    def expect(self, tasks: int, server: str = "", *, shared: bool = False) -> Call:
        """So many tasks of one server are going to be executed; `done` must be called in any case.

        Args:
            shared: the job has streams of other servers, too.
        """
        work = Call(tasks, server)
        with self._lock:
            self._taken.append(work)
            self._shared = shared
        return work

    def run(self, work: Call, tasks: Sequence[Task]) -> Sequence[TaskResult]:
        """See Execute."""
        self._count = max(self._ask(), 1)
        with self._lock:
            while self._shared and not self._left(work):
                self._lock.wait()
            most = self._left(work) if self._shared else None
            began, work.slots, work.runs = self._now(), min(len(tasks), most or self._count), True
            load = sum(map(weight, tasks)) / max(work.slots, 1)
            others = [other for other in self._of(work.server) if other is not work and other.ends < math.inf]
            waits = sum(other.slots for other in others) + work.slots > self._most
            starts = max(other.ends for other in others) if waits and others else began
            work.ends = starts + load * self._pace
            if work not in self._taken:
                self._taken.append(work)
        try:
            results = self._execute(tasks, most)
        finally:
            self.done(work)
        if starts <= began and load:
            pace = (self._now() - began) / load
            self._pace = pace if self._pace == math.inf else self._pace + _RECENT * (pace - self._pace)
        return results

    def done(self, work: Call) -> None:
        """Its tasks have ended, or do not come."""
        with self._lock:
            work.runs = False
            if work in self._taken:
                self._taken.remove(work)
            self._lock.notify_all()

    def wait(self, server: str = "") -> float:
        """Seconds until it is time to plan a batch of this server; infinite if that is when a call has ended."""
        with self._lock:
            taken = self._of(server)
            if sum(work.slots for work in taken) < self._most:
                return 0.0
            if any(work.ends == math.inf for work in taken):
                return math.inf
            return max(0.0, max(work.ends for work in taken) - _LEAD - self._now())

    @property
    def _most(self) -> int:
        """Slots that the calls of one server take at most."""
        return max(1, self._count - 1) if self._shared else self._count

    def _of(self, server: str) -> list[Call]:
        """The calls that hold slots of this server."""
        return [work for work in self._taken if work.server == server or not self._shared]

    def _left(self, work: Call) -> int:
        """How many slots other calls of its server leave to it."""
        return self._most - sum(other.slots for other in self._of(work.server) if other.runs and other is not work)


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
    """The time of the first failure."""
    due: float = -math.inf
    """The time of the next attempt."""

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
