"""Rows of Spark's Kafka source, or of a table that keeps them, as the records of tasks."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ch_sink.errors import ConfigError, StreamFailed
from ch_sink.model.change import Headers, Records
from ch_sink.pipeline.chunks import Chunk, cut
from ch_sink.spark.frame_stream import Span
from ch_sink.stream.run_task import TaskPorts, run_task
from ch_sink.stream.tasks import RangeTask, Task, TaskResult, tried
from ch_sink.wiring.tasks import batch_decoder, concerned_by, task_ports
from ch_sink.wiring.worker import kept_stream, run_configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = {
    "key": ("binary",),
    "value": ("binary",),
    "topic": ("string",),
    "partition": ("int", "bigint"),
    "offset": ("bigint",),
    "timestamp": ("timestamp",),
}
_HEADERS = "array<struct<key:string,value:binary>>"
_RESULT = "partition long, result binary"
_SOURCE = "Spark's Kafka source gives them; select them from a table that keeps them."

Batches = Iterator[pa.RecordBatch]


def expect_kafka_columns(frame: "DataFrame") -> None:
    """Raises ConfigError, which names the first column that is missing or has another type."""
    types = dict(frame.dtypes)
    if "offset" not in types:
        raise ConfigError(
            "the DataFrame has no column offset, so it is unknown which records were applied before",
            hint=f"It needs key, value, topic, partition, offset and timestamp. {_SOURCE} Rows that are changes "
            "already go to ch_sink.spark.changes.",
        )
    for name, kinds in _COLUMNS.items():
        if name not in types:
            raise ConfigError(
                f"the DataFrame has no column {name}", hint=f"{', '.join(_COLUMNS)} are needed. {_SOURCE}"
            )
        if types[name] not in kinds:
            raise ConfigError(
                f"the DataFrame's column {name} is {types[name]}, not {kinds[0]}",
                hint=f"Leave it as Spark's Kafka source gives it, or cast it to {kinds[0]}.",
            )
    if types.get("headers", _HEADERS) != _HEADERS:
        raise ConfigError(
            f"the DataFrame's column headers is {types['headers']}, not {_HEADERS}",
            hint="Read it with .option('includeHeaders', 'true'), or leave it out.",
        )


def spans_of(frame: "DataFrame", topic: str) -> dict[int, Span]:
    """Which offsets of which partition the DataFrame holds.

    Raises ConfigError for rows of another topic and for rows without partition or offset.
    """
    rows = (
        frame.selectExpr(
            "topic", "partition", "offset AS first", "offset AS last", "int(offset IS NULL) AS lacking", "1 AS n"
        )
        .groupBy("topic", "partition")
        .agg({"first": "min", "last": "max", "lacking": "max", "n": "sum"})
        .collect()
    )
    spans: dict[int, Span] = {}
    for row in rows:
        found = row.asDict()
        if found["topic"] != topic:
            raise ConfigError(
                f"the DataFrame has rows of topic {found['topic']}, and the configuration is for {topic}",
                hint=f"A stream has one topic: filter the rows by topic = '{topic}', and give each other topic a "
                "configuration of its own.",
            )
        if found["partition"] is None or found["max(lacking)"]:
            raise ConfigError(
                "the DataFrame has rows whose partition or offset is null",
                hint="Both identify a Kafka record: filter such rows out, or find out what produced them.",
            )
        spans[int(found["partition"])] = Span(
            int(found["min(first)"]), int(found["max(last)"]) + 1, int(found["sum(n)"])
        )
    return spans


@dataclass(frozen=True)
class KafkaRows:
    """Runs the tasks of a stream on the rows of one DataFrame, which is read once for each round of a batch."""

    frame: "DataFrame"
    spans: Mapping[int, Span]
    config: str = field(repr=False)
    """JSON of the stream's Config, secrets included."""

    def __call__(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """See Execute. Waiting changes need no rows, and are released here."""
        mine = {task.partition: task for task in tasks if isinstance(task, RangeTask)}
        done = self._run(mine) if mine else {}
        return [done[t.partition] if isinstance(t, RangeTask) else run_configured(self.config, t) for t in tasks]

    def _run(self, tasks: Mapping[int, RangeTask]) -> dict[int, TaskResult]:
        names = ["partition", "offset", "timestamp", "key", "value"]
        names += ["headers"] if "headers" in self.frame.columns else []
        rows = (
            self.frame.where(f"partition IN ({', '.join(map(str, tasks))})")
            .select(*names)
            .repartition(len(tasks), "partition")
            .sortWithinPartitions("partition", "offset")
            .mapInArrow(_runner(self.config, tasks, {p: self.spans[p].rows for p in tasks}), _RESULT)
            .collect()
        )
        found: dict[int, TaskResult] = {int(row.partition): pickle.loads(bytes(row.result)) for row in rows}
        for partition in tasks.keys() - found.keys():
            raise changed_meanwhile(partition)
        return found


def _runner(config: str, tasks: Mapping[int, RangeTask], rows: Mapping[int, int]) -> Callable[[Batches], Batches]:
    work = {partition: pickle.dumps(task) for partition, task in tasks.items()}

    def ch_sink_rows(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        for partition, group in groupby(runs(batches, "partition"), key=lambda run: run[0]):
            task = tried(pickle.loads(work[partition]), attempt)
            assert isinstance(task, RangeTask)
            done = _run(config, task, _Source(task, (run for _, run in group), rows[partition]))
            yield pa.RecordBatch.from_pydict(
                {"partition": pa.array([partition], pa.int64()), "result": [pickle.dumps(done)]}
            )

    return ch_sink_rows


def runs(batches: Batches, by: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches, cut where the value of a column changes, each with that value."""
    for batch in batches:
        partitions = batch.column(by).to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
        for start, end in pairwise(bounds):
            if start < end:
                yield int(partitions[start]), batch.slice(start, end - start)


def _run(config: str, task: RangeTask, source: "_Source") -> TaskResult:
    kept = kept_stream(config)
    concerned = concerned_by(kept.config)

    with ExitStack() as stack:

        def chunks(first: int) -> Iterator[Chunk]:
            size, most = task.chunk_offsets, task.chunk_bytes
            yield from cut(map(concerned, source.records(first)), first, task.end, chunk_offsets=size, chunk_bytes=most)

        def open_ports(wanted: Task) -> TaskPorts:
            make = stack.enter_context(kept.decoders(lambda table, before: batch_decoder(kept.config, table, before)))
            return replace(task_ports(kept.config, wanted, make), chunks=chunks)

        return run_task(task, open_ports)


@dataclass(slots=True)
class _Source:
    """The rows of one partition, by offset. A row that is there twice is one record."""

    task: RangeTask
    batches: Batches
    rows: int
    """How many there were when the batch was planned."""

    def records(self, first: int) -> Iterator[Records]:
        """Those of the task from this offset on. Raises StreamFailed if the DataFrame has other rows than before."""
        count, last = 0, -1
        for batch in self.batches:
            count += batch.num_rows
            offsets = batch.column("offset").to_numpy()
            fresh = np.flatnonzero(
                (offsets >= first) & (offsets < self.task.end) & (np.diff(offsets, prepend=last) > 0)
            )
            last = int(offsets[-1])
            if len(fresh):
                yield _records(self.task, batch if len(fresh) == len(offsets) else batch.take(pa.array(fresh)))
        if count != self.rows:
            raise changed_meanwhile(self.task.partition)


def changed_meanwhile(partition: int) -> StreamFailed:
    """The error for a DataFrame that gives other rows when it is read again."""
    return StreamFailed(
        f"partition {partition}: the DataFrame returned other rows than when its offsets were read",
        hint="It is read more than once, so it must give the same rows each time: write it to a table first.",
    )


def _records(task: RangeTask, batch: pa.RecordBatch) -> Records:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    times = columns["timestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).fill_null(-1)
    headers = columns.get("headers")
    return Records(
        task.topic,
        task.partition,
        columns["offset"].to_numpy(),
        times.to_numpy(),
        columns["key"].to_pylist(),
        columns["value"].to_pylist(),
        None if headers is None or headers.null_count == len(headers) else _headers(headers),
    )


def _headers(column: pa.Array) -> list[Headers | None]:
    return [
        None if entries is None else [(entry["key"] or "", entry["value"]) for entry in entries]
        for entries in column.to_pylist()
    ]
