"""Applies the chunks of one topic-partition: plans each, stores the plan, and releases the changes that waited."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from ch_sink.model.change import Records
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.guards import Decoders, Fencing, InFlight, Stages
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Applied, BatchDecoder, Changed, Known, Plan, Ports, StreamName
from ch_sink.pipeline.releasing import Releasing
from ch_sink.pipeline.storing import Storing
from ch_sink.pipeline.target import Target
from ch_sink.pipeline.waiting import WaitingChanges
from ch_sink.ports import DeadLetters, Pending, TableWriter, TaskLedger


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of a task."""

    writer: TableWriter
    dead_letters: DeadLetters
    pending: Pending | None = None
    releases: TaskLedger | None = None
    """Where a group of waiting records is recorded before its changes are stored. Which records can be released depends
    on the moment; after a kill the recorded group is released again, so that its inserts have the same tokens."""
    progress: Callable[[Applied], None] | None = None
    """Called for each finished chunk of a collapsing table. A deleted row leaves no trace there, so a second attempt
    cannot see that its changes were applied, and must not start at an earlier chunk."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A task's relation to other executions of its work."""

    fencing: Fencing | None = None
    """Begins the task's execution, so that no other one changes the table at the same time. None: there is no other."""
    changed: Changed = ""
    settled: bool = False
    """The pending table is known to hold nothing of the partition."""
    first: bool = False
    """Nothing earlier can be at work, so this execution does not begin before it asks; its fence is given later."""
    grouped: bool = False
    """An earlier execution may have stored a chunk of the task together with chunks of other partitions."""
    deadline: float = 600.0
    """Seconds that a change waits for a hand-over; after that the missing values count as unknown. Infinite while
    records that may bring the hand-over have not been read."""
    clock: Callable[[], float] = time.time
    """Seconds since 1970; since when a change waits."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A chunk that is planned and not stored."""

    made: Plan
    records: Records
    first: int
    end: int
    """Of the chunk, or the barrier."""
    released: Applied | None = None
    """The waiting changes that were released before it."""

    @property
    def span(self) -> tuple[int, int]:
        return self.first, self.end


def open_sink(
    name: StreamName,
    target: Target,
    decoder: Callable[[bool], BatchDecoder],
    ports: Ports,
    stores: Stores,
    attempt: Attempt | None = None,
) -> "PartitionSink":
    """Begin the work of a task, and read which changes of its partition wait.

    Args:
        decoder: creates a decoder; its argument states whether before images are needed.

    Raises:
        LedgerConflict: another job or execution has taken over.
        ClickHouseError: the ledger or the pending table cannot be read.
    """
    attempt = attempt or Attempt()
    fencing = attempt.fencing
    if fencing is not None and target.exclusive and not attempt.first:
        # Before anything is read that an earlier execution may still be changing.
        fencing.begin()
    ports = replace(ports, failed=partial(stores.dead_letters.failed, name.partition))
    if fencing is not None and not attempt.first:
        ports = fencing.ports(ports)
    stages, waiting = Stages(), WaitingChanges()
    decoders = Decoders(decoder, target, stages)
    storing = Storing(
        name, target, stores.writer, stores.dead_letters, stores.pending, ports.handover, waiting, fencing, stages,
        attempt.clock,
    )  # fmt: skip
    releasing = None
    if stores.pending is not None:
        releasing = Releasing(
            ports,
            decoders,
            storing,
            stores.pending,
            stores.releases,
            changed=attempt.changed,
            deadline=attempt.deadline,
            clock=attempt.clock,
        )
    sink = PartitionSink(name, target, ports, stores, attempt, stages, decoders, storing, releasing)
    # An earlier execution of the same task may have left some since.
    if not attempt.settled or sink.repeats:
        sink.read_waiting()
    return sink


@dataclass(slots=True)
class PartitionSink:
    """Applies the chunks of one topic-partition, in order. `open_sink` makes it."""

    name: StreamName
    target: Target
    ports: Ports
    stores: Stores
    attempt: Attempt
    stages: Stages
    decoders: Decoders
    storing: Storing
    releasing: Releasing | None
    """None if the stream has no pending table."""
    _fresh: bool = True

    def read_waiting(self) -> None:
        """Read which changes of the partition wait. Raises LedgerConflict, ClickHouseError."""
        if self.stores.pending is None or self.releasing is None:
            return
        known = self.stores.pending.open(self.name.topic_id, self.name.partition)
        fencing = self.attempt.fencing
        if known and fencing is not None and fencing.fence is None and not self.attempt.first:
            fencing.begin()
            known = self.stores.pending.open(self.name.topic_id, self.name.partition)
        self.storing.waiting.replace(known)
        self._fresh = True
        self.releasing.opened()

    def run(self, chunks: Iterable[Chunk], state: State) -> Iterator[Applied]:
        """Apply chunks in order; planning one overlaps with inserting the one before.

        A lookup waits until all earlier inserts are done, so that it sees them. Stops after a barrier.

        Raises:
            StreamFailed, ClickHouseError: the stream has to stop; the chunks not yielded do not count as done.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="insert") as inserter:
            in_flight = InFlight[Applied](inserter)
            for chunk in chunks:
                if self.waiting:
                    yield from in_flight.finish()
                prepared = self._prepared(chunk, state, in_flight.ports(self.ports))
                made = prepared.made
                state = made.state
                yield from in_flight.finish()
                if not made.needs_records:
                    prepared = replace(prepared, records=chunk.records.without_content())
                in_flight.submit(self.carry_out, prepared)
                if made.pending:
                    yield from in_flight.finish()
                if made.barrier is not None:
                    break
                # They are most of a worker's memory: none is kept while the next chunk is awaited.
                del chunk, prepared, made
            yield from in_flight.finish()

    def apply(self, chunk: Chunk, state: State) -> Applied:
        """Plan and carry out one chunk, one after the other; raises as `run` does."""
        return self.carry_out(self.prepare(chunk, state))

    def prepare(self, chunk: Chunk, state: State) -> Prepared:
        """Plan one chunk; nothing of it is stored before `carry_out`. Raises as `run` does."""
        return self._prepared(chunk, state, self.ports)

    def carry_out(self, prepared: Prepared) -> Applied:
        """Store the plan of a chunk. Raises as `run` does."""
        made, first, end = prepared.made, prepared.first, prepared.end
        done = self.storing.store(made, prepared.records, first, end)
        if prepared.released is not None:
            done.add(prepared.released)
        if self.stores.progress is not None and self.target.collapsing and end > first:
            # The truncate itself is still to come: an attempt that began behind it would never carry it out.
            before = made.barrier is not None and made.barrier.kind == "truncate"
            self.stores.progress(replace(done, end=end - 1) if before else done)
        return done

    def _prepared(self, chunk: Chunk, state: State, ports: Ports) -> Prepared:
        released = self.retry_pending(state, chunk.first)
        if released is not None:
            state = released.state
        while True:
            repeats = self.repeats
            made = self._planned(chunk, state, ports)
            if self.repeats == repeats:
                end = chunk.end if made.barrier is None else made.barrier.next_offset
                return Prepared(made, chunk.records, chunk.first, end, released)
            # The first question began the execution, and an earlier one of the same work may have stored something
            # since it was read what waits: the plan is made of what is known now.
            self.read_waiting()

    def _planned(self, chunk: Chunk, state: State, ports: Ports) -> Plan:
        released: list[int] = []
        if self.repeats and self.stores.pending is not None:
            place = self.name.topic_id, self.name.partition
            released = self.stores.pending.released(*place, chunk.first, chunk.end)
        known = Known(
            # A record of this chunk may wait since an earlier attempt: it and later records of its key keep waiting.
            waiting=self.storing.waiting.first_below(chunk.end),
            released=released,
            repeats=self.repeats,
            changed=self.attempt.changed,
            grouped=self.attempt.grouped,
        )
        timed = self.stages.ports(ports)
        before = self._with_open_swaps(state, chunk.first)
        decoder, before = self.decoders.prepared(chunk.records, before, timed)
        with self.stages.stage("merge"):
            return plan(chunk.records, self.target, decoder, before, timed, known)

    @property
    def repeats(self) -> bool:
        """An earlier batch or an earlier execution may have applied the range, or a part of it."""
        fence = self.storing.fence
        return self.name.attempt > 0 or (fence is not None and fence.repeats)

    @property
    def waiting(self) -> int:
        """How many records wait for a hand-over."""
        return len(self.storing.waiting)

    @property
    def settled(self) -> bool:
        """Whether the pending table holds nothing of the partition."""
        return self.storing.waiting.settled

    def _with_open_swaps(self, state: State, offset: int) -> State:
        """The state with the swaps that released records have opened, in this life of the job or an earlier one."""
        waiting, pending = self.storing.waiting, self.stores.pending
        if self._fresh and pending is not None and (gone := waiting.outlived(state, offset)):
            pending.resolve(self.name.topic_id, self.name.partition, gone)
        self._fresh = False
        return waiting.with_open_swaps(state, offset)

    @property
    def lacking(self) -> Barrier | None:
        """Columns that the table lacks for waiting changes; the coordinator adds them."""
        return self.releasing.lacking if self.releasing is not None else None

    def retry_pending(self, state: State, below: int) -> Applied | None:
        """Apply the waiting changes below this offset that need not wait any more (`Releasing.retry`)."""
        return self.releasing.retry(state, below) if self.releasing is not None else None

    def prepared(self, records: Records, state: State) -> tuple[BatchDecoder, State]:
        """The decoder for records of any offsets, and the state with the profile for decoding them."""
        return self.decoders.prepared(records, state, self.ports)

    def apply_again(self, records: Records, state: State, assigned: Mapping[int, tuple[int, int]]) -> Plan:
        """Apply single records in the order of their own time, whatever the partition has reached since.

        Returns what was carried out: ``bad`` names the records that still cannot be applied, which are not stored as
        dead letters again. With a ``barrier`` nothing was: the table lacks columns.

        Args:
            assigned: offset → (epoch, commit position).
        """
        decoder, before = self.prepared(records, state)
        known = Known(self.storing.waiting.first_below(int(records.offsets[-1])), assigned)
        made = plan(records, self.target, decoder, before, self.ports, known)
        offsets = ",".join(map(str, records.offsets.tolist()))
        label = f"retry-{sha256(offsets.encode()).hexdigest()[:16]}/"
        first, end = int(records.offsets[0]), int(records.offsets[-1]) + 1
        self.storing.store(made, records, first, end, label=label, letters=False)
        return made
