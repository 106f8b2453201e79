"""Faults as data: the points of a run, and what happens there.

A *life* is the job from its start to its end or kill. A fault is written as it is read:

    after insert #2: no answer
    before results: second job, dies before commit
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ch_sink.errors import BrokerUnavailable, ChSinkError, ClickHouseError, ClickHouseUnavailable, LedgerConflict

POINTS = (
    "before claim",
    "after claim",
    "before intents",
    "after intents",
    "before handover",
    "after handover",
    "before pending",
    "after pending",
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
"""Points after and before writes, at which a life can end. ``group``: the ledger stores which waiting changes are
released together. ``release``: they are marked as applied. ``record``: the ledger stores a fact. ``step``: a chunk of
one partition, see LocalBatch. ``commit``: the batch is done and recorded, and the next one has not begun."""
ALL_POINTS = (*POINTS, "before lookup", "after lookup", "before consume", "before batch")
"""Points at which something can happen. ``consume``: Kafka is read. ``batch``: an attempt at it begins."""

What = Literal[
    "kill",
    "no answer",
    "error",
    "twice",
    "second job",
    "second execution",
    "stale replica",
    "clock",
    "restored",
    "setting",
]
"""What happens:

* ``kill``: the process is gone.
* ``no answer``: the server does not answer, and the stream is opened again. Before a write, the connection was cut in
  mid-body; after it, the time was over although the write was done.
* ``error``: the same with the server's error number ``value``.
* ``twice``: the client sends the write again because the first answer was lost.
* ``second job``: the process is frozen here (SIGSTOP) while a job on another host takes over and finishes the batch, or
  dies at the point ``dies``; then it wakes up.
* ``second execution``: the task is frozen while Spark runs it again.
* ``stale replica``: reads from here on may be answered by a replica that lacks the last ``value`` rows.
* ``clock``: the clock of the host steps by ``value`` seconds.
* ``restored``: ClickHouse is taken back to how it was ``value`` batches before; the job starts afresh.
* ``setting``: the job starts afresh with another configuration, drawn by ``value``.
"""
_TEXT = re.compile(
    rf"(?P<point>{'|'.join(ALL_POINTS)})(?: #(?P<nth>\d+))?(?: of step (?P<step>\d+))?: "
    rf"(?P<what>{'|'.join(get_args(What))})(?: (?P<value>-?\d+))?(?:, dies (?P<dies>.*))?"
)


class Killed(BaseException):
    """The process died here. Not an Exception, so that no handler of the product catches it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something happens when the point is reached for the ``nth`` time in one attempt at a batch.

    With ``step`` only what happens in that step of the batch counts; a kill then ends that step at the latest.
    """

    point: str
    nth: int = 1
    step: int | None = None
    what: What = "kill"
    value: int = 0
    dies: str = ""
    """Where the second job dies, if it does."""

    def __post_init__(self) -> None:
        for point in (self.point, self.dies):
            if point and point not in ALL_POINTS:
                raise ValueError(f"no such point: {point!r}")

    def __str__(self) -> str:
        number = f" #{self.nth}" if self.nth > 1 else ""
        step = f" of step {self.step}" if self.step is not None else ""
        value = f" {self.value}" if self.value else ""
        dies = f", dies {self.dies}" if self.dies else ""
        return f"{self.point}{number}{step}: {self.what}{value}{dies}"

    @staticmethod
    def parse(text: str) -> "Fault":
        """The fault that is printed so. Raises ValueError."""
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"no fault: {text!r}")
        part = found.groupdict()
        step = int(part["step"]) if part["step"] is not None else None
        what: Any = part["what"]
        return Fault(part["point"], int(part["nth"] or 1), step, what, int(part["value"] or 0), part["dies"] or "")


class Kill(Fault):
    """The life ends at the point."""

    __slots__ = ()


@dataclass(slots=True)
class KillSwitch:
    """Knows the faults of the current attempt, and lets each happen when it is due."""

    faults: Sequence[Fault] = ()
    step: int | None = None
    """The current step, None outside of steps."""
    happen: Callable[[Fault], None] = lambda _: None
    """Called with what this object cannot do itself."""
    struck: list[Fault] = field(default_factory=list)
    """What has happened in the attempt."""
    happened: Counter[str] = field(default_factory=Counter)
    """How often each kind has happened so far."""
    again: bool = False
    """The next write is sent twice."""
    _met: Counter[Fault] = field(default_factory=Counter)
    _errors: list[ChSinkError] = field(default_factory=list)

    def arm(self, *faults: Fault) -> None:
        """Start another attempt with these faults."""
        self.faults, self.step, self.again = faults, None, False
        self.struck.clear()
        self._met.clear()
        self._errors.clear()

    def reach(self, point: str) -> None:
        """Let what is due at this point happen. Raises Killed or ChSinkError if that is what it is."""
        for fault in self.faults:
            if fault.point == point and fault.step in (None, self.step):
                self._met[fault] += 1
                if self._met[fault] == fault.nth:
                    self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        self.struck.append(fault)
        self.happened[fault.what] += 1
        match fault.what:
            case "kill":
                raise Killed(f"{fault}")
            case "no answer" | "error":
                self._errors.append(_error(fault))
                raise self._errors[-1]
            case "twice":
                self.again = True
            case _:
                self.happen(fault)

    def end_step(self) -> None:
        """End the step. Raises Killed if one of its kills has not struck yet."""
        self.reach("after step")
        if any(f.what == "kill" and f.step is not None and f.step == self.step for f in self.faults):
            raise Killed("at the end of its step")
        self.step = None

    def caused(self, error: ChSinkError) -> bool:
        """Whether the error is what a fault of this attempt leads to."""
        superseded = isinstance(error, LedgerConflict) and any(f.what.startswith("second") for f in self.struck)
        return superseded or any(error is known for known in self._errors)


def _error(fault: Fault) -> ChSinkError:
    if fault.point.endswith("consume"):
        return BrokerUnavailable(f"{fault}")
    if fault.what == "error":
        return ClickHouseError(f"{fault}", code=fault.value)
    return ClickHouseUnavailable(f"{fault}")


@dataclass(frozen=True, slots=True)
class Guarded:
    """A port with points before and after some of its methods."""

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
            if self.switch.again:
                self.switch.again = False
                method(*given, **named)
            self.switch.reach(f"after {point}")
            return done

        return guarded
