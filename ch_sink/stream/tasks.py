"""Tasks of the coordinator and their results. Executors pass them by pickle, errors included."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ch_sink.errors import ChSinkError
from ch_sink.model.counts import Counts
from ch_sink.order import BackwardStep, State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.partition_sink import PartitionSink
from ch_sink.pipeline.plans import Applied, Changed
from ch_sink.ports import Claim, RangeProgress
from ch_sink.table.model import TargetTable

_SHORT = 5_000
"""Offsets below which a range is read, planned and inserted in one thread."""
_FIXED = 500
"""The fixed cost of a task, in offsets: answers of Kafka and ClickHouse that it waits for."""


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Apply the offsets [start, end) of a topic-partition to the table."""

    stream: str
    topic: str
    topic_id: str
    partition: int
    table: TargetTable
    """The table as the coordinator last detected it."""
    start: int
    end: int
    state: State
    """The ordering state at ``start``."""
    attempt: int = 0
    chunk_offsets: int = 50_000
    chunk_bytes: int = 64 << 20
    claim: Claim | None = None
    """The claim under which the coordinator planned the task: the task acts only while this claim is the newest."""
    batch: int = 0
    changed: Changed = ""
    settled: bool = False
    """Nothing of the partition is in the pending table, as the owner of the stream knows: it need not be asked."""
    first: bool = False
    """No execution of the task has begun before, and this one is not registered: see `TaskLedger.together`."""

    @property
    def work(self) -> str:
        """Identifies what the task is to do, in whichever execution."""
        return f"{self.batch}/{self.start}"

    @property
    def short(self) -> bool:
        """Whether the range is small and one chunk, unless its bytes exceed one: threads of its own would cost more."""
        one = self.start // self.chunk_offsets == (self.end - 1) // self.chunk_offsets
        return one and self.end - self.start < _SHORT


@dataclass(frozen=True, slots=True)
class ReleaseTask:
    """Apply the waiting changes of a topic-partition whose values have arrived."""

    stream: str
    topic: str
    topic_id: str
    partition: int
    table: TargetTable
    state: State
    attempt: int = 0
    below: int = 0
    """Offset that the partition has reached: records from there on belong to a chunk that is not stored whole."""
    caught_up: bool = False
    """Everything in the topic has been read: a change that still waits after its deadline is given up."""
    claim: Claim | None = None
    changed: Changed = ""

    @property
    def work(self) -> str:
        """See RangeTask."""
        return "release"


@dataclass(slots=True)
class RangeDone:
    """The outcome of a RangeTask, so far: all offsets below ``end`` are applied, even if the task failed after that."""

    stream: str
    partition: int
    start: int
    end: int
    state: State
    """The ordering state at ``end``."""
    counts: Counts = field(default_factory=Counts)
    waiting: int = 0
    """Number of changes of the partition that wait for values; 0 (unknown) if the task failed."""
    settled: bool = False
    """The pending table holds nothing of the partition; false (unknown) if the task failed."""
    steps: list[BackwardStep] = field(default_factory=list)
    barrier: Barrier | None = None
    failure: ChSinkError | None = None
    repeated: bool = False
    """Another execution of the task began before this one."""

    @classmethod
    def of(cls, task: RangeTask) -> "RangeDone":
        """Nothing of the task is done so far."""
        return cls(task.stream, task.partition, task.start, task.start, task.state)

    def add(self, applied: Applied) -> None:
        """A chunk was applied."""
        self.end, self.state = applied.end, applied.state
        self.counts.add(applied.counts)
        self.steps += applied.steps
        self.barrier = applied.barrier or self.barrier

    def settle(self, sink: PartitionSink) -> None:
        """Everything is applied."""
        self.waiting, self.settled = sink.waiting, sink.settled


@dataclass(frozen=True, slots=True)
class ReleaseDone:
    """The outcome of a ReleaseTask."""

    stream: str
    partition: int
    state: State | None = None
    """The ordering state after the release, None if nothing could be applied."""
    counts: Counts = field(default_factory=Counts)
    waiting: int = 0
    """Number of changes that still wait."""
    lacking: Barrier | None = None
    """Columns that the table needs before the other changes can be applied."""
    failure: ChSinkError | None = None


Task = RangeTask | ReleaseTask


def patience(task: Task, deadline: float) -> float:
    """How long a change that waits may wait in this task, if ``deadline`` is the stream's; in seconds."""
    if isinstance(task, RangeTask):
        return math.inf
    return deadline if task.caught_up else math.inf


def weight(task: Task) -> int:
    """The expected cost of a task, in offsets."""
    return _FIXED + (task.end - task.start if isinstance(task, RangeTask) else 0)


def tried(task: Task, times: int) -> Task:
    """The task after so many failures, each of which may have stored something."""
    if not times:
        return task
    if isinstance(task, ReleaseTask):
        return replace(task, attempt=task.attempt + times)
    return replace(task, attempt=task.attempt + times, settled=False, first=False)


TaskResult = RangeDone | ReleaseDone


def progress_entry(task: Task, end: int, state: State) -> RangeProgress:
    """The entry that a task records when everything below ``end`` is stored."""
    claim = task.claim.number if task.claim is not None else 0
    start, batch = (task.start, task.batch) if isinstance(task, RangeTask) else (0, 0)
    return RangeProgress(task.topic_id, task.partition, start, end, state.to_json(), claim, batch)


class Execute(Protocol):
    """Runs tasks of one or more streams, in any order or at once."""

    def __call__(self, tasks: Sequence[Task], /) -> Sequence[TaskResult]:
        """One result for each task, in the same order. A task that fails has a result, too.

        An exception means that the executor itself failed; the outcome of all tasks is unknown.
        """
        ...


class ExecuteWithin(Protocol):
    """Runs tasks as `Execute` does, in some of its slots."""

    def __call__(self, tasks: Sequence[Task], most: int | None = None, /) -> Sequence[TaskResult]:
        """``most``: how many slots the tasks take at most; None for as many as there are."""
        ...
