"""Run one task with given ports: consume, plan and insert a range, or apply waiting changes.

This module does not know where records come from or where rows go. Errors are part of the result.
"""

import gc
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.order import State
from ch_sink.pipeline.chunks import Chunk, read_ahead
from ch_sink.pipeline.guards import STAGES, Stages
from ch_sink.pipeline.partition_sink import PartitionSink
from ch_sink.pipeline.plans import Applied, StreamName
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
    batch = task.batch if isinstance(task, RangeTask) else 0
    return StreamName(task.stream, task.topic, task.topic_id, task.partition, task.attempt, batch)


def run_task(task: Task, open_ports: OpenPorts) -> TaskResult:
    """Run a task. Reading, planning and inserting overlap, unless there is too little for it to pay."""
    with _without_collector():
        return release(task, open_ports) if isinstance(task, ReleaseTask) else _run_range(task, open_ports)


def release(task: ReleaseTask, open_ports: OpenPorts) -> ReleaseDone:
    """Apply the changes of a partition that need not wait any more."""
    try:
        sink = open_ports(task).sink
        applied = sink.retry_pending(task.state, task.below)
    except Exception as error:  # noqa: BLE001 (the coordinator raises it)
        return ReleaseDone(task.stream, task.partition, failure=_failure(task, error, "waiting changes"))
    done = ReleaseDone(task.stream, task.partition, waiting=sink.waiting, lacking=sink.lacking)
    return done if applied is None else replace(done, state=applied.state, counts=applied.counts)


def range_steps(task: RangeTask, open_ports: OpenPorts) -> Generator[None, None, RangeDone]:
    """Run a range in this thread, one chunk per step, for runners that interleave tasks."""
    done = RangeDone.of(task)
    try:
        ports = open_ports(task)
        state = _begin(task, ports, done)
        for chunk in ports.chunks(done.end):
            applied = ports.sink.apply(chunk, state)
            done.add(applied)
            state = applied.state
            if applied.barrier is not None:
                break
            yield
        done.waiting, done.settled = ports.sink.waiting, ports.sink.settled
    except Exception as error:  # noqa: BLE001 (the coordinator raises it)
        done.failure = _failure(task, error, f"from offset {done.end}")
    return done


def _run_range(task: RangeTask, open_ports: OpenPorts) -> RangeDone:
    done, began = RangeDone.of(task), time.monotonic()
    seconds: dict[str, float] = {}
    try:
        ports = open_ports(task)
        state = _begin(task, ports, done)
        stages = ports.sink.stages
        try:
            if _is_short(task):
                with _closing(ports.chunks(done.end)) as ready, closing(_timed(ready, stages)) as chunks:
                    for applied in _in_turn(ports.sink, chunks, state):
                        done.add(applied)
            else:
                with read_ahead(ports.chunks(done.end)) as ready, closing(_timed(ready, stages)) as chunks:
                    for applied in ports.sink.run(chunks, state):
                        done.add(applied)
        finally:
            seconds.update(stages.seconds)
        done.waiting, done.settled = ports.sink.waiting, ports.sink.settled
    except Exception as error:  # noqa: BLE001 (the coordinator raises it)
        done.failure = _failure(task, error, f"from offset {done.end}")
    seconds["range"] = time.monotonic() - began
    done.counts.kinds.update({f"{name}_ms": round(s * 1000) for name, s in seconds.items() if name in STAGES})
    return done


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


def _begin(task: RangeTask, ports: TaskPorts, done: RangeDone) -> State:
    """The state with which the range begins, or continues after an earlier attempt at a collapsing table."""
    fence = ports.sink.storing.fence
    done.repeated = fence is not None and fence.repeats
    if ports.sink.target.collapsing and ports.sink.repeats:
        reached = ports.ledger.progress_of(task.topic_id, task.partition, task.start)
        if reached is not None and reached.end <= task.end:
            done.end = reached.end
            done.state = State.from_json(reached.state).with_floors_of(task.state)
    return done.state


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
