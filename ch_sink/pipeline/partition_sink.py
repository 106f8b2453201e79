"""Applies the chunks of one topic-partition: plans each, stores the plan, and releases the changes that waited."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Literal

import numpy as np

from ch_sink.model.change import Records
from ch_sink.order import State
from ch_sink.pipeline.applied import Applied, StreamName
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.decoders import Decoders
from ch_sink.pipeline.fencing import Fencing
from ch_sink.pipeline.in_flight import InFlight, settled
from ch_sink.pipeline.plan import BatchDecoder, Plan, Ports, plan
from ch_sink.pipeline.releasing import Releases, Releasing
from ch_sink.pipeline.stored_before import without_repeated, without_stored
from ch_sink.pipeline.storing import Storing
from ch_sink.pipeline.target import Target
from ch_sink.pipeline.timings import Stages
from ch_sink.pipeline.waiting import WaitingChanges
from ch_sink.ports import DeadLetters, Fence, Insert, Pending, TableWriter

__all__ = ["Changed", "PartitionSink"]

Changed = Literal["", "unknown", "other"]
"""Whether an earlier attempt at a range had another configuration, table or version of ch_sink. ``unknown``: a version
that did not record it."""


class PartitionSink:
    """Applies the chunks of one topic-partition, in order."""

    def __init__(
        self,
        name: StreamName,
        target: Target,
        decoder: Callable[[bool], BatchDecoder],
        ports: Ports,
        writer: TableWriter,
        dead_letters: DeadLetters,
        pending: Pending | None = None,
        *,
        deadline: float = 600.0,
        clock: Callable[[], float] = time.time,
        progress: Callable[[Applied], None] | None = None,
        releases: Releases | None = None,
        cuts: Sequence[int] = (),
        note_cut: Callable[[int], None] | None = None,
        fencing: Fencing | None = None,
        changed: Changed = "",
        settled: bool = False,
    ) -> None:
        """
        Args:
            decoder: creates a decoder; its argument states whether before images are needed.
            deadline: seconds that a change waits for a hand-over; after that the missing values count as unknown.
                Infinite while records that may bring the hand-over have not been read.
            progress: called for each finished chunk of a collapsing table. A deleted row leaves no trace there, so a
                second attempt cannot see that its changes were applied, and must not start at an earlier chunk.
            releases: where a group of waiting records is recorded before its changes are stored. Which records can be
                released depends on the moment; after a kill the recorded group is released again, so that its inserts
                have the same tokens.
            cuts: offsets at which earlier attempts ended a chunk because the table lacked columns, which may exist now.
            note_cut: called with such an offset before anything of the chunk is stored, so that every later attempt
                cuts at the same offset, whatever columns the table has gained since.
            fencing: begins the task's execution, so that no other one changes the table at the same time. None if there
                can be no other.
            changed: whether earlier attempts may have stored other rows of the range than this one would.
            settled: the pending table is known to hold nothing of the partition.
        """
        self.name, self.target, self._fencing = name, target, fencing
        if fencing is not None and target.exclusive:
            # Before anything is read that an earlier execution may still be changing.
            fencing.begin()
        self.ports = replace(ports, failed=partial(dead_letters.failed, name.partition))
        if fencing is not None and ports.lookup is not None:
            self.ports = replace(self.ports, lookup=fencing.lookup(ports.lookup))
        if fencing is not None and ports.handover is not None:
            self.ports = replace(self.ports, handover=fencing.handover(ports.handover))
        self._changed = changed
        self.stages = Stages()
        self.pending = pending
        self._progress = progress if target.collapsing else None
        self._cuts = sorted(cuts)
        self._decoders = Decoders(decoder, target, self.stages)
        self._waiting = WaitingChanges()
        self._fresh = True
        self._storing = Storing(
            name,
            target,
            writer,
            dead_letters,
            pending,
            self.ports.handover,
            self._waiting,
            fencing,
            self.stages,
            clock,
            note_cut,
        )
        self._releasing: Releasing | None = None
        if pending is not None:
            self._releasing = Releasing(
                self.ports, self._decoders, self._storing, pending, releases, deadline=deadline, clock=clock
            )
        # An earlier execution of the same task may have left some since.
        if not settled or self.repeats:
            self._open_waiting()

    def _open_waiting(self) -> None:
        """Read which changes of the partition wait."""
        if self.pending is None or self._releasing is None:
            return
        known = self.pending.open(self.name.topic_id, self.name.partition)
        if known and self._fencing is not None and self.fence is None:
            self._fencing.begin()
            known = self.pending.open(self.name.topic_id, self.name.partition)
        self._waiting.replace(known)
        self._fresh = True
        self._releasing.opened()

    def run(self, chunks: Iterable[Chunk], state: State) -> Iterator[Applied]:
        """Apply chunks in order; planning one overlaps with inserting the one before.

        A lookup waits until all earlier inserts are done, so that it sees them. Stops after a barrier.

        Raises:
            StreamFailed, ClickHouseError: the stream has to stop; the chunks not yielded do not count as done.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="insert") as inserter:
            in_flight = InFlight[Applied](inserter)
            for chunk in chunks:
                if self._waiting:
                    yield from in_flight.finish()
                made, end, retried = self._plan(chunk, state, settled(self.ports, in_flight))
                state = made.state
                yield from in_flight.finish()
                records = chunk.records if made.needs_records else chunk.records.without_content()
                in_flight.submit(self._carry_out, made, records, chunk.first, end, retried)
                if made.pending:
                    yield from in_flight.finish()
                if made.barrier is not None:
                    break
                # They are most of a worker's memory: none is kept while the next chunk is awaited.
                del chunk, records, made
            yield from in_flight.finish()

    def apply(self, chunk: Chunk, state: State) -> Applied:
        """Plan and carry out one chunk, one after the other; raises as `run` does."""
        made, end, retried = self._plan(chunk, state, self.ports)
        return self._carry_out(made, chunk.records, chunk.first, end, retried)

    def _carry_out(self, made: Plan, records: Records, first: int, end: int, retried: Applied | None) -> Applied:
        """Store a chunk's plan; ``retried``: the waiting changes that were released before it."""
        done = self._storing.store(made, records, first, end)
        if retried is not None:
            done.add(retried)
        if self._progress is not None:
            # The truncate itself is still to come: an attempt that began behind it would never carry it out.
            before = made.barrier is not None and made.barrier.kind == "truncate"
            self._progress(replace(done, end=end - 1) if before else done)
        return done

    def _plan(self, chunk: Chunk, state: State, ports: Ports) -> tuple[Plan, int, Applied | None]:
        retried = self.retry_pending(state, chunk.first)
        if retried is not None:
            state = retried.state
        repeats = self.repeats
        made, end = self._plan_chunk(chunk, state, ports)
        if self.repeats and not repeats:
            # The execution began within the plan: what it knew before may be what an earlier one was changing.
            self._open_waiting()
            made, end = self._plan_chunk(chunk, state, ports)
        return made, end, retried

    def _plan_chunk(self, chunk: Chunk, state: State, ports: Ports) -> tuple[Plan, int]:
        state = self._with_open_swaps(state, chunk.first)
        # A record of this chunk may wait since an earlier attempt: it and later records of its key keep waiting.
        waiting = self._waiting.first_below(chunk.end)
        released: list[int] = []
        if self.repeats and self.pending is not None:
            released = self.pending.released(self.name.topic_id, self.name.partition, chunk.first, chunk.end)
        asked = self.stages.ports(ports)
        # Learn from the whole chunk, as the first attempt did before it cut the chunk short.
        timed, state = self._decoders.prepared(chunk.records, state, asked)
        records, cut = chunk.records, next((c for c in self._cuts if chunk.first < c < chunk.end), None)
        if cut is not None:
            records = records.slice(0, int(np.searchsorted(records.offsets, cut)))
        with self.stages.stage("merge"):
            made = plan(records, self.target, timed, state, asked, waiting=waiting, released=released)
        if self._changed:
            made = without_stored(made, self.target, asked.lookup, self._changed, alone=state.alone)
        if self._changed or self.repeats:
            made = without_repeated(
                made, self.target, asked.lookup, changed=bool(self._changed), released=bool(released)
            )
        if cut is not None and made.barrier is None:
            made.barrier = Barrier("new_columns", cut)
        return made, made.barrier.next_offset if made.barrier is not None else chunk.end

    @property
    def fence(self) -> Fence | None:
        """The fence of this execution, None if it has none so far."""
        return self._storing.fence

    @property
    def repeats(self) -> bool:
        """An earlier batch or an earlier execution may have applied the range, or a part of it."""
        return self.name.attempt > 0 or (self.fence is not None and self.fence.repeats)

    @property
    def waiting(self) -> int:
        """How many records wait for a hand-over."""
        return len(self._waiting)

    @property
    def settled(self) -> bool:
        """Whether the pending table holds nothing of the partition."""
        return self._waiting.settled

    def _with_open_swaps(self, state: State, offset: int) -> State:
        """The state with the swaps that released records have opened, in this life of the job or an earlier one."""
        if self._fresh and self.pending is not None and (gone := self._waiting.outlived(state, offset)):
            self.pending.resolve(self.name.topic_id, self.name.partition, gone)
        self._fresh = False
        return self._waiting.with_open_swaps(state, offset)

    @property
    def lacking(self) -> Barrier | None:
        """Columns that the table lacks for waiting changes; the coordinator adds them."""
        return self._releasing.lacking if self._releasing is not None else None

    def retry_pending(self, state: State, below: int) -> Applied | None:
        """Apply the waiting changes below this offset that need not wait any more (`Releasing.retry`)."""
        return self._releasing.retry(state, below) if self._releasing is not None else None

    def prepared(self, records: Records, state: State) -> tuple[BatchDecoder, State]:
        """The decoder for records of any offsets, and the state with the profile for decoding them."""
        return self._decoders.prepared(records, state, self.ports)

    def apply_again(self, records: Records, state: State, assigned: Mapping[int, tuple[int, int]]) -> Plan:
        """Apply single records in the order of their own time, whatever the partition has reached since.

        Returns what was carried out: ``bad`` names the records that still cannot be applied, which are not stored as
        dead letters again, and ``barrier`` the columns for which it and what follows were left out.

        Args:
            assigned: offset → (epoch, commit position).
        """
        decoder, known = self.prepared(records, state)
        waiting = self._waiting.first_below(int(records.offsets[-1]))
        made = plan(records, self.target, decoder, known, self.ports, waiting=waiting, assigned=assigned)
        offsets = ",".join(map(str, records.offsets.tolist()))
        digest = sha256(offsets.encode()).hexdigest()[:16]
        stored = replace(
            made,
            bad=[],
            barrier=None,
            inserts=[Insert(i.rows, f"retry-{digest}/{i.label}") for i in made.inserts],
            unit=f"retry-{digest}/",
        )
        self._storing.store(stored, records, int(records.offsets[0]), int(records.offsets[-1]) + 1)
        return made
