"""Column names that differ by letter case only. ClickHouse and the sink compare names as written; people may not."""

from collections.abc import Iterable, Iterator

__all__ = ["clashes"]


def clashes(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of different names that are one in lower case, each with the first of its kind."""
    lower: dict[str, str] = {}
    for name in dict.fromkeys(names):
        other = lower.setdefault(name.lower(), name)
        if other != name:
            yield other, name
