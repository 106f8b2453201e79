"""What the ledger says that a table has to hold, as far as its highest version shows it.

Results, the last filling and repairs from the source each leave a version that has to be there. Rows that a truncate, a
purge or an erasure removed do not count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from ch_sink.model.floor import Floor
from ch_sink.order.version import POSITION_SHIFT
from ch_sink.ports import FinishedRange, Ledger, RowsRemoved, TableRefilled, TableRepaired, TableTakenBack

__all__ = ["Evidence", "Filling", "newest_stored", "repairs", "since_begun"]

_COMMIT_BITS = 80


@dataclass(frozen=True, slots=True)
class Filling:
    """The last time that the table was replaced by one that was filled anew."""

    offsets: Mapping[int, int]
    """Partition → everything below was in that table; empty if the stream alone has filled the table."""
    top: int | None = -1
    """The highest version of a living row of that table, −1 for none; None if it is unknown."""
    from_source: bool = False
    """Its rows were read from the source: the topic may lack them."""

    @classmethod
    def last(cls, fillings: Sequence[TableRefilled], topic_id: str) -> "Filling":
        """Of all fillings that the ledger knows, oldest first."""
        mine = {f.partition: f for f in fillings if f.topic_id == topic_id}
        tops = [int(f.top) if f.top else None for f in mine.values()]
        known = [top for top in tops if top is not None]
        return cls(
            {p: f.offset for p, f in mine.items()},
            None if len(known) < len(tops) else max(known, default=-1),
            any(f.until for f in mine.values()),
        )

    def without_former(self, results: Iterable[FinishedRange]) -> list[FinishedRange]:
        """The results behind the filling: what was stored before is not in the table that took the place."""
        return [r for r in results if r.end > self.offsets.get(r.partition, -1)]

    def is_in(self, stored_version: int) -> bool | None:
        """Whether a table with this highest version is that one or a later state of it; None if it is not known."""
        return None if self.top is None else stored_version >= self.top


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one stream's table has to hold. Versions are −1 where there is none."""

    filling: Filling
    """The last one; without it if the table was taken back to before it, and read again from the topic since."""
    results: Sequence[FinishedRange]
    """The last ones that count."""
    floors: Sequence[Floor]
    """Of the truncates."""
    repaired: int
    """The highest version that a repair from the source has written above all changes."""
    removals: Callable[[], tuple[int, int]]
    """Asks for the highest version that was erased, and the highest one that was there beside it."""

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        topic_id: str,
        partitions: int,
        floors: Iterable[Floor],
        back: Sequence[TableTakenBack],
        *,
        reads_again: bool,
    ) -> "Evidence":
        """``back``: all that the ledger knows; ``reads_again``: a reading again is under way."""
        results = [r for r in ledger.history(4 * partitions) if r.topic_id == topic_id]
        fillings = ledger.facts(TableRefilled)
        filling = Filling.last(fillings, topic_id)
        again = [t for t in back if t.topic_id == topic_id and t.since == len(fillings)]
        if lost := any(filling.is_in(int(t.stored)) is False for t in again):
            # What the topic no longer holds of the filled table is not looked for at every start.
            filling = Filling({})
        return cls(
            filling,
            since_begun(results) if lost or reads_again else filling.without_former(results),
            list(floors),
            max((int(fact.top) for fact in repairs(ledger, topic_id, len(fillings))), default=-1),
            cache(partial(_removals, ledger, topic_id, len(back) + len(fillings))),
        )

    @property
    def stored(self) -> int:
        """The highest version that was stored, by the stream or by a filling."""
        return max(newest_stored(self.results, self.floors), self.filling.top or 0)

    def is_met(self, stored_version: int) -> bool:
        """Whether a table with this highest version (−1: no row) has all of it."""
        if self._shows(stored_version, -1, -1) and stored_version >= self._standing(self.repaired, -1):
            return True
        removed, _ = self.removals()
        return self.has_changes(stored_version) and stored_version >= self._standing(self.repaired, removed)

    def has_changes(self, stored_version: int) -> bool:
        """The same, whatever was repaired."""
        return self._shows(stored_version, -1, -1) or self._shows(stored_version, *self.removals())

    def _shows(self, stored_version: int, removed: int, left: int) -> bool:
        filled = self._standing(self.filling.top, removed)
        there = left if left >> POSITION_SHIFT > _below(self.floors) else -1
        stored = newest_stored(self.results, self.floors, max(removed, 0))
        return stored_version >= max(there, filled) and max(stored_version, 0) >= stored

    def _standing(self, top: int | None, removed: int) -> int:
        """A version that a row has to have, −1 if rows with it may be gone."""
        if top is None or top <= removed or top >> POSITION_SHIFT <= _below(self.floors):
            return -1
        return top


def _removals(ledger: Ledger, topic_id: str, since: int) -> tuple[int, int]:
    """The highest version that was erased, and the highest one that the last erasure left in the table.

    The second is −1 if that says nothing of the table as it is. ``since``: how many facts say that the table was filled
    anew, or taken back.
    """
    found = [r for r in ledger.facts(RowsRemoved) if r.topic_id == topic_id]
    last = next((r for r in reversed(found) if r.left), None)
    left = int(last.left) if last is not None and last.since == since else -1
    return max((int(r.top) for r in found), default=-1), left


def since_begun(results: Iterable[FinishedRange]) -> list[FinishedRange]:
    """The results of each partition since its reading last began anywhere, newest first as they are given."""
    begun = set[int]()
    out = []
    for r in results:
        if r.partition not in begun:
            out.append(r)
        if r.start == r.end:
            begun.add(r.partition)
    return out


def newest_stored(results: Iterable[FinishedRange], floors: Iterable[Floor], removed: int = 0) -> int:
    """The highest version that these results stored and nothing removed; 0 if none is known.

    ``floors``: of the truncates; ``removed``: the highest version that was erased.
    """
    below = _below(floors)
    return max([r.top for r in results if r.top >> POSITION_SHIFT > below and r.top > removed], default=0)


def repairs(ledger: Ledger, topic_id: str, fillings: int) -> list[TableRepaired]:
    """The repairs from the source of the table that is there: a filling since then makes one void.

    ``fillings``: how many facts say that the table was filled anew.
    """
    return [fact for fact in ledger.facts(TableRepaired) if fact.topic_id == topic_id and fact.since >= fillings]


def _below(floors: Iterable[Floor]) -> int:
    # Where nothing was truncated, the floor is that of epoch and position 0.
    return max([f.epoch << _COMMIT_BITS | f.commit for f in floors if f.epoch or f.commit], default=-1)
