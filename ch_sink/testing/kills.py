"""Kills as data: the points at which a run of the job ends.

A *life* is the job from its start to its end or kill.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["POINTS", "Kill", "KillSwitch", "Killed"]

POINTS = (
    "before intents",
    "after intents",
    "before handover",
    "after handover",
    "before pending",
    "after pending",
    "before cut",
    "after cut",
    "before insert",
    "after insert",
    "before dead letters",
    "after dead letters",
    "before progress",
    "after progress",
    "before group",
    "after group",
    "before release",
    "after release",
    "after step",
    "before truncate",
    "after truncate",
    "before results",
    "after results",
    "before alter",
    "after alter",
    "before record",
    "after record",
    "before commit",
)
"""Points at which a life can end. ``group``: the ledger stores which waiting changes are released together.
``release``: they are marked as applied. ``record``: the ledger stores a fact. ``step``: a chunk of one partition, see
LocalBatch. ``commit``: the batch is done and recorded, and the next one has not begun."""


class Killed(BaseException):
    """The process died here. Not an Exception, so that no handler of the product catches it."""


@dataclass(frozen=True, slots=True)
class Kill:
    """The life ends when the point is reached for the ``nth`` time in one attempt at a batch.

    With ``step`` only what happens in that step of the batch counts, and the life ends with that step at the latest.
    """

    point: str
    nth: int = 1
    step: int | None = None

    def __post_init__(self) -> None:
        if self.point not in POINTS:
            raise ValueError(f"no such point: {self.point!r}. Use one of: {', '.join(POINTS)}.")


@dataclass(slots=True)
class KillSwitch:
    """Counts the points of one attempt, and ends the life at the first kill that is due."""

    kills: Sequence[Kill] = ()
    step: int | None = None
    """The current step, None outside of steps."""
    _met: Counter[Kill] = field(default_factory=Counter)

    def arm(self, *kills: Kill) -> None:
        """Start another attempt with these kills."""
        self.kills, self.step = kills, None
        self._met.clear()

    def reach(self, point: str) -> None:
        """Raises Killed if a kill is due at this point."""
        for kill in self.kills:
            if kill.point == point and kill.step in (None, self.step):
                self._met[kill] += 1
                if self._met[kill] == kill.nth:
                    raise Killed(f"{kill}")

    def end_step(self) -> None:
        """End the step. Raises Killed if one of its kills has not struck yet."""
        self.reach("after step")
        if any(kill.step is not None and kill.step == self.step for kill in self.kills):
            raise Killed("at the end of its step")
        self.step = None


@dataclass(frozen=True, slots=True)
class Guarded:
    """A port with kill points before and after some of its methods."""

    inner: Any
    switch: KillSwitch
    points: dict[str, str]
    """Method → the point's name, without ``before`` and ``after``."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        point = self.points.get(name)
        if point is None:
            return method

        def guarded(*given: Any, **named: Any) -> Any:
            self.switch.reach(f"before {point}")
            done = method(*given, **named)
            self.switch.reach(f"after {point}")
            return done

        return guarded
