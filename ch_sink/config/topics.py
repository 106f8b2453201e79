"""Which topics a job reads: ``kafka.topics``, a pattern or a list."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Topics"]

_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
"""A legal topic name. In a list it stands for itself, though a dot would match any character in a pattern."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Names and patterns of topics. ``text`` is how the file writes them."""

    text: str
    names: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()

    @staticmethod
    def of(given: object) -> "Topics":
        """From the value of ``kafka.topics``. Raises ValueError if it is no pattern and no list of them."""
        if isinstance(given, str) and given:
            return Topics(given, patterns=(_compiled(given),))
        if not isinstance(given, list) or not given or not all(isinstance(item, str) and item for item in given):
            raise ValueError("must be a pattern or a list of topics and patterns")
        names = frozenset(item for item in given if _PLAIN.fullmatch(item))
        patterns = tuple(_compiled(item) for item in given if item not in names)
        return Topics(", ".join(given), names, patterns)

    @property
    def open(self) -> bool:
        """Whether topics that do not exist yet may belong to the job."""
        return bool(self.patterns)

    def among(self, existing: Iterable[str]) -> tuple[str, ...]:
        """Those of the topics that belong to the job, sorted.

        Topics whose names begin with ``__`` are Kafka's own; a pattern must begin so to match them.
        """
        return tuple(sorted(name for name in existing if name in self.names or self._matches(name)))

    def missing(self, existing: Iterable[str]) -> tuple[str, ...]:
        """Listed names that do not exist, sorted."""
        return tuple(sorted(self.names.difference(existing)))

    def _matches(self, name: str) -> bool:
        own = name.startswith("__")
        return any(p.fullmatch(name) and (not own or p.pattern.startswith("__")) for p in self.patterns)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no pattern: {error}") from None
