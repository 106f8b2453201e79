"""Histories of changes, the same for the same seed and mix."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.suite.rows import Row, RowKind

__all__ = ["Change", "Mix", "changes"]

PLACEHOLDER = "__debezium_unavailable_value"


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the events in percent; what is left are creates. Snapshot rows come first."""

    snapshot: int = 20
    updates: int = 37
    deletes: int = 10
    key_changes: int = 0
    placeholders: int = 0
    """Share of the updates whose longest text is the unavailable-value placeholder."""
    hot: bool = False
    """Updates follow Zipf's law: few keys get most of them."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change. ``old_key`` and ``new_key``: the other half of a change of the key."""

    op: str
    key: int
    before: Row | None
    after: Row | None
    snapshot: bool = False
    old_key: int | None = None
    new_key: int | None = None


def changes(kind: RowKind, mix: Mix, count: int, seed: int = 7) -> Iterator[Change]:
    """Yield ``count`` changes in commit order."""
    rng = random.Random(seed)
    live: list[int] = []
    turns: dict[int, int] = {}
    following, made = 1, 0
    snapshot = count * mix.snapshot // 100

    def row(key: int) -> Row:
        return kind.make(key, turns[key] % 100, random.Random(key * 101 + turns[key]))

    def add() -> int:
        nonlocal following
        following += 1
        turns[following - 1] = 0
        live.append(following - 1)
        return following - 1

    def place() -> int:
        if not mix.hot:
            return rng.randrange(len(live))
        return min(int(rng.paretovariate(1.1)) - 1, len(live) - 1)

    def drop(at: int) -> int:
        live[at], live[-1] = live[-1], live[at]
        return live.pop()

    while made < count:
        draw = rng.random() * 100
        made += 1
        if made <= snapshot:
            key = add()
            yield Change("r", key, None, row(key), snapshot=True)
        elif len(live) > 1 and draw < mix.updates:
            key = live[place()]
            before = row(key)
            turns[key] += 1
            after = row(key)
            if mix.placeholders and rng.random() * 100 < mix.placeholders:
                longest = max((n for n, v in after.items() if isinstance(v, str)), key=lambda n: len(after[n]))
                after[longest] = PLACEHOLDER
            yield Change("u", key, before, after)
        elif len(live) > 1 and draw < mix.updates + mix.deletes:
            key = drop(rng.randrange(len(live)))
            yield Change("d", key, row(key), None)
        elif len(live) > 1 and draw < mix.updates + mix.deletes + mix.key_changes and made + 1 < count:
            old = drop(rng.randrange(len(live)))
            before, new = row(old), add()
            made += 1
            yield Change("d", old, before, None, new_key=new)
            yield Change("c", new, None, row(new), old_key=old)
        else:
            key = add()
            yield Change("c", key, None, row(key))
