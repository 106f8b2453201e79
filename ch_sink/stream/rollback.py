"""Whether ClickHouse is behind what the stream has stored: a restored backup, a lost replica, rows deleted by hand.

Two witnesses. The consumer group's offsets are committed after results: if they are ahead, the ledger was taken back,
and the table with it if both are in one backup. The newest version of the table: if it is below what the last results
stored, the table was taken back and the ledger was not. Rows that a truncate, a purge or an erasure removed
do not count. If users remove deleted rows themselves, that can look the same; then a little is read again, and stored
as it was, or the stream stops if that would undo a repair from the source. A collapsing table gives no such evidence,
since its rows go with their merges.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from ch_sink.errors import StreamFailed
from ch_sink.ports import FinishedRange, Ledger, TableRefilled, TableRepaired
from ch_sink.stream.evidence import repairs, standing

__all__ = [
    "ahead",
    "lacks_filling",
    "lacks_repair",
    "lacks_repaired_rows",
    "read_again_from",
    "taken_back",
    "undoes_repairs",
]


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


def undoes_repairs(ledger: Ledger, topic_id: str, starts: Mapping[int, int], stored_version: int) -> bool:
    """Whether a table of this highest version lacks rows repaired from the source that a reading again would not give.

    Or has them, and the reading would undo them.
    """
    found = _repairs(ledger, topic_id)
    last = standing(found)
    return any(f.outranked or (f in last and stored_version < f.shown) for f in _above(found, starts))


def _repairs(ledger: Ledger, topic_id: str) -> list[TableRepaired]:
    return repairs(ledger, topic_id, len(ledger.facts(TableRefilled)))


def _above(found: Iterable[TableRepaired], starts: Mapping[int, int]) -> list[TableRepaired]:
    return [fact for fact in found if starts.get(fact.partition, fact.offset) < fact.offset]


def ahead(committed: Mapping[int, int], reached: Mapping[int, int]) -> str:
    """The partitions whose committed offset is above what the ledger has reached, in words; empty if there is none."""
    found = [(p, offset, reached.get(p, 0)) for p, offset in sorted(committed.items()) if offset > reached.get(p, 0)]
    if not found:
        return ""
    p, offset, here = found[0]
    more = f", and so on for {len(found)} partitions" if len(found) > 1 else ""
    return f"its consumer group has committed offset {offset} of partition {p}, and its ledger ends at {here}{more}"


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
        hint="Fill the table anew by `ch_sink resync CONFIG --apply`, or repair the whole table by "
        "`ch_sink repair CONFIG --against source --apply`, then `ch_sink resume CONFIG`.",
    )


def lacks_repaired_rows(stream: str, witness: str) -> StreamFailed:
    """The error for a table that has all changes, and lacks rows that were repaired from the source."""
    return StreamFailed(
        f"stream {stream}: ClickHouse lacks rows that were repaired from the source: {witness}",
        hint="Repair the whole table by `ch_sink repair CONFIG --against source --apply`, or fill it anew by "
        "`ch_sink resync CONFIG --apply`, then `ch_sink resume CONFIG`.",
    )


def taken_back(stream: str, witness: str, *, appends: bool = False) -> StreamFailed:
    """The error for a stream that may not read again, or whose table would store its changes twice."""
    hint = "Restore ClickHouse, or set on_target_rollback: replay to read again what it lacks."
    if appends:
        hint = "To read again would store changes of the history twice: restore the table and the ledger together."
    return StreamFailed(f"stream {stream}: ClickHouse lacks what the stream has stored: {witness}", hint=hint)
