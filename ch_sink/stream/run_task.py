"""Run one task with given ports: consume, plan and insert a range, or apply waiting changes.

This module does not know where records come from or where rows go. Errors are part of the result.
"""

import gc
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.order import BackwardStep, State
from ch_sink.pipeline.applied import Applied, StreamName
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.partition_sink import PartitionSink
from ch_sink.pipeline.read_ahead import read_ahead
from ch_sink.pipeline.timings import STAGES, Stages
from ch_sink.ports import TaskLedger
from ch_sink.stream.tasks import RangeDone, RangeTask, ReleaseDone, ReleaseTask, Task, TaskResult

__all__ = ["OpenPorts", "TaskPorts", "range_steps", "release", "run_task", "task_name"]


@dataclass(frozen=True, slots=True)
class TaskPorts:
    """The ports and functions that one task uses."""

    sink: PartitionSink
    chunks: Callable[[int], Iterator[Chunk]]
    """Offset → the chunks of the task's range from there on; not used by a ReleaseTask."""
    ledger: TaskLedger


_SHORT = 5_000
"""Offsets below which a range is read, planned and inserted in one thread."""

OpenPorts = Callable[[Task], TaskPorts]
"""Opens the ports of a task. Raises ChSinkError."""


def task_name(task: Task) -> StreamName:
    """What the tokens of a task are named after."""
    return StreamName(task.stream, task.topic, task.topic_id, task.partition, task.attempt)


def run_task(task: Task, open_ports: OpenPorts) -> TaskResult:
    """Run a task. Reading, planning and inserting overlap, unless there is too little for it to pay."""
    with _without_collector():
        return release(task, open_ports) if isinstance(task, ReleaseTask) else _run_range(task, open_ports)


def release(task: ReleaseTask, open_ports: OpenPorts) -> ReleaseDone:
    """Apply the changes of a partition that need not wait any more."""
    try:
        sink = open_ports(task).sink
        done = sink.retry_pending(task.state, task.below)
    except Exception as error:  # noqa: BLE001 (the coordinator raises it)
        return ReleaseDone(task.stream, task.partition, failure=_failure(task, error, "waiting changes"))
    found = ReleaseDone(task.stream, task.partition, waiting=sink.waiting, lacking=sink.lacking)
    if done is None:
        return found
    return ReleaseDone(
        task.stream,
        task.partition,
        done.state,
        done.rows,
        done.dead_letters,
        sink.waiting,
        dict(done.counts),
        sink.lacking,
    )


def range_steps(task: RangeTask, open_ports: OpenPorts) -> Generator[None, None, RangeDone]:
    """Run a range in this thread, one chunk per step, for runners that interleave tasks."""
    tally = _Tally(task)
    try:
        ports = open_ports(task)
        state = tally.begin(ports)
        for chunk in ports.chunks(tally.end):
            done = ports.sink.apply(chunk, state)
            tally.add(done)
            state = done.state
            if done.barrier is not None:
                break
            yield
        tally.waiting, tally.settled = ports.sink.waiting, ports.sink.settled
    except Exception as error:  # noqa: BLE001 (the coordinator raises it)
        return tally.result(_failure(task, error, f"from offset {tally.end}"))
    return tally.result()


def _run_range(task: RangeTask, open_ports: OpenPorts) -> RangeDone:
    tally = _Tally(task)
    began = time.monotonic()
    try:
        ports = open_ports(task)
        state = tally.begin(ports)
        stages = ports.sink.stages
        try:
            if _is_short(task):
                with _closing(ports.chunks(tally.end)) as ready, closing(_timed(ready, stages)) as chunks:
                    for done in _in_turn(ports.sink, chunks, state):
                        tally.add(done)
            else:
                with read_ahead(ports.chunks(tally.end)) as ready, closing(_timed(ready, stages)) as chunks:
                    for done in ports.sink.run(chunks, state):
                        tally.add(done)
        finally:
            tally.seconds.update(stages.seconds)
        tally.waiting, tally.settled = ports.sink.waiting, ports.sink.settled
    except Exception as error:  # noqa: BLE001 (the coordinator raises it)
        return tally.result(_failure(task, error, f"from offset {tally.end}"))
    finally:
        tally.seconds["range"] = time.monotonic() - began
    return tally.result()


def _is_short(task: RangeTask) -> bool:
    """Whether the range is small and, as far as its bytes allow, one chunk: threads of its own would cost more."""
    return task.end - task.start < _SHORT and task.start // task.chunk_offsets == (task.end - 1) // task.chunk_offsets


def _in_turn(sink: PartitionSink, chunks: Iterator[Chunk], state: State) -> Iterator[Applied]:
    """Apply chunks in this thread, one after the other; stops after a barrier."""
    for chunk in chunks:
        done = sink.apply(chunk, state)
        state = done.state
        yield done
        if done.barrier is not None:
            return


@contextmanager
def _closing(chunks: Iterator[Chunk]) -> Iterator[Iterator[Chunk]]:
    """Close the chunks at the end, so that whoever reads them lets go."""
    try:
        yield chunks
    finally:
        if isinstance(chunks, Generator):
            chunks.close()


@dataclass(slots=True)
class _Tally:
    """The figures of a range so far."""

    task: RangeTask
    end: int = 0
    state: State = field(default_factory=State)
    rows: int = 0
    records: int = 0
    dead_letters: int = 0
    waiting: int = 0
    settled: bool = False
    source_time: int = 0
    top: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    steps: list[BackwardStep] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    barrier: Barrier | None = None
    repeated: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.end, self.state = self.task.start, self.task.state

    def begin(self, ports: TaskPorts) -> State:
        """The state with which the range begins, or continues after an earlier attempt at a collapsing table."""
        task, fence = self.task, ports.sink.fence
        self.repeated = fence is not None and fence.repeats
        if ports.sink.target.collapsing and ports.sink.repeats:
            reached = ports.ledger.progress_of(task.topic_id, task.partition, task.start)
            if reached is not None and reached.end <= task.end:
                self.end = reached.end
                self.state = State.from_json(reached.state).with_floors_of(task.state)
        return self.state

    def add(self, done: Applied) -> None:
        self.end, self.state = done.end, done.state
        self.records += done.records
        self.rows += done.rows
        self.dead_letters += done.dead_letters
        self.source_time = max(self.source_time, done.last_source_ts)
        self.top = max(self.top, done.top)
        self.counts.update(done.counts)
        self.steps += done.steps
        self.cuts.append(done.end)
        self.barrier = done.barrier or self.barrier

    def result(self, failure: ChSinkError | None = None) -> RangeDone:
        times = {f"{name}_ms": round(s * 1000) for name, s in self.seconds.items() if name in STAGES}
        return RangeDone(
            self.task.stream,
            self.task.partition,
            self.task.start,
            self.end,
            self.state,
            rows=self.rows,
            records=self.records,
            dead_letters=self.dead_letters,
            waiting=self.waiting,
            settled=self.settled,
            source_time=self.source_time,
            top=self.top,
            counts={**self.counts, **times},
            steps=tuple(self.steps),
            cuts=tuple(self.cuts),
            barrier=self.barrier,
            failure=failure,
            repeated=self.repeated,
        )


def _failure(task: Task, error: Exception, where: str) -> ChSinkError:
    """The error as the coordinator raises it, with its traceback."""
    trace = traceback.format_exc()
    if not isinstance(error, ChSinkError):
        text = f"partition {task.partition}, {where}: {type(error).__name__}: {error}"
        error = StreamFailed(text, hint="run again with --debug for the trace")
    error.trace = trace  # type: ignore[attr-defined]
    return error


def _timed(chunks: Iterator[Chunk], stages: Stages) -> Generator[Chunk, None, None]:
    while True:
        with stages.stage("consume"):
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk
        del chunk  # while the next one is awaited


@contextmanager
def _without_collector() -> Iterator[None]:
    """Turn cyclic garbage collection off: it would scan hundreds of thousands of objects that form no cycles."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
