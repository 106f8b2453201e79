"""The floor that a truncate sets: changes below it are dropped, wherever they come from."""

from dataclasses import dataclass

__all__ = ["NO_FLOOR", "Floor"]


@dataclass(frozen=True, slots=True, order=True)
class Floor:
    """Position of a truncate. Floors compare by epoch, then commit position, then inner position."""

    epoch: int = 0
    commit: int = 0
    inner: int = 0


NO_FLOOR = Floor()
