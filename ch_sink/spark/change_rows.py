"""Runs the tasks of a stream on rows of a DataFrame that are changes already.

Offsets are counted as rows arrive, and decide nothing.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ch_sink.config import Config
from ch_sink.decode.stated_rows import BUCKET, NUMBER, OP, RowDecoder, Rows
from ch_sink.model.change import Records
from ch_sink.pipeline.chunks import Chunk
from ch_sink.sources import STATED
from ch_sink.spark.frame_stream import Span
from ch_sink.spark.kafka_rows import Batches, changed_meanwhile, runs
from ch_sink.spark.stored_versions import Newer, newer
from ch_sink.stream.run_task import TaskPorts, run_task
from ch_sink.stream.tasks import RangeTask, Task, TaskResult, tried
from ch_sink.table.model import TargetTable
from ch_sink.wiring.tasks import task_ports
from ch_sink.wiring.worker import run_configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS = 8
"""Partitions over which rows are spread by their keys. Fixed: a key's rows always have the same."""
_ROWS = 50_000
"""Rows of a chunk."""
_RESULT = "partition long, result binary"


def bucket(keys: Sequence[str]) -> str:
    """SQL of a row's bucket."""
    return f"int(pmod(xxhash64({', '.join(f'`{key}`' for key in keys)}), {BUCKETS}))"


@dataclass(frozen=True)
class ChangeRows:
    """Runs the tasks of a stream on the rows of one DataFrame, which has the columns `BUCKET`, `NUMBER` and `OP`."""

    frame: "DataFrame"
    spans: Mapping[int, Span]
    config: str = field(repr=False)
    """JSON of the stream's Config, secrets included."""
    keys: tuple[str, ...]
    ignored_nulls: frozenset[str]
    least: Mapping[int, int]
    """Bucket → the lowest number of the batch."""

    def __call__(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """See Execute."""
        ranges = {task.partition: task for task in tasks if isinstance(task, RangeTask)}
        done = self._run(ranges) if ranges else {}
        return [done[t.partition] if isinstance(t, RangeTask) else run_configured(self.config, t) for t in tasks]

    def repeats(self, task: RangeTask) -> bool:
        """Whether some of the rows may have come before, in whatever batch."""
        known = task.state.sources.get(STATED.name)
        return task.attempt > 0 or (known is not None and self.least[task.partition] <= known.commit)

    def _run(self, tasks: Mapping[int, RangeTask]) -> dict[int, TaskResult]:
        kinds = dict(self.frame.dtypes)
        rows = (
            self.frame.where(f"{BUCKET} IN ({', '.join(map(str, tasks))})")
            .repartition(len(tasks), BUCKET)
            .sortWithinPartitions(BUCKET, NUMBER, *self.keys, OP)
            .mapInArrow(_runner(self, tasks, kinds), _RESULT)
            .collect()
        )
        found: dict[int, TaskResult] = {int(row.partition): pickle.loads(bytes(row.result)) for row in rows}
        for partition in tasks.keys() - found.keys():
            raise changed_meanwhile(partition)
        return found


def _runner(
    given: ChangeRows, tasks: Mapping[int, RangeTask], kinds: Mapping[str, str]
) -> Callable[[Batches], Batches]:
    work = {partition: pickle.dumps(task) for partition, task in tasks.items()}
    firsts = {partition: (given.spans[partition].first, given.spans[partition].rows) for partition in tasks}
    text, keys, ignored = given.config, given.keys, given.ignored_nulls
    repeats = {partition for partition, task in tasks.items() if given.repeats(task)}

    def ch_sink_changes(batches: Batches) -> Batches:
        from itertools import groupby

        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        for partition, group in groupby(runs(batches, BUCKET), key=lambda run: run[0]):
            task = tried(pickle.loads(work[partition]), attempt)
            assert isinstance(task, RangeTask)
            first, count = firsts[partition]
            source = _Numbered(task, (run for _, run in group), first, count)
            done = _apply(text, task, source, keys, ignored, kinds, repeats=partition in repeats or attempt > 0)
            yield pa.RecordBatch.from_pydict(
                {"partition": pa.array([partition], pa.int64()), "result": [pickle.dumps(done)]}
            )

    return ch_sink_changes


def _apply(
    text: str,
    task: RangeTask,
    source: "_Numbered",
    keys: tuple[str, ...],
    ignored: frozenset[str],
    kinds: Mapping[str, str],
    *,
    repeats: bool,
) -> TaskResult:
    config = Config.from_task_json(text)

    def decoder(table: TargetTable) -> RowDecoder:
        return RowDecoder(table, keys, ignored, kinds, config.policy().values)

    def open_ports(wanted: Task) -> TaskPorts:
        ports = task_ports(config, wanted, lambda table, _before: decoder(table))
        left = newer(config, task, decoder(task.table)) if repeats else None
        return replace(ports, chunks=lambda first: source.chunks(first, keys, left))

    return run_task(task, open_ports)


@dataclass(slots=True)
class _Numbered:
    """The rows of one bucket, which are counted from an offset on."""

    task: RangeTask
    batches: Batches
    first: int
    rows: int

    def chunks(self, first: int, keys: tuple[str, ...], left: Newer | None) -> Iterator[Chunk]:
        """Chunks of the task from this offset on. Raises StreamFailed if the DataFrame has other rows than before."""
        for chunk in numbered(self.task, self._from(first), first, keys):
            yield left.of(chunk) if left is not None else chunk

    def _from(self, first: int) -> Batches:
        at = self.first
        for batch in self.batches:
            start, at = at, at + batch.num_rows
            yield batch.slice(max(0, first - start), max(0, min(at, self.task.end) - max(first, start)))
        if at - self.first != self.rows:
            raise changed_meanwhile(self.task.partition)


def numbered(task: RangeTask, batches: Batches, first: int, keys: tuple[str, ...]) -> Iterator[Chunk]:
    """The rows as chunks, whose offsets are counted from ``first`` on."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        while sum(b.num_rows for b in held) >= _ROWS:
            whole = pa.Table.from_batches(held)
            yield _chunk(task, whole.slice(0, _ROWS), first, keys)
            first += _ROWS
            held = whole.slice(_ROWS).to_batches()
    if held:
        yield _chunk(task, pa.Table.from_batches(held), first, keys)


def _chunk(task: RangeTask, rows: pa.Table, first: int, keys: tuple[str, ...]) -> Chunk:
    end = first + rows.num_rows
    texts: Any = Rows(rows.select(list(keys)))
    offsets, times = np.arange(first, end), np.full(rows.num_rows, -1, dtype=np.int64)
    return Chunk(first, end, Records(task.topic, task.partition, offsets, times, texts, Rows(rows)))
