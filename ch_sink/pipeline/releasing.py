"""Releases changes that waited for a hand-over: in groups that are recorded before anything of them is stored.

Which changes can be released depends on the moment. After a kill the recorded group is released again, so that its
inserts have the same tokens.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np

from ch_sink.model.change import Floor, Records
from ch_sink.model.counts import Counts
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.guards import Decoders, MissingAsUnknown
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Applied, Changed, Known, Plan, Ports
from ch_sink.pipeline.storing import Storing, awaited_hand_overs
from ch_sink.ports import AppliedSwap, Pending, PendingRecord, ReleaseGroup, TaskLedger


class Releasing:
    """Releases the waiting changes of one partition."""

    def __init__(
        self,
        ports: Ports,
        decoders: Decoders,
        storing: Storing,
        pending: Pending,
        releases: TaskLedger | None,
        *,
        changed: Changed,
        deadline: float,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            storing: knows the waiting changes; what is released is stored by it.
            releases: where a group is recorded before its changes are stored.
            changed: whether some of them may be stored as other rows.
            deadline: seconds that a change waits; after that the missing values count as unknown.
        """
        self.lacking: Barrier | None = None
        """Columns that the table lacks for waiting changes; the coordinator adds them."""
        self._ports, self._decoders, self._storing = ports, decoders, storing
        self._name, self._waiting = storing.name, storing.waiting
        self._pending, self._releases = pending, releases
        self._changed, self._deadline, self._clock = changed, deadline, clock
        self._begun: ReleaseGroup | None = None
        self._floors = dict[str, Floor]()

    def opened(self) -> None:
        """Look for a release that an earlier life has begun, once it is known what waits."""
        if self._releases is not None and self._waiting:
            self._begun = self._releases.last_release(self._name.topic_id, self._name.partition)

    def retry(self, state: State, below: int) -> Applied | None:
        """Apply the changes whose hand-over has arrived; past the deadline missing values count as unknown.

        Changes for which the table lacks columns keep waiting; `lacking` names the columns.

        Args:
            below: changes from this offset on keep waiting: the chunk that left them has not been stored whole. Its
                other changes come first, or they would find themselves outdated.
        """
        self.lacking = None
        if not self._waiting:
            return None
        begun = self._begun
        if begun is not None and any(offset in self._waiting and offset >= below for offset in begun.offsets):
            return None  # released together, once all of their chunks are stored again
        done = self._finished(state)
        state = done.state if done is not None else state
        # What is applied may hand over values to others that wait.
        while queue := self._movable(state, below):
            more = self._retry(queue, state, given_up=False)
            if more is None:
                break
            done, state = more if done is None else more.add(done), more.state
        late = self._waiting.since_before(self._clock() - self._deadline, below)
        if late and self._ports.handover is not None:
            rest = self._retry(late, state, given_up=True)
            done = rest.add(done) if done is not None and rest is not None else done or rest
        return done

    def _finished(self, state: State) -> Applied | None:
        """Finish the release that an earlier life has begun: the same records, whatever else can be released by now."""
        begun, self._begun = self._begun, None
        left = [offset for offset in begun.offsets if offset in self._waiting] if begun is not None else []
        if begun is None or not left:
            return None
        if len(left) == len(begun.offsets):
            return self._release(begun, state, again=True)
        if self._waiting.has_swaps(begun.offsets):  # everything is stored
            self._pending.resolve(self._name.topic_id, self._name.partition, left)
            self._waiting.remove(left)
        return None

    def _movable(self, state: State, below: int) -> list[PendingRecord]:
        """The waiting changes whose hand-over has arrived, with those behind them."""
        if self._ports.handover is None:
            return self._waiting.behind((), below)
        if state.floors != self._floors:
            self._floors = state.floors
            self._waiting.forget_awaited()
        first = self._waiting.unknown()
        if first:  # what they wait for is not stored: it is found by planning them
            records = self._as_records(first)
            assigned = {r.offset: (r.epoch, r.commit) for r in first}
            decoder, known = self._decoders.prepared(records, state, self._ports)
            made = plan(records, self._storing.target, decoder, known, self._ports, Known(assigned=assigned))
            self._waiting.note(awaited_hand_overs(made, records))
        return self._waiting.behind(self._ports.handover.get(self._waiting.awaited()).found, below)

    def _retry(self, queue: Sequence[PendingRecord], state: State, *, given_up: bool) -> Applied | None:
        """Apply these waiting changes up to the first that cannot be; None if nothing could be applied."""
        made, records = planned = self._plan(queue, state, given_up=given_up)
        if made.barrier is not None:  # the table has lost a column since, or evolve was turned on since
            self.lacking = made.barrier
            return None
        self._waiting.note(awaited_hand_overs(made, records))
        still = {int(records.offsets[w.index]) for w in made.pending}
        settled = tuple(r.offset for r in queue if r.offset not in still)
        if not settled:
            return None
        group = ReleaseGroup(self._name.topic_id, self._name.partition, settled, given_up)
        if self._releases is not None:
            self._releases.put_release(group)
        return self._release(group, state, None if still else planned)

    def _release(
        self, group: ReleaseGroup, state: State, planned: tuple[Plan, Records] | None = None, *, again: bool = False
    ) -> Applied | None:
        """Apply a group that has been recorded; None if the table lacks columns for it."""
        made, records = planned or self._plan(
            self._waiting.records(group.offsets), state, given_up=group.given_up, again=again
        )
        if made.barrier is not None:
            self.lacking = made.barrier
            return None
        still = {int(records.offsets[w.index]) for w in made.pending}
        swaps = {
            int(records.offsets[s.index]): AppliedSwap(s.inner, int(records.offsets[s.closed]) if s.closed >= 0 else -1)
            for s in made.swaps
            if int(records.offsets[s.index]) not in still
        }
        settled = [offset for offset in group.offsets if offset not in still]
        digest = sha256(",".join(map(str, group.offsets)).encode()).hexdigest()[:16]
        first, end = group.offsets[0], group.offsets[-1] + 1
        done = self._storing.store(made, records, first, end, label=f"pending-{digest}/")
        topic_id, partition = self._name.topic_id, self._name.partition
        if entries := self._waiting.applied(swaps):
            # Once it does not wait any more, only this entry shows that the key has two rows.
            token = self._name.token(first, end, f"pending-{digest}")
            self._pending.put(topic_id, partition, entries, token, fence=self._storing.fence)
            self._waiting.keep(entries)
        self._pending.resolve(topic_id, partition, [o for o in settled if o not in swaps])
        self._waiting.remove(settled)
        kinds = Counter({"released": len(settled), **{k: made.counts[k] for k in ("upserts", "deletes", "moves")}})
        # Their records were counted when they arrived.
        done.counts = Counts(rows=done.counts.rows, dead_letters=done.counts.dead_letters, kinds=kinds)
        # A released change may close a swap. Those that one has opened are added where the next chunk begins.
        done.state = replace(state, doubled={k: n for k, n in state.doubled.items() if made.state.doubled.get(k) == n})
        return done

    def _plan(
        self, queue: Sequence[PendingRecord], state: State, *, given_up: bool, again: bool = False
    ) -> tuple[Plan, Records]:
        """The plan of waiting changes, in the order that they were given on arrival. ``again``: some may be stored."""
        ports = self._ports
        if given_up and ports.handover is not None:
            ports = replace(ports, handover=MissingAsUnknown(ports.handover))
        records = self._as_records(queue)
        known = Known(assigned={r.offset: (r.epoch, r.commit) for r in queue}, repeats=again, changed=self._changed)
        decoder, before = self._decoders.prepared(records, self._waiting.with_swaps_of(queue, state), ports)
        return plan(records, self._storing.target, decoder, before, ports, known), records

    def _as_records(self, queue: Sequence[PendingRecord]) -> Records:
        return Records(
            self._name.topic,
            self._name.partition,
            np.array([r.offset for r in queue], dtype=np.int64),
            np.array([r.timestamp for r in queue], dtype=np.int64),
            [r.key for r in queue],
            [r.value for r in queue],
            [list(r.headers) for r in queue],
        )
