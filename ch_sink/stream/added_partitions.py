"""Partitions that were added to a topic whose changes are ordered by their Kafka offsets.

Offsets of different partitions do not compare. A key that moves to a new partition has older changes in its former one;
these have to be read first, and everything behind them belongs to the next epoch. The producer goes on with the former
partitions until it hears of the new ones, so the former ones are read as usual until a new one holds a record, and
then once more to their ends.

If the number of partitions becomes a multiple of what it was, keys move to new partitions only. Else they also move
between the former ones, and no record shows where that begins.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ch_sink.errors import StreamFailed
from ch_sink.model.values import TopicState

__all__ = ["AddedPartitions"]


@dataclass(slots=True)
class AddedPartitions:
    """How far the former partitions are read before the new ones."""

    _in_use: bool = False
    """A new partition held a record when the topic was last looked at."""
    _ends: dict[int, int] | None = None

    def ceiling(
        self,
        former: int,
        state: TopicState,
        reached: Mapping[int, int],
        given: Mapping[int, int] | None,
        *,
        certain: bool = True,
    ) -> dict[int, int] | None:
        """Former partition → offset up to which it is read now; None if the new partitions may be read as well.

        Args:
            former: how many partitions the topic had.
            reached: partition → next offset.
            given: ends of the topic when the job began, if it reads no further.
            certain: whether it is known that offsets order the changes.

        Raises:
            StreamFailed: nothing says which of the former partitions' changes are older than others.
        """
        ends = {p: state.high[p] for p in range(former)}
        if former > 1 and len(state.low) % former:
            behind = {p: end - reached[p] for p, end in ends.items() if reached[p] < end}
            if behind and certain:
                raise _undrained(state, former, behind)
            return None
        held = given if given is not None else state.high
        in_use = any(held.get(p, 0) > 0 for p in range(former, len(state.low)))
        if not in_use or not (self._in_use or given is not None):
            # The ends may be older than the record that was seen: those of the next look are not.
            self._in_use, self._ends = in_use, None
            return ends
        if self._ends is None:
            self._ends = ends
        return None if all(reached[p] >= end for p, end in self._ends.items()) else self._ends


def _undrained(state: TopicState, former: int, behind: Mapping[int, int]) -> StreamFailed:
    unread = ", ".join(f"{n} of partition {p}" for p, n in sorted(behind.items()))
    return StreamFailed(
        f"topic {state.topic} has {len(state.low)} partitions instead of {former}, and changes that were sent before "
        f"may be unread ({unread}): keys have moved between partitions, and Kafka offsets order them in one only",
        hint="If the events state source positions, set version.strategy: source_position. Else empty the table, and "
        "let a new snapshot fill it under a new stream name. To add partitions safely, stop the connector, let this "
        "stream catch up, add them, and start this stream before the connector; or multiply their number.",
    )
