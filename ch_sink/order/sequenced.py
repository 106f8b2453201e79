"""What the ordering of a batch comes to, and the trace of why (`ch_sink explain`).

A running stream has no trace: `order` and `merge` ask once for each batch, or where they leave a change out.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ch_sink.model.change import ChangeBatch
from ch_sink.model.floor import BackwardStep
from ch_sink.order.state import State
from ch_sink.order.version import Words


@dataclass(frozen=True, slots=True)
class Decision:
    """The rule that decided about one change, and the record or row that it was compared with."""

    rule: str
    """``applied``, or the reason for leaving it out."""
    why: str = ""
    offset: int = -1
    """Offset of the record in the same partition that it was compared with, -1 for none."""
    version: int = -1
    """Version of the row that it was compared with, -1 for none."""


@dataclass(slots=True)
class Trace:
    """The decisions about the events of one partition, by offset."""

    follow: Callable[[ChangeBatch, "Sequenced"], None]
    """Called with each ordered batch; keeps only the events that are followed."""
    decisions: dict[int, Decision] = field(default_factory=dict)
    filled: dict[int, Decision] = field(default_factory=dict)
    """Events that left out values, with the row that these were taken from."""

    def applied(self, offsets: Sequence[int]) -> None:
        """These events were written, or change nothing that is not written."""
        self.decisions |= dict.fromkeys(offsets, Decision("applied"))

    def note(self, offset: int, rule: str, why: str, *, against: int = -1, version: int = -1) -> None:
        """A rule decided otherwise. ``against``: offset of the other record; ``version``: that of the other row."""
        self.decisions[offset] = Decision(rule, why, against, version)


@dataclass(slots=True)
class Sequenced:
    """Order of a batch's events."""

    keep: npt.NDArray[np.bool_]
    """False for proved re-deliveries."""
    epoch: npt.NDArray[np.int64]
    commit: Words
    """What orders the events within an epoch (n, 2): the effective commit position, or the Kafka offset."""
    transaction: Words
    """Effective commit position (n, 2), which the events of a transaction share, if positions are followed."""
    version: Words
    """Version of each event's row (half 1)."""
    leaving: Words
    """Version of the delete row that leaves the row's old place (half 0)."""
    recheck: npt.NDArray[np.bool_]
    """True if changes may be applied a second time, so that a create may meet a stored row."""
    state: State
    steps: list[BackwardStep] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    trace: Trace | None = None
    """Where `merge` notes what it decides, if somebody follows it."""
