"""Parameters of which some run in ``make test`` and the rest in ``make test-long``."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
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
        kept = set(islice(_spread([item.callspec.indices for item in of_test]), *marker.args))
        for i, item in enumerate(of_test):
            if i not in kept:
                item.add_marker(pytest.mark.long)


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _spread(every: Sequence[Mapping[Any, int]]) -> Iterator[int]:
    """Places of combinations: next is always one whose values were met least, and no neighbour of the last."""
    left, met = list(range(len(every))), Counter[tuple[Any, int]]()
    while left:
        best = min(left, key=lambda i: (sum(met[value] for value in every[i].items()), i * GOLDEN % 1))
        left.remove(best)
        met.update(every[best].items())
        yield best


def some(every: Iterable[tuple[Any, ...]], chosen: Iterable[tuple[Any, ...]]) -> list[Any]:
    """All of them as parameters; those that are not chosen are for the long run."""
    short = list(chosen)
    return [pytest.param(*one, marks=() if one in short else pytest.mark.long) for one in every]


def each_value(*axes: Iterable[Any]) -> list[Any]:
    """All combinations; enough of them in the short run that each value is met."""
    values = [tuple(axis) for axis in axes]
    # By their places: values need no hash.
    every = [dict(enumerate(places)) for places in product(*(range(len(axis)) for axis in values))]
    wanted, short = {met for one in every for met in one.items()}, list[int]()
    for place in _spread(every):
        if not wanted:
            break
        short.append(place)
        wanted.difference_update(every[place].items())
    combinations = list(product(*values))
    return some(combinations, [combinations[place] for place in short])
