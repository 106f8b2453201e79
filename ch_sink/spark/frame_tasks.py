"""Runs the tasks of a stream on the rows of one DataFrame: those of large ranges on the executors, small ones here.

Spark runs a stage again whose shuffled rows were lost, and does not say so to its tasks. So none of them knows whether
it is the first execution of its work, and only first ones may share an insert. The rows of small ranges come to this
process instead, which runs each of their tasks once, and stores them by one insert as a worker of a job does.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ch_sink.errors import StreamFailed
from ch_sink.stream.run_task import OpenPorts, hold, run_task
from ch_sink.stream.tasks import RangeTask, Task, TaskResult, tried
from ch_sink.wiring.worker import ALL, BYTES, SMALL, Gathering, run_configured, run_group

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RESULT = "partition long, result binary"
_PART = "__ch_sink_part"
"""Column of equal values where rows go to one task of Spark."""

Batches = Iterator[pa.RecordBatch]
Opening = Callable[[RangeTask, Iterable[pa.RecordBatch]], AbstractContextManager[OpenPorts]]
"""Opens what a task works with, whose records are in these rows. Pickled, secrets included."""


@dataclass(frozen=True)
class FrameTasks:
    """See Execute. The DataFrame is read once for each round of a batch, and again if small ranges have large rows."""

    frame: "DataFrame"
    by: str
    """The column that holds the partition of a task."""
    order: Sequence[str]
    """The columns by which the rows of a partition are sorted."""
    rows: Mapping[int, int]
    """Partition → how many rows the DataFrame has of it."""
    config: str = field(repr=False)
    """JSON of the stream's Config, secrets included."""
    opening: Opening = field(repr=False)

    def __call__(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """See Execute. Waiting changes need no rows, and are released here."""
        ranges = {task.partition: task for task in tasks if isinstance(task, RangeTask)}
        done = self._run(ranges) if ranges else {}
        return [done[t.partition] if isinstance(t, RangeTask) else run_configured(self.config, t) for t in tasks]

    def _run(self, tasks: Mapping[int, RangeTask]) -> dict[int, TaskResult]:
        small = small_ones(tasks.values(), self.rows)
        done, rows = self._read(tasks, small)
        done |= self._here([tasks[p] for p in sorted(rows)], rows)
        if left := {p: task for p, task in tasks.items() if p not in done}:
            done |= self._read(left, frozenset())[0]
        return done

    def _read(
        self, tasks: Mapping[int, RangeTask], small: frozenset[int]
    ) -> tuple[dict[int, TaskResult], dict[int, bytes]]:
        """Run the tasks on the executors; returns their outcomes, and the rows of small ones within the byte limit."""
        # Those of all small ranges are in one task of Spark, which sees how much they are together.
        part = f"IF({self.by} IN ({_listed(small)}), -1, {self.by})" if small else self.by
        # Spark's mapInArrow cannot take a column whose name has a dot or a backtick.
        plain = [f"c{place}" for place in range(len(self.frame.columns))]
        rows = (
            self.frame.where(f"{self.by} IN ({_listed(tasks)})")
            .selectExpr("*", f"{part} AS {_PART}")
            .repartition(len(tasks) - len(small) + bool(small), _PART)
            .sortWithinPartitions(self.by, *self.order)
            .drop(_PART)
            .toDF(*plain)
            .mapInArrow(_runner(self, tasks, small, BYTES, self.frame.columns), _RESULT)
            .collect()
        )
        found = {int(row.partition): pickle.loads(bytes(row.result)) for row in rows}
        for partition in tasks.keys() - found.keys():
            raise changed_meanwhile(partition)
        came = {p: rows for p, rows in found.items() if isinstance(rows, bytes)}
        return {p: done for p, done in found.items() if done is not None and p not in came}, came

    def _here(self, tasks: Sequence[RangeTask], rows: Mapping[int, bytes]) -> dict[int, TaskResult]:
        """Run tasks in this process, each once, and store what they may share by one insert."""
        gathering = Gathering(len(tasks))

        def run(_config: str, task: Task) -> TaskResult:
            assert isinstance(task, RangeTask)
            batches = pa.ipc.open_stream(rows[task.partition]).read_all().to_batches()
            with self.opening(task, batches) as open_ports:
                planned = hold(task, open_ports)
            return gathering.add(planned)

        results = run_group([(self.config, task) for task in tasks], run)
        return {task.partition: done for task, done in zip(tasks, results, strict=True)}


def _listed(partitions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(partitions)))


def small_ones(tasks: Iterable[RangeTask], rows: Mapping[int, int]) -> frozenset[int]:
    """The partitions whose rows are few, and so many of them that all their rows are few as well."""
    left, found = ALL, []
    for task in sorted(tasks, key=lambda task: task.partition):
        count = rows[task.partition]
        if max(count, task.end - task.start) <= SMALL and count <= left:
            left -= count
            found.append(task.partition)
    return frozenset(found)


def _runner(
    given: FrameTasks, tasks: Mapping[int, RangeTask], small: frozenset[int], most: int, names: Sequence[str]
) -> Callable[[Batches], Batches]:
    """``most``: bytes of the rows of small ranges that are returned. ``names``: those of the columns."""
    work = {partition: pickle.dumps(task) for partition, task in tasks.items() if partition not in small}
    by, opening = given.by, given.opening

    def ch_sink_rows(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context, left = TaskContext.get(), most
        attempt = context.attemptNumber() if context is not None else 0
        named = (pa.RecordBatch.from_arrays(batch.columns, names=list(names)) for batch in batches)
        for partition, group in groupby(runs(named, by), key=lambda run: run[0]):
            own = (run for _, run in group)
            done: TaskResult | bytes | None
            if partition in small:
                done = sent(own, left)
                left -= len(done or b"")
            else:
                task = tried(pickle.loads(work[partition]), attempt)
                assert isinstance(task, RangeTask)
                with opening(task, own) as open_ports:
                    done = run_task(task, open_ports)
            yield pa.RecordBatch.from_pydict(
                {"partition": pa.array([partition], pa.int64()), "result": [pickle.dumps(done)]}
            )

    return ch_sink_rows


def sent(batches: Batches, most: int) -> bytes | None:
    """The rows as Arrow writes a stream; None if they have more bytes than this."""
    sink = pa.BufferOutputStream()
    writer: pa.ipc.RecordBatchStreamWriter | None = None
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size <= most:
            writer = writer or pa.ipc.new_stream(sink, batch.schema)
            writer.write_batch(batch)
    if size > most or writer is None:
        return None
    writer.close()
    return bytes(sink.getvalue())


def runs(batches: Batches, by: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches, cut where the value of a column changes, each with that value."""
    for batch in batches:
        partitions = batch.column(by).to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
        for start, end in pairwise(bounds):
            if start < end:
                yield int(partitions[start]), batch.slice(start, end - start)


def changed_meanwhile(partition: int) -> StreamFailed:
    """The error for a DataFrame that gives other rows when it is read again."""
    return StreamFailed(
        f"partition {partition}: the DataFrame returned other rows than when its offsets were read",
        hint="It is read more than once, so it must give the same rows each time: write it to a table first.",
    )
