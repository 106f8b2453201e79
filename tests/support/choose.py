"""Parameters of which some run in ``make test`` and the rest in ``make test-long``."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def some(every: Iterable[tuple[Any, ...]], chosen: Iterable[tuple[Any, ...]]) -> list[Any]:
    """All of them as parameters; those that are not chosen are for the long run."""
    short = list(chosen)
    return [pytest.param(*one, marks=() if one in short else pytest.mark.long) for one in every]


def each_value(*axes: Iterable[Any]) -> list[Any]:
    """All combinations; enough of them in the short run that each value is met."""
    values = [tuple(axis) for axis in axes]
    # By their places: values need no hash.
    named = [
        tuple(axis[i] for axis, i in zip(values, places, strict=True)) for places in _cover(list(map(len, values)))
    ]
    return some(product(*values), named)


def _cover(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Combinations in which all places of each axis are: the one with most that is new, repeated."""
    every = list(product(*map(range, sizes)))
    wanted = {met for one in every for met in enumerate(one)}
    used: Counter[Any] = Counter()
    chosen = []
    while wanted:
        best = max(
            every, key=lambda one: (len(wanted.intersection(enumerate(one))), -sum(used[v] for v in enumerate(one)))
        )
        chosen.append(best)
        wanted.difference_update(enumerate(best))
        used.update(enumerate(best))
    return chosen
