"""When the executor is about to have a free slot: only then is it worth asking what a further batch would read.

What was asked for while all slots were taken would be old by the time its tasks begin, and events that came after the
question would wait for a whole batch more.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ch_sink.stream.tasks import Execute, Task, TaskResult, weight

__all__ = ["Slots", "Work"]

_LEAD = 0.2
"""Seconds from the question for watermarks to the first task: their answer, the intents, the executor's own start."""
_RECENT = 0.3
"""Share of the last call in what is known of the executor's pace."""


@dataclass(eq=False, slots=True)
class Work:
    """A batch that is to be executed."""

    slots: int
    """That it takes."""
    ends: float = math.inf
    """When its call is expected to end."""


class Slots:
    """An executor whose calls are watched. Used by several threads."""

    def __init__(self, execute: Execute, count: Callable[[], int], now: Callable[[], float]) -> None:
        self._execute, self._ask, self._now = execute, count, now
        self._lock = threading.Lock()
        self._count = 1
        self._pace = math.inf
        """Seconds a slot takes for a task's unit of weight."""
        self._taken: list[Work] = []

    def expect(self, tasks: int) -> Work:
        """So many tasks are going to be executed; `done` must be called in any case."""
        work = Work(tasks)
        with self._lock:
            self._taken.append(work)
        return work

    def run(self, work: Work, tasks: Sequence[Task]) -> Sequence[TaskResult]:
        """See Execute."""
        count = max(self._ask(), 1)
        with self._lock:
            began, self._count, work.slots = self._now(), count, min(len(tasks), count)
            load = sum(map(weight, tasks)) / max(work.slots, 1)
            others = [other for other in self._taken if other is not work and other.ends < math.inf]
            waits = sum(other.slots for other in others) + work.slots > count
            starts = max(other.ends for other in others) if waits and others else began
            work.ends = starts + load * self._pace
            if work not in self._taken:
                self._taken.append(work)
        try:
            results = self._execute(tasks)
        finally:
            self.done(work)
        if starts <= began and load:
            pace = (self._now() - began) / load
            self._pace = pace if self._pace == math.inf else self._pace + _RECENT * (pace - self._pace)
        return results

    def done(self, work: Work) -> None:
        """Its tasks have ended, or do not come."""
        with self._lock:
            if work in self._taken:
                self._taken.remove(work)

    def wait(self) -> float:
        """Seconds until it is time to plan a batch; infinite if that is when a call has ended."""
        with self._lock:
            if sum(work.slots for work in self._taken) < self._count:
                return 0.0
            if any(work.ends == math.inf for work in self._taken):
                return math.inf
            return max(0.0, max(work.ends for work in self._taken) - _LEAD - self._now())
