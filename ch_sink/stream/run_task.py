"""Run one task with given ports: consume, plan and insert a range, or apply waiting changes.

This module does not know where records come from or where rows go. Errors are part of the result.

Small ranges of several partitions of one table are planned apart and stored by one insert (`hold`, `store_held`):
parts do not grow with partitions. In a group is the first attempt at a chunk whose plan is nothing but inserts of one
step, into a table for which a second attempt looks up what of the chunk is stored: a collapsing one, one with versions,
or one that keeps every change and tells them apart. The group's insert has a token and a fence of its own; if it fails,
so does each range. A second attempt runs alone. It registers before it asks, and the fence holds as long as none has:
so a first attempt need not register itself.

Chunks are not grouped where stored rows do not show which changes they came from: a rollup does not say which
differences it has, and rows whose versions are times may be equal and still be of two changes.
"""

import gc
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256

import pyarrow as pa

from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.order import State
from ch_sink.pipeline.chunks import Chunk, read_ahead
from ch_sink.pipeline.guards import Stages
from ch_sink.pipeline.merging import by_partition, change_identity
from ch_sink.pipeline.partition_sink import PartitionSink, Prepared
from ch_sink.pipeline.plans import StreamName
from ch_sink.pipeline.target import Target
from ch_sink.ports import Insert, TaskLedger
from ch_sink.stream.tasks import RangeDone, RangeTask, ReleaseDone, ReleaseTask, Task, TaskResult


@dataclass(frozen=True, slots=True)
class TaskPorts:
    """The ports and functions that one task uses."""

    sink: PartitionSink
    chunks: Callable[[int], Iterator[Chunk]]
    """Offset → the chunks of the task's range from there on; not used by a ReleaseTask."""
    ledger: TaskLedger


OpenPorts = Callable[[Task], TaskPorts]
"""Opens the ports of a task. Raises ChSinkError."""


@dataclass(frozen=True, slots=True)
class Held:
    """A range whose only chunk is planned, and may be stored together with those of other partitions: `store_held`."""

    task: RangeTask
    ports: TaskPorts
    prepared: Prepared
    done: RangeDone
    """Its outcome, once it is stored."""

    @property
    def sink(self) -> PartitionSink:
        """The sink that planned it."""
        return self.ports.sink


def task_name(task: Task) -> StreamName:
    """The name in the tokens of a task."""
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


def hold(task: RangeTask, open_ports: OpenPorts) -> RangeDone | Held:
    """Run a short range, but leave its insert to `store_held` if it may be shared with other partitions."""
    with _without_collector():
        return _drained(range_steps(task, open_ports, may_hold=True))


def store_held(held: Sequence[Held]) -> None:
    """Store ranges of one table and call of the executor, and complete their outcomes. Their failures are in these."""
    task, sink, ledger = held[0].task, held[0].sink, held[0].ports.ledger
    try:
        fence = ledger.together(task.topic_id, [one.task.partition for one in held], task.claim, task.batch)
        for insert in _joined(held):
            token = group_token([one.sink.name.token(*one.prepared.span, insert.label) for one in held])
            with sink.stages.stage("insert"):
                sink.storing.writer.write(insert, token, fence=fence, by_content=True)
        for one in held:
            one.done.add(one.sink.storing.outcome(one.prepared.made, one.prepared.records, *one.prepared.span))
            one.done.settle(one.sink)
    except Exception as error:  # noqa: BLE001 (the coordinator raises it)
        for one in held:
            one.done.failure = _failure(one.task, error, f"from offset {one.done.end}")
    for one in held:
        _note_seconds(one.done, one.sink.stages)


def group_token(alone: Sequence[str]) -> str:
    """Deduplication token of one insert of a group, made of those that its ranges would have alone."""
    return f"group-{sha256(repr(sorted(alone)).encode()).hexdigest()}"


def _joined(held: Sequence[Held]) -> list[Insert]:
    """The inserts of all ranges: rows of one step and the same columns are one, by table partition."""
    alike: dict[tuple[str, pa.Schema], list[pa.Table]] = {}
    for insert in (insert for one in held for insert in one.prepared.made.inserts):
        alike.setdefault((insert.step, insert.rows.schema.remove_metadata()), []).append(insert.rows)
    joined = []
    for number, ((step, _), tables) in enumerate(alike.items()):
        rows = pa.concat_tables(tables).combine_chunks()
        label = step if not number else f"{step} {number}"
        joined += by_partition(rows, held[0].sink.target, label)
    return joined


def range_steps(
    task: RangeTask, open_ports: OpenPorts, *, may_hold: bool = False
) -> Generator[None, None, RangeDone | Held]:
    """Run a range in this thread, one chunk per step, for runners that interleave tasks.

    ``may_hold``: a range of one chunk may be left planned. If not, it runs again; nothing was stored by then.
    """
    done, stages = RangeDone.of(task), Stages()
    try:
        if may_hold and not task.attempt and (held := _held(task, open_ports)) is not None:
            return held
        ports = open_ports(task)
        stages = ports.sink.stages
        state = _begin(task, ports, done)
        with _closing(ports.chunks(done.end)) as ready, closing(_timed(ready, stages)) as chunks:
            for chunk in chunks:
                applied = ports.sink.apply(chunk, state)
                done.add(applied)
                state = applied.state
                if applied.barrier is not None:
                    break
                yield
        done.settle(ports.sink)
    except Exception as error:  # noqa: BLE001 (the coordinator raises it)
        done.failure = _failure(task, error, f"from offset {done.end}")
    _note_seconds(done, stages)
    return done


def _held(task: RangeTask, open_ports: OpenPorts) -> Held | None:
    """The range, planned; None if it is more than one chunk, or needs more than an insert."""
    ports = open_ports(replace(task, first=True))
    sink = ports.sink
    target = sink.target
    looked_up = target.collapsing or target.appends or not target.exclusive
    if not looked_up or target.table.rollups or not sink.settled or sink.storing.fence is not None:
        return None
    with _closing(ports.chunks(task.start)) as ready, closing(_timed(ready, sink.stages)) as chunks:
        chunk = next(chunks, None)
    if chunk is None or (chunk.first, chunk.end) != (task.start, task.end):
        return None
    prepared = sink.prepare(chunk, task.state)
    return Held(task, ports, prepared, RangeDone.of(task)) if _may_share(prepared, target) else None


def _may_share(prepared: Prepared, target: Target) -> bool:
    """Whether the chunk may be stored together with others."""
    made = prepared.made
    if not made.only_inserts or len({insert.step for insert in made.inserts}) > 1 or prepared.released is not None:
        return False
    key = made.state.profile.key_columns  # a topic without keys has one partition
    return not target.appends or bool(key and all(change_identity(i, target, key) for i in made.inserts))


def _drained(steps: Generator[None, None, RangeDone | Held]) -> RangeDone | Held:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            done: RangeDone | Held = end.value
            return done


def _run_range(task: RangeTask, open_ports: OpenPorts) -> RangeDone:
    if task.short:
        short = _drained(range_steps(task, open_ports))
        assert isinstance(short, RangeDone)
        return short
    done, stages = RangeDone.of(task), Stages()
    try:
        ports = open_ports(task)
        stages = ports.sink.stages
        state = _begin(task, ports, done)
        with read_ahead(ports.chunks(done.end)) as ready, closing(_timed(ready, stages)) as chunks:
            for applied in ports.sink.run(chunks, state):
                done.add(applied)
        done.settle(ports.sink)
    except Exception as error:  # noqa: BLE001 (the coordinator raises it)
        done.failure = _failure(task, error, f"from offset {done.end}")
    _note_seconds(done, stages)
    return done


def _note_seconds(done: RangeDone, stages: Stages) -> None:
    done.counts.kinds.update({f"{name}_ms": round(s * 1000) for name, s in stages.seconds.items()})


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
        error = StreamFailed(text, hint="Run again with --debug for the trace.")
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
