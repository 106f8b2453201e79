"""The whole coordinator in this process: deterministic, over ports in memory or real ones, with kills as data.

    memory = MemoryStream(table, ("id",), records, policy, decoder)
    runner = LocalRunner(memory.settings, memory.ports())
    runner.run([LocalBatch({0: (0, 50), 1: (0, 40)}, kills=(Kill("after insert", nth=2), Kill("before results")))])
    assert memory.table.current() == …

Each kill of a batch ends one life of the job: the coordinator, decoders and everything else in the process are gone.
The next life begins with what the ports hold, plans from the ledger up to the ends of the batch, and dies at the next
kill, until an attempt succeeds. So it is with other faults (`Fault`): an error closes the stream, which is opened
again.

Tasks run in one thread. A step is one chunk of one partition; ``order`` interleaves the partitions' chunks.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ch_sink.errors import ChSinkError
from ch_sink.model.change import Records
from ch_sink.model.values import TopicState
from ch_sink.pipeline.chunks import Chunk, cut
from ch_sink.pipeline.guards import Fencing
from ch_sink.pipeline.partition_sink import Attempt, Stores, open_sink
from ch_sink.pipeline.plans import BatchDecoder, Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import (
    DeadLetters,
    Fence,
    Handover,
    History,
    Ledger,
    Pending,
    RowLookup,
    TableWriter,
)
from ch_sink.stream.batch_plan import OffsetRange
from ch_sink.stream.claims import forget
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.ports import GroupOffsets, StreamPorts, StreamSettings, TableAdmin, Topics
from ch_sink.stream.run_task import Held, TaskPorts, range_steps, release, store_held, task_name
from ch_sink.stream.tasks import RangeDone, RangeTask, ReleaseDone, Task, TaskResult, patience, progress_entry, tried
from ch_sink.table.model import TargetTable
from tests.support.kills import Fault, Guarded, Kill, Killed, KillSwitch

_LEDGER = {name: name for name in ("claim", "intents", "results", "record")}


@dataclass(frozen=True, slots=True)
class LocalPorts:
    """The external systems of one stream, which a kill does not affect."""

    open_ledger: Callable[[], Ledger]
    """A new ledger over the same entries, for the coordinator of the next life and for tasks."""
    admin: TableAdmin
    topics: Topics
    group: GroupOffsets
    pending: Pending
    dead_letters: DeadLetters
    writer: Callable[[TargetTable], TableWriter]
    """The ports that depend on the table's columns receive the current table."""
    lookup: Callable[[TargetTable], RowLookup]
    handover: Callable[[TargetTable], Handover]
    decoder: Callable[[TargetTable, bool], BatchDecoder]
    """The flag says whether before images are wanted."""
    records: Callable[[int, int, int], Records]
    """Partition, first offset, end → its records."""
    history: Callable[[int], History | None] = lambda _: None
    """Partition → earlier records, for the look back."""
    settle: Callable[[TargetTable, Fence], None] = lambda _table, _fence: None
    """Returns once no insert into the partition runs that an earlier execution sent."""
    clock: Callable[[], float] = time.time
    """The host's clock, seconds since 1970."""
    deadline: float = math.inf
    """Seconds after which a waiting change is given up once the stream has caught up."""


@dataclass(frozen=True, slots=True)
class LocalBatch:
    """One micro-batch."""

    ranges: Mapping[int, tuple[int, int]]
    """Partition → [start, end)."""
    cuts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Partition → offsets at which chunks end; by default the product's cuts."""
    order: Sequence[int] = ()
    """Which partition takes the next step. The rest of the work is then run one partition after the other."""
    kills: Sequence[Fault] = ()
    """Each belongs to one attempt at the batch, until one does not end it."""
    high: Mapping[int, int] = field(default_factory=dict)
    """High watermarks that are above the end of the ranges."""
    groups: int = 1
    """Groups of partitions whose small ranges are stored together."""


class LocalRunner:
    """Runs batches of one stream; each kill ends a life, and a new one begins."""

    def __init__(
        self,
        settings: StreamSettings,
        ports: LocalPorts,
        *,
        after_batch: Callable[[], None] | None = None,
        after_kill: Callable[[], None] | None = None,
        on_fault: Callable[[Fault], None] | None = None,
    ) -> None:
        """
        Args:
            after_kill: what happens outside before the next life begins.
            on_fault: lets a fault happen that concerns what is outside: a stale replica, the clock, a restored server,
                another setting.
        """
        self.settings, self.ports, self.after_batch, self.after_kill = settings, ports, after_batch, after_kill
        self.lives = 0
        self.results: list[RangeDone] = []
        """Results of the attempts that finished."""
        self._on_fault = on_fault
        self._switch = KillSwitch(happen=self._happen)
        self._firsts: dict[int, int] = {}
        """Partition → where its first batch began."""
        self._ends: dict[int, int] = {}
        """Partition → the highest end of its batches so far."""
        self._running: Sequence[Task] = ()
        """The task that takes its step, or those that are stored together."""
        self._again: dict[int, TaskResult] = {}
        """Partition → the result of a second execution of its task."""
        self._coordinator: Coordinator | None = None
        self._batch = LocalBatch({})
        self._order: list[tuple[int, int]] = []
        # Decoding is a function of records and profile: decoders keep layouts only, and lives may share them.
        self._decoder = lru_cache(maxsize=8)(ports.decoder)

    @property
    def happened(self) -> Mapping[str, int]:
        """How often each kind of fault has happened."""
        return self._switch.happened

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the current life; starts a life if there is none."""
        if self._coordinator is None:
            self._coordinator = self._open()
        return self._coordinator

    def run(self, batches: Iterable[LocalBatch]) -> None:
        """Run the batches one after the other. Raises ChSinkError if the stream stops."""
        for batch in batches:
            # A batch that was taken back to an earlier one reads what the ledger says.
            struck = all(self._attempt(batch, kill) for kill in batch.kills)
            while struck and self._attempt(batch):
                pass
            if self.after_batch is not None:
                self.after_batch()

    def run_release(self) -> None:
        """Apply waiting changes whose values have arrived."""
        self._switch.arm()
        self.coordinator.run_release(self._execute)

    def catch_up(self, limit: int | None = None) -> None:
        """Read all that the topic holds, in batches of at most so many offsets, as a job does."""
        self._switch.arm()
        self._batch = LocalBatch({})
        state = self.ports.topics.state(self.settings.topic)
        while ranges := self.coordinator.plan(state, limit):
            self.coordinator.run_batch(ranges, self._execute)

    def strike(self, batch: LocalBatch, kill: Kill) -> bool:
        """Run a batch until the kill; returns whether it struck. The next life is another runner's."""
        return self._attempt(batch, kill)

    def stop(self) -> None:
        """End the current life cleanly."""
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def kill(self) -> None:
        """End the current life at once: only what the ports hold is left of it."""
        if self._coordinator is not None:
            forget(self.settings.name, self._coordinator.run_id)
            self._coordinator = None

    def _attempt(self, batch: LocalBatch, *kills: Fault) -> bool:
        """Run what the ledger says is left of a batch; returns whether a fault ended it.

        A batch that never reaches the point of a fault succeeds.
        """
        self._switch.arm(*kills)
        self._firsts = {p: start for p, (start, _) in batch.ranges.items()} | self._firsts
        self._ends |= {p: max(end, self._ends.get(p, end)) for p, (_, end) in batch.ranges.items()}
        self._batch, self._order = batch, list(enumerate(batch.order))
        self._again.clear()
        try:
            self._switch.reach("before batch")
            coordinator = self.coordinator
            planned = self._planned(coordinator, batch)
            while planned:
                coordinator.run_batch(planned, self._execute)
                whole = {r.partition for r in planned if r.end == self._ends[r.partition]} >= batch.ranges.keys()
                planned = [] if whole else self._planned(coordinator, batch)
            self._switch.reach("before commit")
        except Killed:
            self.kill()
            if self.after_kill is not None:
                self.after_kill()
            return True
        except ChSinkError as error:
            if not self._switch.caused(error):
                raise
            self.stop()
            return True
        if any(fault.what == "second job" for fault in self._switch.struck):
            self.kill()  # it is superseded, and ends with its next write
            return True
        return False

    def _happen(self, fault: Fault) -> None:
        match fault.what:
            case "second job":
                self._second_job(fault)
            case "second execution":
                self._second_execution()
            case _:
                if fault.what in ("restored", "setting"):
                    self.kill()
                if self._on_fault is None:
                    raise ValueError(f"nobody knows how to do this: {fault}")
                self._on_fault(fault)

    def _second_job(self, fault: Fault) -> None:
        """Another host's job takes over and finishes the batch, or dies."""
        if self._coordinator is not None:
            forget(self.settings.name, self._coordinator.run_id)  # as if this process were elsewhere
        other = LocalRunner(self.settings, self.ports, on_fault=self._on_fault)
        other._decoder, other._firsts, other._ends = self._decoder, self._firsts, self._ends
        dies = [Kill(fault.dies)] if fault.dies else []
        other._attempt(self._batch, *dies)
        other.kill() if fault.value else other.stop()

    def _second_execution(self) -> None:
        """What is at work is run once more, from its beginning to its end.

        Ranges that may be stored together are run as Spark starts them again; so none is stored together then.
        """
        running = self._running
        for task in running:
            again = tried(task, 1) if isinstance(task, RangeTask) and task.short else task
            self._again[task.partition] = self._finished(again)
        self._running = running

    def _finished(self, task: Task) -> TaskResult:
        if not isinstance(task, RangeTask):
            return release(task, self.open_task)
        steps = range_steps(task, self.open_task)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                done: RangeDone = end.value
                return done

    def _planned(self, coordinator: Coordinator, batch: LocalBatch) -> list[OffsetRange]:
        """What the ledger says is left of the batch."""
        topic = coordinator.topic
        known = self.ports.open_ledger().progress(topic.topic_id)
        starts, ends = self._firsts, self._ends
        at = {p: known.get(p, starts.get(p, low)) for p, low in topic.low.items()}
        high = {p: batch.high.get(p, max(ends.get(p, offset), offset)) for p, offset in at.items()}
        state = TopicState(topic.topic, topic.topic_id, {p: min(at[p], starts.get(p, at[p])) for p in at}, high)
        # Faults are meant for what a batch does, not for the record of where its partitions begin.
        faults = self._switch.faults
        self._switch.faults = faults if known.keys() >= batch.ranges.keys() else ()
        planned = coordinator.plan(state, None, ends)
        self._switch.faults = faults
        return planned

    def _open(self) -> Coordinator:
        self.lives += 1
        switch, ports = self._switch, self.ports
        starts = {str(p): self._firsts[p] for p in self._batch.ranges}
        made = Coordinator(
            replace(self.settings, start=starts) if starts else self.settings,
            StreamPorts(
                Guarded(ports.open_ledger(), switch, _LEDGER),
                Guarded(ports.admin, switch, {"carry_out": "alter", "truncate": "truncate", "fill_rollups": "alter"}),
                ports.topics,
                ports.pending,
                ports.group,
            ),
        )
        self._coordinator = made  # it may die while it opens
        made.open()
        made.run_release(self._execute)
        return made

    def _execute(self, tasks: Sequence[Task]) -> list[TaskResult]:
        of = {task.partition: task for task in tasks if isinstance(task, RangeTask)}
        steps = {p: (task, range_steps(task, self.open_task, may_hold=task.short)) for p, task in of.items()}
        done = self._stored(self._interleaved(steps))
        self.results += done.values()
        return [done[task.partition] if isinstance(task, RangeTask) else self._released(task) for task in tasks]

    def _released(self, task: Task) -> TaskResult:
        self._running = [task]
        done = self._finished(task)
        self._running = ()
        again = self._again.pop(task.partition, None)
        return again if isinstance(again, ReleaseDone) and again.failure is None else done

    def _stored(self, ended: Mapping[int, RangeDone | Held]) -> dict[int, RangeDone]:
        """The outcomes, once what is held is stored: by the batch's number of groups."""
        groups: dict[int, list[Held]] = {}
        for partition, one in ended.items():
            if isinstance(one, Held):
                groups.setdefault(partition % self._batch.groups, []).append(one)
        for _, held in sorted(groups.items()):
            self._running = [one.task for one in held]
            store_held(held)
            self._running = ()
        done = {p: one.done if isinstance(one, Held) else one for p, one in ended.items()}
        # Spark takes the result of whichever execution ends well.
        again = {p: one for p, one in self._again.items() if isinstance(one, RangeDone) and one.failure is None}
        self._again.clear()
        return done | {p: one for p, one in again.items() if p in done}

    def _interleaved(self, ranges: Mapping[int, "_Steps"]) -> dict[int, RangeDone | Held]:
        """Advance the ranges in the batch's order; steps of a range that ended early are left for the next round."""
        done: dict[int, RangeDone | Held] = {}
        left: list[tuple[int, int]] = []
        for number, partition in self._order:
            if partition not in ranges or partition in done:
                left.append((number, partition))
                continue
            self._switch.step = number
            self._advance(partition, ranges[partition], done)
            self._switch.end_step()
        self._order = left
        for partition, steps in ranges.items():
            while partition not in done:
                self._advance(partition, steps, done)
        return done

    def _advance(self, partition: int, at_work: "_Steps", done: dict[int, RangeDone | Held]) -> None:
        task, steps = at_work
        self._running = [task]
        try:
            next(steps)
        except StopIteration as end:
            done[partition] = end.value
        self._running = ()

    def open_task(self, task: Task) -> TaskPorts:
        """The ports of a task, with the kill points."""
        ports, switch, table = self.ports, self._switch, task.table
        ledger = Guarded(ports.open_ledger(), switch, {"put_progress": "progress", "put_release": "group"})

        def begin() -> Fence:
            fence: Fence = ledger.begin(task.topic_id, task.partition, task.claim, task.work)
            ports.settle(table, fence)
            return fence

        sink = open_sink(
            task_name(task),
            Target.of(table, self.settings.policy),
            lambda before: self._decoder(table, before),
            Ports(
                Guarded(ports.lookup(table), switch, {"fetch": "lookup"}),
                Guarded(ports.handover(table), switch, {"put": "handover"}),
                ports.history(task.partition),
            ),
            Stores(
                Guarded(ports.writer(table), switch, {"write": "insert", "roll_up": "insert"}),
                Guarded(ports.dead_letters, switch, {"put": "dead letters"}),
                Guarded(ports.pending, switch, {"put": "pending", "resolve": "release"}),
                ledger,
                lambda done: ledger.put_progress(progress_entry(task, done.end, done.state)),
            ),
            Attempt(
                Fencing(begin),
                task.changed,
                settled=isinstance(task, RangeTask) and task.settled,
                first=isinstance(task, RangeTask) and task.first,
                grouped=isinstance(task, RangeTask) and task.short,
                deadline=patience(task, ports.deadline),
                clock=ports.clock,
            ),
        )
        return TaskPorts(sink, lambda first: self._chunks(task, first), ledger)

    def _chunks(self, task: Task, first: int) -> Iterator[Chunk]:
        assert isinstance(task, RangeTask)
        p, end = task.partition, task.end
        self._switch.reach("before consume")
        if p not in self._batch.cuts:
            whole = self.ports.records(p, first, end)
            yield from cut(iter([whole]), first, end, chunk_offsets=task.chunk_offsets, chunk_bytes=task.chunk_bytes)
            return
        for at in [*(c for c in self._batch.cuts[p] if first < c < end), end]:
            yield Chunk(first, at, self.ports.records(p, first, at))
            first = at


_Steps = tuple[RangeTask, Generator[None, None, RangeDone | Held]]
