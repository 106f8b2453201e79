"""What the ledger says that a table has to hold, as far as its highest version shows it.

Results, the last filling and repairs from the source each leave a version that has to be there. Rows that a truncate, a
purge or an erasure removed do not count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from ch_sink.order.version import POSITION_SHIFT
from ch_sink.pipeline.target import Target
from ch_sink.ports import (
    FinishedRange,
    Ledger,
    RowsRemoved,
    TableRefilled,
    TableRepaired,
    TableTakenBack,
    TruncateFloor,
)

__all__ = [
    "Equal",
    "Evidence",
    "Filling",
    "behind",
    "newest_stored",
    "repairs",
    "shows_losses",
    "since_begun",
    "standing",
]

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

    def is_in(self, stored_version: int) -> bool | None:
        """Whether a table with this highest version is that one or a later state of it; None if it is not known."""
        return None if self.top is None else stored_version >= self.top


@dataclass(frozen=True, slots=True)
class Equal:
    """The last time that a repair found, or made, the whole table equal to the source.

    Rows of changes up to then may have been lost, and repaired with lower versions.
    """

    offsets: Mapping[int, int]
    """Partition → the stream had applied everything below."""
    left: int = -1
    """The highest version in the table then."""

    @classmethod
    def last(cls, found: Sequence[TableRepaired], back: int) -> "Equal":
        """Of these repairs, oldest first. ``back``: how many facts say that the table was taken back."""
        known = [fact for fact in found if fact.left and fact.back == back]
        return cls({f.partition: f.offset for f in known}, int(known[-1].left) if known else -1)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one stream's table has to hold. Versions are −1 where there is none."""

    filling: Filling
    """The last one; without it if the table was taken back to before it, and read again from the topic since."""
    results: Sequence[FinishedRange]
    """The last ones that count."""
    truncates: Sequence[TruncateFloor]
    repaired: int
    """The highest version that a repair from the source has written above all changes, since the table was equal."""
    equal: Equal
    """The last time that the whole table was found equal to the source."""
    removals: Callable[[], tuple[int, int]]
    """Asks for the highest version that was erased, and the highest one that was there beside it."""

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        topic_id: str,
        partitions: int,
        truncates: Sequence[TruncateFloor],
        back: Sequence[TableTakenBack],
    ) -> "Evidence":
        """``truncates``, ``back``: all that the ledger knows."""
        reached = ledger.progress(topic_id)
        reads_again = any(reached.get(t.partition, t.end) < t.end for t in _last(back, topic_id))
        results = [r for r in ledger.history(4 * partitions) if r.topic_id == topic_id]
        fillings = ledger.facts(TableRefilled)
        filling = Filling.last(fillings, topic_id)
        again = [t for t in back if t.topic_id == topic_id and t.since == len(fillings)]
        if lost := any(filling.is_in(int(t.stored)) is False for t in again):
            # What the topic no longer holds of the filled table is not looked for at every start.
            filling = Filling({})
        repaired = repairs(ledger, topic_id, len(fillings))
        return cls(
            filling,
            since_begun(results) if lost or reads_again else behind(results, filling.offsets),
            truncates,
            max((int(fact.top) for fact in standing(repaired)), default=-1),
            Equal.last(repaired, len(back)),
            cache(partial(_removals, ledger, topic_id, len(back) + len(fillings))),
        )

    @property
    def stored(self) -> int:
        """The highest version that was stored, by the stream or by a filling."""
        return max(newest_stored(self.results, self.truncates), self.filling.top or 0)

    def is_met(self, stored_version: int) -> bool:
        """Whether a table with this highest version (−1: no row) has all of it."""
        # What was filled may have been lost as well by the time that the table was equal to the source.
        filled = -1 if self.equal.offsets else self.filling.top
        shows = partial(self._shows, stored_version, behind(self.results, self.equal.offsets), filled)
        if shows(-1, -1) and self._has_repairs(stored_version, -1):
            return True
        removed, left = self.removals()
        return (shows(-1, -1) or shows(removed, left)) and self._has_repairs(stored_version, removed)

    def has_changes(self, stored_version: int) -> bool:
        """The same, whatever was repaired."""
        shows = partial(self._shows, stored_version, self.results, self.filling.top)
        return shows(-1, -1) or shows(*self.removals())

    @property
    def of_repairs(self) -> int:
        """The highest version that repairs left in the table."""
        return max(self.repaired, self.equal.left)

    def _has_repairs(self, stored_version: int, removed: int) -> bool:
        return all(stored_version >= self._standing(top, removed) for top in (self.repaired, self.equal.left))

    def _shows(
        self, stored_version: int, results: Iterable[FinishedRange], filled: int | None, removed: int, left: int
    ) -> bool:
        there = left if left >= _kept(self.truncates) else -1
        stored = newest_stored(results, self.truncates, max(removed, 0))
        return stored_version >= max(there, self._standing(filled, removed)) and max(stored_version, 0) >= stored

    def _standing(self, top: int | None, removed: int) -> int:
        """A version that a row has to have, −1 if rows with it may be gone."""
        if top is None or top <= removed or top < _kept(self.truncates):
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


def newest_stored(results: Iterable[FinishedRange], truncates: Iterable[TruncateFloor], removed: int = 0) -> int:
    """The highest version that these results stored and nothing removed; 0 if none is known.

    ``removed``: the highest version that was erased.
    """
    kept = _kept(truncates)
    return max([r.top for r in results if r.top >= kept and r.top > removed], default=0)


def repairs(ledger: Ledger, topic_id: str, fillings: int) -> list[TableRepaired]:
    """The repairs from the source of the table that is there: a filling since then makes one void.

    ``fillings``: how many facts say that the table was filled anew.
    """
    return [fact for fact in ledger.facts(TableRepaired) if fact.topic_id == topic_id and fact.since >= fillings]


def shows_losses(target: Target) -> bool:
    """Whether the highest version in a table says what it lacks: versions are positions, and rows do not just go."""
    if target.collapsing or target.table.ttl:
        return False
    return target.system.version is not None and target.layout.kind == "wide"


def standing(found: Iterable[TableRepaired]) -> list[TableRepaired]:
    """Of these repairs, oldest first, those whose versions the table has to show.

    Once it was equal to the source it need not have what was repaired before: the source may have removed it since.
    """
    out = dict[int, list[TableRepaired]]()
    for fact in found:
        out[fact.partition] = [*([] if fact.left else out.get(fact.partition, [])), fact]
    return [fact for facts in out.values() for fact in facts]


def behind(results: Iterable[FinishedRange], offsets: Mapping[int, int]) -> list[FinishedRange]:
    """The results that end behind these offsets: what was stored before need not be in the table."""
    return [r for r in results if r.end > offsets.get(r.partition, -1)]


def _last(back: Iterable[TableTakenBack], topic_id: str) -> Iterable[TableTakenBack]:
    """The last reading again of each partition."""
    return {t.partition: t for t in back if t.topic_id == topic_id}.values()


def _kept(truncates: Iterable[TruncateFloor]) -> int:
    """No truncate removed a row from this version on."""
    return max([int(t.version) if t.version else _above(t) for t in truncates], default=-1)


def _above(truncate: TruncateFloor) -> int:
    """The lowest version of a position behind the truncate's, whose own rows may be those of before it.

    Where nothing was truncated, the floor is that of epoch and position 0.
    """
    known = truncate.epoch or truncate.commit
    return (truncate.epoch << _COMMIT_BITS | truncate.commit) + 1 << POSITION_SHIFT if known else -1
