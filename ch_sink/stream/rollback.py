"""Whether ClickHouse is behind what the stream has stored: a restored backup, a lost replica, rows deleted by hand.

Two witnesses. The consumer group's offsets are committed after results: if they are ahead, the ledger was taken back,
and the table with it if both are in one backup. The newest version of the table: if it is below what the last results
stored, the table was taken back and the ledger was not. Rows that a truncate, a purge or an erasure removed
do not count. If users remove deleted rows themselves, that can look the same; then a little is read again, and stored
as it was. A collapsing table gives no such evidence,
since its rows go with their merges.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from ch_sink.errors import StreamFailed
from ch_sink.model.floor import Floor
from ch_sink.order.version import POSITION_SHIFT
from ch_sink.ports import FinishedRange

__all__ = ["ahead", "newest_stored", "read_again_from", "taken_back"]

_COMMIT_BITS = 80


def newest_stored(results: Iterable[FinishedRange], floors: Iterable[Floor], removed: int = 0) -> int:
    """The highest version that these results stored and nothing removed; 0 if none is known.

    ``floors``: of the truncates; ``removed``: the highest version that was erased.
    """
    below = max([(f.epoch << _COMMIT_BITS | f.commit) for f in floors], default=-1)
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
    return starts if whole else None


def ahead(committed: Mapping[int, int], reached: Mapping[int, int]) -> str:
    """The partitions whose committed offset is above what the ledger has reached, in words; empty if there is none."""
    found = [(p, offset, reached.get(p, 0)) for p, offset in sorted(committed.items()) if offset > reached.get(p, 0)]
    if not found:
        return ""
    p, offset, here = found[0]
    more = f", and so on for {len(found)} partitions" if len(found) > 1 else ""
    return f"its consumer group has committed offset {offset} of partition {p}, and its ledger ends at {here}{more}"


def taken_back(stream: str, witness: str, *, appends: bool = False) -> StreamFailed:
    """The error for a stream that may not read again, or whose table would store its changes twice."""
    hint = "Restore ClickHouse, or set on_target_rollback: replay to read again what it lacks."
    if appends:
        hint = "To read again would store changes of the history twice: restore the table and the ledger together."
    return StreamFailed(f"stream {stream}: ClickHouse lacks what the stream has stored: {witness}", hint=hint)
