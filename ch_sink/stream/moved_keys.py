"""Keys that move between partitions: what was written before they moved is read first.

A key that moves has older changes in its former partition. Offsets of different partitions do not compare, nor do
positions if the source has failed over in the meantime, and a change may need the row that an earlier one stored. So
the former changes are read first, and everything behind them belongs to the next epoch.

Keys move if a topic gets more partitions, and if they are written in other bytes (`ch_sink.pipeline.one_partition`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ch_sink.errors import StreamFailed
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier


@dataclass(slots=True)
class _Drain:
    """The ends up to which the partitions are read in which keys were, before what has moved.

    They are those of a second look: the first one's may be older than the record that shows that keys have moved.
    """

    _first: float | None = None
    _ends: Mapping[int, int] | None = None

    def to(self, ends: Mapping[int, int], look: float) -> Mapping[int, int] | None:
        """The ends, None until they are known.

        Args:
            ends: those of this look.
            look: when it was (`TopicState.asked`), infinite if nothing is read beyond these ends.
        """
        if self._ends is None and (look == math.inf or (self._first is not None and look > self._first)):
            self._ends = dict(ends)
        self._first = look if self._first is None else self._first
        return self._ends


@dataclass(slots=True)
class RewrittenKeys:
    """Partitions that wait at a key that is written in another form, until all others were read up to there.

    The producer writes every key in the new form once it has begun to, so what the other partitions hold by then, up to
    their own first such key, was written before.
    """

    held: dict[int, Barrier] = field(default_factory=dict)
    _drain: _Drain = field(default_factory=_Drain)

    def hold(self, partition: int, barrier: Barrier) -> None:
        """The partition waits at this barrier."""
        self.held[partition] = barrier
        self._drain = _Drain()

    def released(self, reached: Mapping[int, int], ends: Mapping[int, int], look: float) -> tuple[str, str] | None:
        """The form that is read now, whose partitions wait no longer; None if it is not time.

        Args:
            reached: partition → next offset.
            ends: partition → offset up to which it is to be read, as of this look at the topic.
            look: see `_Drain.to`.
        """
        until = self._drain.to(ends, look) if self.held else None
        if until is None or any(reached[p] < end for p, end in until.items() if p not in self.held):
            return None
        form = min(self.held.values(), key=lambda barrier: barrier.timestamp).key_form
        self.held = {p: barrier for p, barrier in self.held.items() if barrier.key_form != form}
        self._drain = _Drain()
        return form


def expect_one_form(states: Mapping[int, State]) -> None:
    """Raises StreamFailed if partitions of which nothing was known begin with keys of one schema in different forms.

    Keys without a schema may be those of any.

    Args:
        states: partition → its state after the first records.
    """
    found: dict[str, tuple[str, int]] = {}
    for partition, state in sorted(states.items()):
        for schema, form in state.key_forms.items():
            for other, (known, place) in found.items():
                if known != form and (other == schema or not (other and schema)):
                    raise StreamFailed(
                        f"the topic's partitions begin with keys that are written in different forms ({known} in "
                        f"partition {place}, {form} in partition {partition}): keys have moved between partitions, and "
                        "nothing tells which changes are older",
                        hint="Let a new snapshot fill another table, under a new stream name with start: latest.",
                    )
            found.setdefault(schema, (form, partition))


@dataclass(slots=True)
class AddedPartitions:
    """The offsets to which the former partitions are read before new ones.

    The producer goes on with the former partitions until it hears of the new ones, so the former ones are read as usual
    until a new one holds a record, and then once more to their ends.

    If the number of partitions becomes a multiple of what it was, keys move to new partitions only. Else they also move
    between the former ones, and no record shows where that begins.
    """

    _drain: _Drain = field(default_factory=_Drain)

    def ceiling(
        self,
        former: int,
        state: TopicState,
        reached: Mapping[int, int],
        given: Mapping[int, int] | None,
        *,
        compare: bool = False,
    ) -> Mapping[int, int] | None:
        """Former partition → offset up to which it is read now; None if the new partitions may be read as well.

        Args:
            former: how many partitions the topic had.
            reached: partition → next offset.
            given: ends of the topic when the job began, if it reads no further.
            compare: whether changes of different partitions compare (`States.compare`).

        Raises:
            StreamFailed: nothing says which of the former partitions' changes are older than others.
        """
        ends = {p: state.high[p] for p in range(former)}
        if former > 1 and len(state.low) % former:
            behind = {p: end - reached[p] for p, end in ends.items() if reached[p] < end}
            if behind and not compare:
                raise _undrained(state, former, behind)
            return None
        held = given if given is not None else state.high
        if all(held.get(p, 0) == 0 for p in range(former, len(state.low))):
            self._drain = _Drain()
            return ends
        until = self._drain.to(ends, state.asked if given is None else math.inf)
        if until is None:
            return ends
        return None if all(reached[p] >= end for p, end in until.items()) else until


def _undrained(state: TopicState, former: int, behind: Mapping[int, int]) -> StreamFailed:
    unread = ", ".join(f"{n} of partition {p}" for p, n in sorted(behind.items()))
    return StreamFailed(
        f"topic {state.topic} has {len(state.low)} partitions instead of {former}, and changes that were sent before "
        f"may be unread ({unread}): keys have moved between partitions, and nothing tells which changes are older",
        hint="Empty the table, and let a new snapshot fill it under a new stream name. To add partitions safely, stop "
        "the connector, let this stream catch up, add them, and start this stream before the connector; or multiply "
        "their number.",
    )
