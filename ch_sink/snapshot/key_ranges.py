"""Ranges of an integer column as parts, in SQL that all databases understand. Names are quoted by the caller."""

from itertools import pairwise

from ch_sink.snapshot.reader import Part

__all__ = ["between", "key_ranges"]


def between(name: str, low: int | None, end: int | None) -> Part:
    """The rows with ``low <= name < end``; None for no limit."""
    limits = [f"{name} >= {low}"] if low is not None else []
    return Part(" AND ".join([*limits, *([f"{name} < {end}"] if end is not None else [])]))


def key_ranges(name: str, low: int, high: int, many: int) -> list[Part]:
    """All rows as at most so many ranges, of equal width from the lowest to the highest value."""
    bounds = sorted({low + (high - low) * n // many for n in range(1, many)})
    return [between(name, *both) for both in pairwise([None, *bounds, None])]
