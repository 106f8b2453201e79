"""``format("ch_sink")``: rows that are changes, written by Spark's tasks without a function of one's own.

A writer of Spark's Python data sources sees its rows once, in whatever task they are, and has no way back to the driver
before all tasks end. So it takes what each task can decide alone: changes whose versions they state. What needs an
order of tasks (events of a topic, truncates, new columns, values that are kept) is refused, with what does it.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, WriterCommitMessage

from ch_sink.config import Config, load_rows
from ch_sink.decode.stated_rows import NUMBER, OP, RowDecoder
from ch_sink.discovery.wiring import client_of, ledger_of
from ch_sink.errors import ConfigError, LedgerConflict
from ch_sink.model.counts import Counts, total
from ch_sink.order import State
from ch_sink.pipeline.chunks import Chunk
from ch_sink.ports import FinishedRange, RangeIntent
from ch_sink.spark.change_feed import FEED, OPS, TOPIC, expect_ordered
from ch_sink.spark.change_rows import expect_served, expect_stated_versions, newer, numbered
from ch_sink.spark.foreach_batch import await_resume, prepare, with_hints
from ch_sink.stream.claims import live
from ch_sink.stream.run_task import TaskPorts, run_task
from ch_sink.stream.tasks import RangeDone, RangeTask, Task
from ch_sink.table.model import TargetTable
from ch_sink.wiring.streams import SharedTopics, stream_ports
from ch_sink.wiring.tasks import task_ports

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_OWN = ("config", "keys", "op", "sequence_by", "except_column_list")
_SPARKS = ("checkpointlocation", "path")
_ELSEWHERE = ("apply_as_deletes", "ignore_null_updates_column_list")
_END = 1 << 60
"""The end of a task's range: how many rows it gets is seen when they end."""


class DefaultSource(DataSource):
    """Register it with ``spark.dataSource.register``; an installed wheel is found by itself."""

    @classmethod
    def name(cls) -> str:
        """The name that ``format`` takes."""
        return "ch_sink"

    def writer(self, schema: "StructType", overwrite: bool) -> Any:
        """A batch writer. Raises ConfigError."""
        return _BatchWriter(_plan(self.options, schema, overwrite))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> Any:  # noqa: N802
        """A streaming writer. Raises ConfigError."""
        return _StreamWriter(replace(_plan(self.options, schema, overwrite), streams=True))


@dataclass(frozen=True)
class _Plan:
    """The data that the tasks of a write need."""

    config: str = field(repr=False)
    table: TargetTable
    keys: tuple[str, ...]
    sequence_by: str
    op: str | None
    left_out: frozenset[str]
    kinds: Mapping[str, str]
    streams: bool = False
    """Whether micro-batches are written by the same plan."""
    write: str = field(default_factory=lambda: uuid.uuid4().hex)
    """A name of its own."""

    def letters(self, context: TaskContext | None) -> str:
        """The identity in dead letters, in place of a topic's: rows of each write are counted from 0."""
        if not self.streams or context is None:
            return f"{TOPIC} {self.write}"
        query, batch = map(context.getLocalProperty, ("sql.streaming.queryId", "streaming.sql.batchId"))
        return f"{TOPIC} {query} {batch}"


@dataclass
class _Written(WriterCommitMessage):
    """The result of one task."""

    counts: Counts
    count: int


def _plan(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> _Plan:
    """Raises ConfigError for wrong options, columns and tables, LedgerConflict if another process has the stream."""
    with with_hints():
        given = {name.lower(): value for name, value in options.items()}
        for name in _ELSEWHERE:
            if name in given:
                raise ConfigError(
                    f"format('ch_sink') has no option {name}", hint="Use foreachBatch with ch_sink.spark.changes."
                )
        kinds = {f.name: f.dataType.simpleString() for f in schema.fields}
        if "keys" not in given or "sequence_by" not in given:
            raise ConfigError(
                "format('ch_sink') writes rows that are changes, and needs the options keys and sequence_by",
                hint="Events of a topic go to foreachBatch with ch_sink.spark.sink.",
            )
        if overwrite:
            raise ConfigError("format('ch_sink') does not replace tables", hint="Use mode('append').")
        settings = [f"{k}={v}" for k, v in given.items() if k not in (*_OWN, *_SPARKS)]
        config = load_rows(given.get("config") or given.get("path") or {}, settings, TOPIC)
        if config.evolve == "add_columns":
            raise ConfigError(
                "a writer of Spark cannot add columns to the table (evolve: add_columns)",
                hint="Use foreachBatch with ch_sink.spark.changes.",
            )
        if config.errors.max is not None or config.errors.max_rate is not None:
            raise ConfigError(
                "a writer of Spark cannot count the dead letters of its tasks before they are stored (errors)",
                hint="Use foreachBatch with ch_sink.spark.changes.",
            )
        keys = tuple(key.strip() for key in given["keys"].split(","))
        left_out = {name.strip() for name in given.get("except_column_list", "").split(",")} - {""}
        plan = _Plan(
            config.to_task_json(),
            _table(config),
            keys,
            given["sequence_by"],
            given.get("op"),
            frozenset({*left_out, *FEED, given.get("op", "")} - set(keys)),
            kinds,
        )
        for name in (*keys, plan.sequence_by, *([plan.op] if plan.op else []), *left_out):
            if name not in kinds:
                raise ConfigError(
                    f"the DataFrame has no column {name}; it has {', '.join(kinds)}",
                    hint="Name columns of the DataFrame in keys, sequence_by, op and except_column_list.",
                )
        expect_ordered(plan.sequence_by, kinds[plan.sequence_by])
        expect_served(plan.table, keys, kinds)
        return plan


def _table(config: Config) -> TargetTable:
    """The table as it is now, whose stream nobody else may have."""
    prepare(config)
    await_resume(config)
    owner = ledger_of(config, client_of(config)).owner()
    if owner is not None and live(config.stream_name, owner):
        raise LedgerConflict(
            f"stream {config.stream_name!r} is owned by process {owner.pid} on this host (run {owner.run_id})",
            hint="Stop that query first, or give this stream another name.",
        )
    admin = stream_ports(config, SharedTopics()).table
    table = admin.detect()
    expect_stated_versions(table, admin.highest_version(table))
    return table


def _write(plan: _Plan, batches: Iterator[pa.RecordBatch]) -> _Written:
    """Apply the rows of one task. Raises ChSinkError."""
    context = TaskContext.get()
    config = Config.from_task_json(plan.config)
    task = RangeTask(
        config.stream_name,
        TOPIC,
        TOPIC,
        context.partitionId() if context is not None else 0,
        plan.table,
        0,
        _END,
        State(),
    )
    counts: list[int] = []

    def decoder(table: TargetTable) -> RowDecoder:
        return RowDecoder(table, plan.keys, kinds=plan.kinds, values=config.policy().values)

    # A writer does not see whether its rows came before, in whatever task.
    left = newer(config, task, decoder(plan.table))

    def chunks(first: int) -> Iterator[Chunk]:
        for chunk in numbered(task, (_coded(plan, batch) for batch in batches), first, plan.keys):
            counts.append(chunk.end)
            yield left.of(chunk)

    def open_ports(wanted: Task) -> TaskPorts:
        ports = task_ports(config, wanted, lambda table, _before: decoder(table), letters=plan.letters(context))
        return replace(ports, chunks=chunks)

    with with_hints():
        done = run_task(task, open_ports)
        assert isinstance(done, RangeDone)
        if done.failure is not None:
            raise done.failure
    return _Written(done.counts, max(counts, default=0))


def _coded(plan: _Plan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their numbers and operations. Raises ConfigError for rows that say nothing."""
    table = pa.Table.from_batches([batch])
    number = table.column(plan.sequence_by)
    if pa.types.is_timestamp(number.type):
        number = number.cast(pa.timestamp("us", number.type.tz))
    elif pa.types.is_date(number.type):
        number = number.cast(pa.int32())
    number = number.cast(pa.int64())
    if plan.op is None:
        code = pa.array(np.full(len(table), int(OPS["update_postimage"]), dtype=np.int32))
    else:
        words = pc.utf8_lower(table.column(plan.op))
        code = pc.index_in(words, pa.array(list(OPS)))
        code = pc.take(pa.array([int(op) for op in OPS.values()], pa.int32()), code)
    for what, column in (("op", code), ("sequence_by", number)):
        if column.null_count:
            name = plan.op if what == "op" else plan.sequence_by
            raise ConfigError(
                f"{what}: column {name} is null or has an unknown value in {column.null_count} rows",
                hint="Leave these rows out of the DataFrame, or correct them.",
            )
    kept = [name for name in table.column_names if name not in plan.left_out]
    coded = table.select(kept).append_column(NUMBER, number).append_column(OP, code)
    order = pc.sort_indices(coded, [(NUMBER, "ascending"), (OP, "ascending")])
    return coded.take(order).combine_chunks().to_batches()[0] if len(coded) else batch


def _record(plan: _Plan, messages: list[Any]) -> None:
    """Let the ledger say what was done. Raises ChSinkError."""
    done = [message for message in messages if message is not None and message.count]
    if not done:
        return
    config = Config.from_task_json(plan.config)
    ledger = ledger_of(config, client_of(config))
    ledger.claim("writer")
    try:
        start = ledger.progress(TOPIC).get(0, 0)
        end = start + sum(message.count for message in done)
        ledger.intents([RangeIntent(TOPIC, TOPIC, 0, start, end)])
        # What `changes` knows of its first bucket stays: rows of a writer are in no order.
        state = ledger.states_at(TOPIC, {0: start}).get(0) or State().to_json()
        counts = total(message.counts for message in done)
        ledger.results([FinishedRange(TOPIC, TOPIC, 0, start, end, counts, state)])
    finally:
        ledger.release()


class _Writer:
    def __init__(self, plan: _Plan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Called in a task of Spark."""
        return _write(self.plan, iterator)


class _BatchWriter(_Writer, datasource.DataSourceArrowWriter):
    def commit(self, messages: list[Any]) -> None:
        _record(self.plan, messages)


class _StreamWriter(_Writer, getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)):  # type: ignore[misc]
    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        del batchId
        _record(self.plan, messages)
