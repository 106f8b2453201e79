"""Positions of a source: floors, below which changes are dropped, and the places where positions step back.

A truncate removed what is below a floor, or loaded rows already show it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Floor:
    """Position of a truncate. Floors compare by epoch, then commit position, then inner position."""

    epoch: int = 0
    commit: int = 0
    inner: int = 0


NO_FLOOR = Floor()


@dataclass(frozen=True, slots=True, order=True)
class Loaded:
    """Rows were loaded from the source: they show every change of this epoch below the position."""

    epoch: int = 0
    position: int = 0
    """As the source's positions are; 0 if it is unknown."""
    until: int = 0
    """Milliseconds since 1970: a change of later has another origin than its position says."""


NOTHING_LOADED = Loaded()


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """Where the positions of a source stepped back, as the log and the ledger show it."""

    kind: str
    """``redelivery``, ``regress`` or ``new source``."""
    source: str
    offset: int
    commit: int
    """Commit position of the event."""
    highest: int
    """Highest commit position before it."""

    def __str__(self) -> str:
        if self.kind == "new source":
            return (
                f"source {self.source!r} is new and begins at position {self.commit}, below {self.highest} of the "
                "sources before it: from here on its changes win"
            )
        return f"source {self.source!r} stepped back from position {self.highest} to {self.commit} ({self.kind})"
