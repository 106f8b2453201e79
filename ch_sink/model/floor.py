"""Floors: changes below them are dropped, because a truncate removed them or loaded rows already show them."""

from dataclasses import dataclass

__all__ = ["NOTHING_LOADED", "NO_FLOOR", "Floor", "Loaded"]


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
