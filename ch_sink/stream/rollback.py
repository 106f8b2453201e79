"""Whether ClickHouse is behind what the stream has stored: a restored backup, a lost replica, rows deleted by hand.

Two witnesses. The consumer group's offsets are committed after results: if they are ahead, the ledger was taken back,
and the table with it if both are in one backup. The newest version of the table: if it is below what the last results
stored, the table was taken back and the ledger was not. Rows that a truncate, a purge or an erasure removed
do not count. If users remove deleted rows themselves, that can look the same; then a little is read again, and stored
as it was, or the stream stops if that would undo a repair from the source. A collapsing table gives no such evidence,
since its rows go with their merges.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ch_sink.errors import StreamFailed
from ch_sink.model.floor import Floor
from ch_sink.order.version import POSITION_SHIFT
from ch_sink.ports import FinishedRange, Ledger, RowsRemoved, TableRefilled, TableRepaired

__all__ = [
    "Filling",
    "ahead",
    "is_whole",
    "lacks_filling",
    "lacks_repair",
    "left_by_erasures",
    "newest_stored",
    "read_again_from",
    "repairs",
    "repairs_above",
    "since_begun",
    "taken_back",
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

    def without_former(self, results: Iterable[FinishedRange]) -> list[FinishedRange]:
        """The results behind the filling: what was stored before is not in the table that took the place."""
        return [r for r in results if r.end > self.offsets.get(r.partition, -1)]

    def is_in(self, stored_version: int) -> bool | None:
        """Whether a table with this highest version is that one or a later state of it; None if it is not known."""
        return None if self.top is None else stored_version >= self.top


def is_whole(
    stored_version: int,
    results: Iterable[FinishedRange],
    filling: Filling,
    floors: Iterable[Floor],
    removed: int = -1,
    left: int = -1,
    mended: int = -1,
) -> bool:
    """Whether a table with this highest version (−1: no row) has what was stored last, as far as versions show it.

    Args:
        floors: of the truncates.
        removed: the highest version that was erased.
        left: the highest one that was there beside it.
        mended: the highest one that a repair from the source has written.
    """
    floors = list(floors)
    there = max([left, *(top for top in (filling.top, mended) if top is not None and top > removed)])
    if there >> POSITION_SHIFT <= _below(floors):
        there = -1
    return stored_version >= there and max(stored_version, 0) >= newest_stored(results, floors, max(removed, 0))


def left_by_erasures(removals: Sequence[RowsRemoved], since: int) -> int:
    """The highest version that the last erasure left in the table, −1 if that says nothing of the table as it is.

    Args:
        removals: oldest first.
        since: how many facts say that the table was filled anew, or taken back.
    """
    last = next((r for r in reversed(removals) if r.left), None)
    return int(last.left) if last is not None and last.since == since else -1


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


def read_again_from(results: Sequence[FinishedRange], top: int) -> dict[int, int] | None:
    """Where each partition is to be read again if the table holds no version above ``top``.

    The row of that version was stored by the first batch that reached it, or by a later one. So the table has
    everything of the batches before that one, and from there on it may lack anything.

    Args:
        results: the newest results, newest first.

    Returns:
        Partition → offset; None if these results do not reach back far enough.
    """
    first = {r.partition: r for r in results}  # the oldest one stays
    whole = all(r.start == r.end for r in first.values())  # where reading began
    applied = sorted((r for r in reversed(results) if r.end > r.start), key=lambda r: r.batch)
    reached, starts = 0, dict[int, int]()
    for _, batch in groupby(applied, key=lambda r: r.batch):
        ranges = list(batch)
        reached = max(reached, *(r.top for r in ranges))
        if not starts and reached < top:
            whole = True
        else:
            starts = {r.partition: r.start for r in ranges} | starts
    return starts if whole and results else None


def repairs_above(ledger: Ledger, topic_id: str, starts: Mapping[int, int]) -> list[TableRepaired]:
    """The repairs from the source which the topic's changes from these offsets on would not give.

    A filling since then makes them void. ``starts``: partition → offset.
    """
    return [fact for fact in repairs(ledger, topic_id) if starts.get(fact.partition, fact.offset) < fact.offset]


def repairs(ledger: Ledger, topic_id: str) -> list[TableRepaired]:
    """The repairs from the source of the table that is there."""
    fillings = len(ledger.facts(TableRefilled))
    return [fact for fact in ledger.facts(TableRepaired) if fact.topic_id == topic_id and fact.since >= fillings]


def ahead(committed: Mapping[int, int], reached: Mapping[int, int]) -> str:
    """The partitions whose committed offset is above what the ledger has reached, in words; empty if there is none."""
    found = [(p, offset, reached.get(p, 0)) for p, offset in sorted(committed.items()) if offset > reached.get(p, 0)]
    if not found:
        return ""
    p, offset, here = found[0]
    more = f", and so on for {len(found)} partitions" if len(found) > 1 else ""
    return f"its consumer group has committed offset {offset} of partition {p}, and its ledger ends at {here}{more}"


def _below(floors: Iterable[Floor]) -> int:
    return max([(f.epoch << _COMMIT_BITS | f.commit) for f in floors], default=-1)


def lacks_filling(stream: str, witness: str) -> StreamFailed:
    """The error for a table that lacks rows which were read from the source."""
    return StreamFailed(
        f"stream {stream}: ClickHouse lacks rows that were loaded from the source, not from the topic: {witness}",
        hint="Fill the table anew by `ch_sink resync CONFIG --apply`, then `ch_sink resume CONFIG`; or restore a newer "
        "backup.",
    )


def lacks_repair(stream: str, witness: str) -> StreamFailed:
    """The error for a table that was taken back to before a repair from the source, or may have been."""
    return StreamFailed(
        f"stream {stream}: ClickHouse lacks what the stream has stored, and the topic would not give the rows that "
        f"were repaired from the source: {witness}",
        hint="Fill the table anew by `ch_sink resync CONFIG --apply`, then `ch_sink resume CONFIG`.",
    )


def taken_back(stream: str, witness: str, *, appends: bool = False) -> StreamFailed:
    """The error for a stream that may not read again, or whose table would store its changes twice."""
    hint = "Restore ClickHouse, or set on_target_rollback: replay to read again what it lacks."
    if appends:
        hint = "To read again would store changes of the history twice: restore the table and the ledger together."
    return StreamFailed(f"stream {stream}: ClickHouse lacks what the stream has stored: {witness}", hint=hint)
