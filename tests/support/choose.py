"""Parameters of which some run in ``make test`` and the rest in ``make test-long``."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

__all__ = ["each_value", "every_pair", "some"]


def some(every: Iterable[tuple[Any, ...]], chosen: Iterable[tuple[Any, ...]]) -> list[Any]:
    """All of them as parameters; those that are not chosen are for the long run."""
    short = list(chosen)
    return [pytest.param(*one, marks=() if one in short else pytest.mark.long) for one in every]


def each_value(*axes: Iterable[Any]) -> list[Any]:
    """All combinations; enough of them in the short run that each value is met."""
    return _covered(axes, 1)


def every_pair(*axes: Iterable[Any]) -> list[Any]:
    """All combinations; enough of them in the short run that any two values of different axes meet."""
    return _covered(axes, 2)


def _covered(axes: Iterable[Iterable[Any]], strength: int) -> list[Any]:
    values = [tuple(axis) for axis in axes]
    # By their places: values need no hash.
    chosen = _cover([range(len(axis)) for axis in values], strength)
    named = [tuple(axis[i] for axis, i in zip(values, places, strict=True)) for places in chosen]
    return some(product(*values), named)


def _cover(axes: Sequence[Sequence[Any]], strength: int) -> list[tuple[Any, ...]]:
    """Combinations in which all ``strength`` values of different axes meet: the one with most that is new, repeated."""
    every = list(product(*axes))
    wanted = {met for one in every for met in _met(one, strength)}
    used: Counter[Any] = Counter()
    chosen = []
    while wanted:
        best = max(every, key=lambda one: (len(_met(one, strength) & wanted), -sum(used[v] for v in enumerate(one))))
        chosen.append(best)
        wanted -= _met(best, strength)
        used.update(enumerate(best))
    return chosen


def _met(one: tuple[Any, ...], strength: int) -> set[tuple[Any, ...]]:
    return set(combinations(enumerate(one), strength))
