"""Identity of a key change, by which its delete half hands the row's values to its create half."""

from dataclasses import dataclass

__all__ = ["HandoverId"]


@dataclass(frozen=True, slots=True)
class HandoverId:
    """The source's name and the position of the change as the event states it, in words of 64 bits."""

    source: str
    commit_high: int
    """The commit position uses the low 16 bits; the source time in milliseconds is above them."""
    commit_low: int
    inner_high: int
    inner_low: int
