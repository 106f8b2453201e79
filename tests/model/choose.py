"""One way to draw for two worlds: a seeded random number generator (long runs) and Hypothesis (shrinking).

Small numbers and first entries are the simple ones, which Hypothesis shrinks to.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Chooser(Protocol):
    def integer(self, low: int, high: int) -> int: ...

    def chance(self, percent: int) -> bool:
        """True in about ``percent`` of a hundred draws."""
        ...

    def choice(self, options: Sequence[T]) -> T: ...


class RandomChooser:
    def __init__(self, seed: int | random.Random) -> None:
        self._random = seed if isinstance(seed, random.Random) else random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def chance(self, percent: int) -> bool:
        return self._random.randrange(100) >= 100 - percent

    def choice(self, options: Sequence[T]) -> T:
        return options[self._random.randrange(len(options))]


class HypothesisChooser:
    """Over a ``draw`` function of ``st.composite``, or the ``draw`` method of ``st.data()``."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        from hypothesis import strategies

        self._draw, self._st = draw, strategies

    def integer(self, low: int, high: int) -> int:
        return int(self._draw(self._st.integers(low, high)))

    def chance(self, percent: int) -> bool:
        return self.integer(0, 99) >= 100 - percent

    def choice(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]


def chooser(source: Any) -> Chooser:
    """A chooser from a seed, a ``random.Random``, Hypothesis' ``draw`` or its ``data`` object."""
    if isinstance(source, int | random.Random):
        return RandomChooser(source)
    if hasattr(source, "integer") and hasattr(source, "chance"):
        return source  # type: ignore[no-any-return]
    return HypothesisChooser(source.draw if hasattr(source, "draw") else source)
