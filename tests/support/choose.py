"""Parameters of which some run in ``make test`` and the rest in ``make test-long``."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

GOLDEN = 0.618
"""Multiples of it, modulo 1, order numbers so that any first few of them are spread evenly."""


def leave_for_the_night(items: Iterable[pytest.Item]) -> None:
    """Mark as ``long`` what ``@pytest.mark.sampled(N)`` leaves out: all parameters of a test but N."""
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled") and not _is_long(item):
            tests[item.nodeid.partition("[")[0]].append(item)
    for of_test in tests.values():
        marker = of_test[0].get_closest_marker("sampled")
        assert marker is not None
        kept = _sample([item.callspec.indices for item in of_test], *marker.args)
        for i, item in enumerate(of_test):
            if i not in kept:
                item.add_marker(pytest.mark.long)


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _sample(every: Sequence[Mapping[str, int]], count: int) -> set[int]:
    """Places of some combinations that meet many values of each argument, and are not neighbours."""
    left, met, chosen = list(range(len(every))), Counter[tuple[str, int]](), set[int]()
    while left and len(chosen) < count:
        best = min(left, key=lambda i: (sum(met[value] for value in every[i].items()), i * GOLDEN % 1))
        left.remove(best)
        chosen.add(best)
        met.update(every[best].items())
    return chosen


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
