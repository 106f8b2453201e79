"""Rows of Spark's Kafka source, or of a table that keeps them, as the records of tasks."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ch_sink.errors import ConfigError
from ch_sink.model.change import Headers, Records
from ch_sink.pipeline.chunks import Chunk, cut
from ch_sink.spark.frame_stream import Span
from ch_sink.spark.frame_tasks import FrameTasks, changed_meanwhile
from ch_sink.stream.run_task import OpenPorts, TaskPorts
from ch_sink.stream.tasks import RangeTask, Task
from ch_sink.wiring.tasks import batch_decoder, concerned_by, task_ports
from ch_sink.wiring.worker import kept_stream

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
_SOURCE = "Spark's Kafka source gives them; select them from a table that keeps them."


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
        frame.groupBy("topic", "partition", "offset")
        .count()
        .selectExpr(
            *("topic", "partition", "offset AS first", "offset AS last", "int(offset IS NULL) AS lacking"),
            *("count AS n", "count - 1 AS more"),
        )
        .groupBy("topic", "partition")
        .agg({"first": "min", "last": "max", "lacking": "max", "n": "sum", "more": "sum"})
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
        p, end = int(found["partition"]), int(found["max(last)"]) + 1
        first, n, more = int(found["min(first)"]), int(found["sum(n)"]), int(found["sum(more)"])
        spans[p] = Span(first, end, n, more, partial(_part, frame, p, end))
    return spans


def _part(frame: "DataFrame", partition: int, end: int, offset: int) -> Span:
    """The DataFrame's records of a partition from an offset on, each offset once."""
    there = frame.where(f"partition = {partition} AND offset >= {offset}")
    (row,) = there.selectExpr("min(offset) AS first", "count(DISTINCT offset) AS n").collect()
    found = row.asDict()
    return Span(int(found["first"]), end, int(found["n"]))


def kafka_rows(frame: "DataFrame", spans: Mapping[int, Span], config: str) -> FrameTasks:
    """Runs tasks on the rows of one DataFrame. ``config``: JSON of the stream's Config, secrets included."""
    names = ["partition", "offset", "timestamp", "key", "value"]
    names += ["headers"] if "headers" in frame.columns else []
    rows = {partition: span.rows for partition, span in spans.items()}
    return FrameTasks(frame.select(*names), "partition", ("offset",), rows, config, _Opening(config, rows))


@dataclass(frozen=True)
class _Opening:
    """See `ch_sink.spark.frame_tasks.Opening`."""

    config: str = field(repr=False)
    rows: Mapping[int, int]

    @contextmanager
    def __call__(self, task: RangeTask, batches: Iterable[pa.RecordBatch]) -> Iterator[OpenPorts]:
        kept, source = kept_stream(self.config), _Source(task, batches, self.rows[task.partition])
        concerned = concerned_by(kept.config, task.table)

        def chunks(first: int) -> Iterator[Chunk]:
            size, most = task.chunk_offsets, task.chunk_bytes
            yield from cut(map(concerned, source.records(first)), first, task.end, chunk_offsets=size, chunk_bytes=most)

        with ExitStack() as stack:

            def open_ports(wanted: Task) -> TaskPorts:
                make = stack.enter_context(
                    kept.decoders(lambda table, before: batch_decoder(kept.config, table, before))
                )
                return replace(task_ports(kept.config, wanted, make), chunks=chunks)

            yield open_ports


@dataclass(slots=True)
class _Source:
    """The rows of one partition, by offset. A row that is there twice is one record."""

    task: RangeTask
    batches: Iterable[pa.RecordBatch]
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
