"""Carries out the plans of one topic-partition: hand-over, pending records, inserts, dead letters, in this order.

This order makes a kill harmless at every point: what later steps rely on is stored first, and each write is either
recognised by its token or found by the lookup of the next attempt.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Literal, Protocol

import numpy as np

from ch_sink.errors import StreamFailed
from ch_sink.model.change import BadRecord, Records
from ch_sink.model.floor import NO_FLOOR, Floor
from ch_sink.model.handover import HandoverId
from ch_sink.order import BackwardStep, State
from ch_sink.pipeline.bad_records import dead_letter_of, stop
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.fencing import Fencing
from ch_sink.pipeline.in_flight import InFlight, MissingAsUnknown, settled
from ch_sink.pipeline.plan import Barrier, BatchDecoder, Plan, Ports, plan
from ch_sink.pipeline.stored_before import without_repeated, without_stored
from ch_sink.pipeline.target import Target
from ch_sink.pipeline.timings import Stages
from ch_sink.pipeline.waiting import WaitingChanges
from ch_sink.ports import AppliedSwap, DeadLetters, Fence, Insert, Pending, PendingRecord, ReleaseGroup, TableWriter

__all__ = ["Applied", "Changed", "PartitionSink", "StreamName"]

Changed = Literal["", "unknown", "other"]
"""Whether an earlier attempt at a range had another configuration, table or version of ch_sink. ``unknown``: a version
that did not record it."""


@dataclass(frozen=True, slots=True)
class StreamName:
    """What deduplication tokens and stored records are named after."""

    stream: str
    topic: str
    topic_id: str
    partition: int
    attempt: int = 0
    """How many earlier batches overlap this range."""
    replay: str = ""
    """Part of all tokens, after the table lost what it had stored under the earlier ones."""
    replayed_to: int = 0
    """Offset up to which the table lacks what was released before."""

    def token(self, first: int, end: int, label: str, *, execution: str = "") -> str:
        """Deduplication token of one insert: the same token always means the same rows.

        ``execution`` belongs to the tokens of reconciling inserts, whose content differs each time.
        """
        parts = [self.stream, self.topic_id, str(self.partition), f"{first}-{end - 1}", label]
        if execution:
            parts.append(f"execution-{execution}")
        if self.replay:
            parts.append(f"replay-{self.replay}")
        return "/".join(parts)


@dataclass(slots=True)
class Applied:
    """The result of a chunk."""

    state: State
    first: int = 0
    end: int = 0
    """The next offset: the end of the chunk, or the barrier."""
    rows: int = 0
    records: int = 0
    """Records at the offsets that are done; those behind a barrier are read again."""
    counts: Counter[str] = field(default_factory=Counter)
    steps: list[BackwardStep] = field(default_factory=list)
    barrier: Barrier | None = None
    dead_letters: int = 0
    last_source_ts: int = 0
    top: int = 0
    """Highest version of the rows that were stored, 0 for none."""


def _both(one: Applied, other: Applied) -> Applied:
    """The result of waiting records that were applied in two steps."""
    other.rows += one.rows
    other.counts.update(one.counts)
    other.dead_letters += one.dead_letters
    return other


def _awaited(made: Plan, records: Records) -> dict[int, HandoverId]:
    """Offset → the hand-over for which that record waits."""
    return {int(records.offsets[w.index]): w.awaits for w in made.pending if w.awaits is not None}


class Releases(Protocol):
    """Where groups of waiting records are recorded (`TaskLedger`)."""

    def put_release(self, group: ReleaseGroup) -> None:
        """Record a group before its changes are stored."""
        ...

    def last_release(self, topic_id: str, partition: int) -> ReleaseGroup | None:
        """The last group of the partition."""
        ...


_RELEASE = Applied(State())  # marks waiting records, which are no chunk


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
        self._make_decoder = decoder
        self._decoders: dict[bool, BatchDecoder] = {}
        self.stages = Stages()
        self.writer, self.dead_letters, self.pending = writer, dead_letters, pending
        self.deadline, self.clock = deadline, clock
        self.progress = progress if target.collapsing else None
        self._releases = releases
        self._cuts, self._note_cut = sorted(cuts), note_cut
        self._fresh = True
        self._floors = (NO_FLOOR, dict[str, Floor]())
        self.lacking: Barrier | None = None
        """Columns that the table lacks for waiting changes; the coordinator adds them."""
        self._waiting = WaitingChanges()
        self._begun: ReleaseGroup | None = None
        # An earlier execution of the same task may have left some since.
        if not settled or self.repeats:
            self._open_waiting()

    def _open_waiting(self) -> None:
        """Read which changes of the partition wait."""
        if self.pending is None:
            return
        known = self.pending.open(self.name.topic_id, self.name.partition)
        if known and self._fencing is not None and self.fence is None:
            self._fencing.begin()
            known = self.pending.open(self.name.topic_id, self.name.partition)
        self._waiting, self._fresh = WaitingChanges(known), True
        if self._releases is not None and self._waiting:
            self._begun = self._releases.last_release(self.name.topic_id, self.name.partition)

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
        if self.repeats and self.pending is not None and chunk.first >= self.name.replayed_to:
            released = self.pending.released(self.name.topic_id, self.name.partition, chunk.first, chunk.end)
        asked = self.stages.ports(ports)
        # Learn from the whole chunk, as the first attempt did before it cut the chunk short.
        timed, state = self._prepared(chunk.records, state, asked)
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
        return self._fencing.fence if self._fencing is not None else None

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

    def retry_pending(self, state: State, below: int) -> Applied | None:
        """Apply the waiting records whose hand-over has arrived; past the deadline missing values count as unknown.

        Records for which the table lacks columns keep waiting; `lacking` names the columns.

        Args:
            below: records from this offset on keep waiting: the chunk that left them has not been stored whole. Its
                other changes come first, or they would find themselves outdated.
        """
        self.lacking = None
        if self.pending is None or not self._waiting:
            return None
        begun = self._begun
        if begun is not None and any(offset in self._waiting and offset >= below for offset in begun.offsets):
            return None  # released together, once all of their chunks are stored again
        done = self._finished(state, self.pending)
        state = done.state if done is not None else state
        # What is applied may hand over values to others that wait.
        while queue := self._movable(state, below):
            more = self._retry(queue, state, self.pending, given_up=False)
            if more is None:
                break
            done, state = more if done is None else _both(done, more), more.state
        late = self._waiting.since_before(self.clock() - self.deadline, below)
        if late and self.ports.handover is not None:
            rest = self._retry(late, state, self.pending, given_up=True)
            done = _both(done, rest) if done is not None and rest is not None else done or rest
        return done

    def _finished(self, state: State, pending: Pending) -> Applied | None:
        """Finish the release that an earlier life has begun: the same records, whatever else can be released by now."""
        begun, self._begun = self._begun, None
        left = [offset for offset in begun.offsets if offset in self._waiting] if begun is not None else []
        if begun is None or not left:
            return None
        if len(left) == len(begun.offsets):
            return self._release(begun, state, pending, again=True)
        if self._waiting.has_swaps(begun.offsets):  # everything is stored
            pending.resolve(self.name.topic_id, self.name.partition, left)
            self._waiting.remove(left)
        return None

    def _movable(self, state: State, below: int) -> list[PendingRecord]:
        """The waiting records whose hand-over has arrived, with those behind them."""
        if self.ports.handover is None:
            return self._waiting.behind((), below)
        if (floors := (state.floor, state.floors)) != self._floors:
            self._floors = floors
            self._waiting.forget_awaited()
        first = self._waiting.unknown()
        if first:  # what they wait for is not stored: it is found by planning them
            records = self._as_records(first)
            assigned = {r.offset: (r.epoch, r.commit) for r in first}
            decoder, known = self._prepared(records, state, self.ports)
            made = plan(records, self.target, decoder, known, self.ports, assigned=assigned)
            self._waiting.note(_awaited(made, records))
        return self._waiting.behind(self.ports.handover.get(self._waiting.awaited()).found, below)

    def _retry(
        self, queue: Sequence[PendingRecord], state: State, pending: Pending, *, given_up: bool
    ) -> Applied | None:
        """Apply these waiting records as far as possible; None if nothing could be applied."""
        made, records = planned = self._plan_waiting(queue, state, given_up=given_up)
        self._waiting.note(_awaited(made, records))
        still = {int(records.offsets[w.index]) for w in made.pending}
        if made.barrier is not None:  # the table has lost a column since, or evolve was turned on since
            self.lacking = made.barrier
            still.update(r.offset for r in queue if r.offset >= made.barrier.next_offset)
        settled = tuple(r.offset for r in queue if r.offset not in still)
        if not settled:
            return None
        group = ReleaseGroup(self.name.topic_id, self.name.partition, settled, given_up)
        if self._releases is not None:
            self._releases.put_release(group)
        return self._release(group, state, pending, None if still else planned)

    def _release(
        self,
        group: ReleaseGroup,
        state: State,
        pending: Pending,
        planned: tuple[Plan, Records] | None = None,
        *,
        again: bool = False,
    ) -> Applied | None:
        """Apply a group of waiting records that has been recorded; None if the table lacks columns for it."""
        made, records = planned or self._plan_waiting(
            self._waiting.records(group.offsets), state, given_up=group.given_up
        )
        if made.barrier is not None:
            self.lacking = made.barrier
            return None
        if again:
            made = without_repeated(made, self.target, self.ports.lookup)
        still = {int(records.offsets[w.index]) for w in made.pending}
        swaps = {
            int(records.offsets[s.index]): AppliedSwap(s.inner, int(records.offsets[s.closed]) if s.closed >= 0 else -1)
            for s in made.swaps
            if int(records.offsets[s.index]) not in still
        }
        settled = [offset for offset in group.offsets if offset not in still]
        digest = sha256(",".join(map(str, group.offsets)).encode()).hexdigest()[:16]
        made.pending = []
        made.inserts = [replace(i, label=f"pending-{digest}/{i.label}") for i in made.inserts]
        first, end = group.offsets[0], group.offsets[-1] + 1
        done = self._carry_out(made, records, first, end, _RELEASE)
        if entries := self._waiting.applied(swaps):
            # Once it does not wait any more, only this entry shows that the key has two rows.
            token = self.name.token(first, end, f"pending-{digest}")
            pending.put(self.name.topic_id, self.name.partition, entries, token, fence=self.fence)
            self._waiting.keep(entries)
        pending.resolve(self.name.topic_id, self.name.partition, [o for o in settled if o not in swaps])
        self._waiting.remove(settled)
        done.counts = Counter(
            {"released": len(settled), **{k: made.counts[k] for k in ("upserts", "deletes", "moves")}}
        )
        # A released change may close a swap. Those that one has opened are added where the next chunk begins.
        done.state = replace(state, doubled={k: n for k, n in state.doubled.items() if made.state.doubled.get(k) == n})
        return done

    def prepared(self, records: Records, state: State) -> tuple[BatchDecoder, State]:
        """The decoder for records of any offsets, and the state with the profile for decoding them."""
        return self._prepared(records, state, self.ports)

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
        )
        self._carry_out(stored, records, int(records.offsets[0]), int(records.offsets[-1]) + 1, _RELEASE)
        return made

    def _plan_waiting(self, queue: Sequence[PendingRecord], state: State, *, given_up: bool) -> tuple[Plan, Records]:
        """The plan of waiting records, in the order that they were given on arrival."""
        ports = self.ports
        if given_up and ports.handover is not None:
            ports = replace(ports, handover=MissingAsUnknown(ports.handover))
        records = self._as_records(queue)
        assigned = {r.offset: (r.epoch, r.commit) for r in queue}
        decoder, known = self._prepared(records, self._waiting.with_swaps_of(queue, state), ports)
        return plan(records, self.target, decoder, known, ports, assigned=assigned), records

    def _as_records(self, queue: Sequence[PendingRecord]) -> Records:
        return Records(
            self.name.topic,
            self.name.partition,
            np.array([r.offset for r in queue], dtype=np.int64),
            np.array([r.timestamp for r in queue], dtype=np.int64),
            [r.key for r in queue],
            [r.value for r in queue],
            [list(r.headers) for r in queue],
        )

    def _prepared(self, records: Records, state: State, ports: Ports) -> tuple[BatchDecoder, State]:
        """The decoder for these records, and the state with the profile for decoding them."""
        profile = self._decoder(before=False).learn(records, state.profile, ports.history)
        decoder = self._decoder(before=self.target.wants_before(profile.key_columns))
        return decoder, replace(state, profile=profile)

    def _decoder(self, *, before: bool) -> BatchDecoder:
        if before not in self._decoders:
            self._decoders[before] = self.stages.decoder(self._make_decoder(before))
        return self._decoders[before]

    def _carry_out(self, made: Plan, records: Records, first: int, end: int, retried: Applied | None = None) -> Applied:
        name = self.name
        done = Applied(
            made.state,
            first,
            end,
            records=int(np.searchsorted(records.offsets, end)),
            counts=made.counts,
            steps=made.steps,
            barrier=made.barrier,
            dead_letters=len(made.bad),
            last_source_ts=made.last_source_ts,
        )
        if retried is not None and retried is not _RELEASE:
            done.rows += retried.rows
            done.counts.update(retried.counts)
            done.dead_letters += retried.dead_letters
        if made.bad and self.target.policy.changes.on_bad_record == "fail":
            raise stop(made.bad[0], records)
        cut = made.barrier
        if cut is not None and cut.kind == "new_columns" and cut.columns and end > first and self._note_cut is not None:
            self._note_cut(end)
        if made.handover is not None and self.ports.handover is not None:
            token = name.token(first, end, "handover")
            self.ports.handover.put(made.handover.ids, made.handover.rows, made.handover.known, token)
        self._close_swaps(made, records, first, end)
        self._park(made, records, first, end)
        fence = self.fence
        execution = fence.execution if fence is not None else f"attempt-{name.attempt}"
        for insert in made.inserts:
            differs = made.reconciles or insert.partial
            token = name.token(first, end, insert.label, execution=execution if differs else "")
            with self.stages.stage("insert"):
                self.writer.write(insert, token, fence=fence, by_content=not self.target.exclusive)
            done.rows += insert.rows.num_rows
            done.top = max(done.top, self.target.top_version(insert.rows))
        if made.bad:
            hides = self.target.policy.columns.hides
            found = [dead_letter_of(b, records, withheld=hides) for b in made.bad]
            self.dead_letters.put(found, name.token(first, end, "dead"))
        if self.progress is not None and retried is not _RELEASE:
            # The truncate itself is still to come: an attempt that began behind it would never carry it out.
            before = cut is not None and cut.kind == "truncate"
            self.progress(replace(done, end=end - 1) if before else done)
        return done

    def _close_swaps(self, made: Plan, records: Records, first: int, end: int) -> None:
        """Note which swaps of released changes are closed here: others of their transaction may wait for long."""
        closers = {key: int(records.offsets[place]) for key, place in made.closers.items()}
        entries = self._waiting.closed(closers) if closers else []
        if entries and self.pending is not None:
            token = self.name.token(first, end, "closed")
            self.pending.put(self.name.topic_id, self.name.partition, entries, token, fence=self.fence)
            self._waiting.keep(entries)

    def _park(self, made: Plan, records: Records, first: int, end: int) -> None:
        """Store the waiting events before any row of the chunk, so that a retry leaves them out too."""
        if not made.pending:
            return
        if self.pending is None:
            raise StreamFailed(
                "a change event waits for values of another key, and the stream has no pending table",
                hint="run `ch_sink init CONFIG --apply` to create it",
            )
        now = self.clock()
        parked = []
        for wait in made.pending:
            record = dead_letter_of(BadRecord(wait.index, ""), records)
            parked.append(
                PendingRecord(
                    record.offset,
                    record.timestamp,
                    record.key,
                    record.value,
                    record.headers,
                    wait.epoch,
                    wait.commit,
                    now,
                )
            )
        fresh = [r for r in parked if r.offset not in self._waiting]
        if fresh:
            token = self.name.token(first, end, "pending")
            self.pending.put(self.name.topic_id, self.name.partition, fresh, token, fence=self.fence)
            self._waiting.add(fresh, _awaited(made, records))
        made.counts["waiting"] += len(fresh)
