"""The driver's part of one stream: ledger, states, barriers, waiting changes, consumer-group offsets."""

import logging
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ch_sink import errors
from ch_sink.clickhouse import ClickHouseLedger, ClickHouseSettings, Evolution, connect, detect, execute, max_version
from ch_sink.config import Config
from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.kafka import GroupOffsets, KafkaSettings, TopicOffsets
from ch_sink.model.topic import TopicState
from ch_sink.observe import StreamSummary
from ch_sink.pipeline.plan import Barrier
from ch_sink.pipeline.target import Target
from ch_sink.ports import BackwardStepSeen, FinishedRange, RangeIntent
from ch_sink.spark.source import read_ranges
from ch_sink.spark.task import StreamSettings, open_sink, run_ranges
from ch_sink.stream.messages import RangeResult, RangeTask, decode_result, encode
from ch_sink.stream.partition_states import States
from ch_sink.stream.schema_changes import Evolving
from ch_sink.table.letter_case import clashes
from ch_sink.table.model import TargetTable
from ch_sink.table.truncate import truncate_statement

__all__ = ["StreamDriver"]

log = logging.getLogger("ch_sink")

_EPOCH_SHIFT = 112


@dataclass
class StreamDriver:
    """One topic into one table. Made in the driver; `open` before anything else, `close` at the end."""

    config: Config
    spark: SparkSession
    on_batch: Callable[[StreamSummary], None] | None = None
    error: ChSinkError | None = None
    """What ended the stream: Spark carries only its text."""
    waiting: dict[int, int] = field(default_factory=dict)
    """Partition → records that wait for values of rows that changed their key."""
    _closing: ExitStack = field(default_factory=ExitStack)

    def open(self) -> None:
        """Reach both sides, read the target's facts, claim the stream.

        Raises:
            ChSinkError: what is missing or wrong, with the next step.
        """
        config = self.config
        self.began = time.monotonic()
        self.kafka = KafkaSettings(config.kafka.client())
        self.offsets = TopicOffsets(self.kafka)
        self._closing.callback(self.offsets.close)
        self.topic: TopicState = self.offsets.state(config.kafka.topic)
        self.client = connect(ClickHouseSettings(**config.clickhouse.connection()))
        self.table = detect(self.client, config.clickhouse.database, config.clickhouse.table, config.policy())
        self.ledger = ClickHouseLedger(
            self.client,
            config.state_database,
            config.tables.ledger,
            config.stream_name,
            config.clickhouse.cluster,
        )
        self.run_id = uuid.uuid4().hex[:12]
        self.ledger.claim(self.run_id)
        self._closing.callback(self.ledger.release)
        self._use(self._evolving().finish(self.table))
        self.group = GroupOffsets(self.kafka, config.consumer_group)
        self._closing.callback(self.group.close)
        self.states = States(self.ledger, self.topic.topic_id, len(self.topic.low), self._stored_epoch())
        self.cuts = self.ledger.cuts(self.topic.topic_id)
        self.summary = StreamSummary(config.stream_name, config.kafka.topic, self.table.qualified.replace("`", ""))
        for first, second in clashes(c.name for c in self.table.columns):
            log.warning("%s: columns %r and %r differ by letter case only", self.table.qualified, first, second)

    def close(self) -> None:
        """Give the stream back, as far as `open` came."""
        with suppress(ChSinkError):  # what ended the stream is the error to show
            self._closing.close()

    def start(self, once: bool) -> StreamingQuery:
        """Start the streaming query."""
        config = self.config
        ranges = read_ranges(
            self.spark,
            self.kafka,
            config.kafka.topic,
            starting_offsets=self._starting(),
            max_offsets=config.max_offsets_per_trigger,
            chunk_offsets=config.chunk_offsets,
            on_data_loss=config.on_data_loss,
            topic_recreated=config.topic_recreated,
        )
        writer = ranges.writeStream.foreachBatch(self._batch).option("checkpointLocation", config.checkpoint)
        writer = writer.queryName(config.stream_name)
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{config.trigger_interval} seconds").start()

    def _starting(self) -> str | dict[str, Any]:
        """Where a stream without a checkpoint begins."""
        if self.config.start != "ledger":
            return self.config.start
        for topic_id in self.ledger.topic_ids():
            progress = self.ledger.progress(topic_id)
            if progress:
                return {"topic_id": topic_id, "offsets": {str(p): o for p, o in progress.items()}}
            break
        return "earliest"

    def _stored_epoch(self) -> int | None:
        """The highest epoch that the table holds, None where it is empty or tells none."""
        if self.target.layout.kind != "wide" or self.target.system.version is None:
            return None
        top = max_version(self.client, self.table)
        return top >> _EPOCH_SHIFT if top else None

    def _evolving(self) -> Evolving:
        config = self.config
        evolution = Evolution(
            self.client,
            config.clickhouse.database,
            config.clickhouse.table,
            config.policy(),
            config.clickhouse.cluster,
            config.init.low_cardinality,
        )
        return Evolving(evolution, self.ledger)

    def _use(self, table: TargetTable) -> None:
        """Work on the table as it is now, here and in the tasks to come."""
        self.table, self.target = table, Target.of(table, self.config.policy())
        self.settings = StreamSettings(self.config.to_task_json(), table)
        self.shared = self.spark.sparkContext.broadcast(self.settings)

    def _batch(self, ranges: DataFrame, _batch_id: int) -> None:
        try:
            self._run_batch(ranges)
        except ChSinkError as error:
            # Spark carries only the text; the caller raises the error itself.
            self.error = error
            raise

    def _run_batch(self, ranges: DataFrame) -> None:
        rows = [row.asDict() for row in ranges.collect()]
        if not rows:
            return
        self._expect_topic(rows[0]["topic_id"], max(r["partition"] for r in rows) + 1)
        done: dict[int, int] = {}
        work = {r["partition"]: (r["start"], r["end"]) for r in rows}
        self.summary.figures.batches += 1
        self.summary.figures.counts["lost"] += sum(r["lost"] for r in rows)
        while work:
            results = self._round(work)
            work = {p: (done_to, work[p][1]) for p, done_to in results.items() if done_to < work[p][1]}
            done.update(results)
        high = {r["partition"]: r["high"] for r in rows if "high" in r}
        self.summary.lag = sum(max(0, h - done.get(p, h)) for p, h in high.items())
        self.drain(caught_up=self.summary.lag == 0)
        self.group.commit(self.config.kafka.topic, done)
        self.summary.figures.seconds = time.monotonic() - self.began
        if self.on_batch is not None:
            self.on_batch(self.summary)

    def _expect_topic(self, topic_id: str, partitions: int) -> None:
        if topic_id != self.topic.topic_id:
            self.topic = self.offsets.state(self.config.kafka.topic)
            self.states = States(self.ledger, topic_id, len(self.topic.low), None)
            self.cuts = self.ledger.cuts(topic_id)
        self.states.add_partitions(max(partitions, len(self.topic.low)))

    def _round(self, work: dict[int, tuple[int, int]]) -> dict[int, int]:
        """Run ranges in tasks, once; returns where each partition stands. Ends early at barriers."""
        config, topic_id = self.config, self.topic.topic_id
        intents = self.ledger.intents(
            [
                RangeIntent(config.kafka.topic, topic_id, p, start, end, config.chunk_offsets, config.chunk_bytes)
                for p, (start, end) in sorted(work.items())
            ]
        )
        tasks = [
            encode(
                RangeTask(
                    i.topic,
                    topic_id,
                    i.partition,
                    i.start,
                    i.end,
                    self.states.at(i.partition, i.start).to_json(),
                    i.attempt,
                    cuts=[c for c in self.cuts.get(i.partition, ()) if i.start < c < i.end],
                )
            )
            for i in intents
        ]
        began = time.time()
        context = self.spark.sparkContext
        found = context.parallelize(tasks, len(tasks)).mapPartitions(partial(run_ranges, self.shared)).collect()
        results = [decode_result(text) for text in found]
        barriers = [b for b in (r.get_barrier() for r in results) if b is not None]
        for barrier in sorted((b for b in barriers if b.kind == "truncate"), key=lambda b: b.floor):
            self._truncate(barrier)
        self._finish(results, began)
        for result in results:
            if result.failure is not None:
                raise _as_error(result)
        self._evolve([b for b in barriers if b.kind == "new_columns" and b.columns])
        return {r.partition: r.end for r in results}

    def _finish(self, results: list[RangeResult], began: float) -> None:
        # A failed range of a collapsing table goes on from its own progress, which a result would end.
        finished = [r for r in results if r.end > r.start and not (r.failure and self.target.collapsing)]
        self.ledger.results(
            [
                FinishedRange(
                    r.topic,
                    r.topic_id,
                    r.partition,
                    r.start,
                    r.end,
                    rows=r.rows,
                    deletes=r.counts.get("deletes", 0),
                    dead_letters=r.dead_letters,
                    counts={k: n for k, n in r.all_counts().items() if n > 0},
                    cuts=tuple(r.cuts),
                    state=r.state,
                    started=began,
                    finished=time.time(),
                    source_time=r.last_source_ts,
                )
                for r in finished
            ]
        )
        for r in finished:
            self.states.put(r.partition, r.end, r.state)
            for step in r.steps:
                log.warning("partition %d: %s", r.partition, step)
                self.ledger.record(
                    BackwardStepSeen(
                        r.topic_id,
                        r.partition,
                        step["offset"],
                        step=step["kind"],
                        source=step["source"],
                        commit=int(step["commit"]),
                        highest=int(step["highest"]),
                    )
                )
            figures = self.summary.figures
            figures.add(
                records=r.records,
                rows=r.rows,
                dead_letters=r.dead_letters,
                counts=r.all_counts(),
                source_time=r.last_source_ts,
            )
        # A partition that had nothing to read keeps what waits there.
        self.waiting |= {r.partition: r.waiting for r in results if r.failure is None}
        self.waiting = {p: n for p, n in self.waiting.items() if n}

    def _truncate(self, barrier: Barrier) -> None:
        """Delete what a truncate deletes, before the rest of the ranges is run."""
        statement = truncate_statement(self.table, barrier.version, self.target.system.version)
        execute(self.client, [statement])
        self.states.truncated(barrier.floor)

    def _evolve(self, barriers: list[Barrier]) -> None:
        """Give the table the columns that the ranges ended at. What was done before is in the ledger by now.

        The offsets at which they ended are there too, told by the tasks: a second attempt ends its chunks alike.
        """
        if barriers:
            self._use(self._evolving().carry_out(self.table, barriers))
            self.cuts = self.ledger.cuts(self.topic.topic_id)

    def drain(self, *, caught_up: bool = False) -> None:
        """Apply changes that waited for values which are there by now; what still waits is shown.

        The table may have lost columns since they began to wait, or have been told to ignore them until now.
        Only a stream that has caught up gives changes up: after an outage, or far behind on another partition, what
        they wait for is still to be read.
        """
        left = dict(self.waiting)
        before, lacking = -1, list[Barrier]()
        while left and (lacking or sum(left.values()) != before):
            before, lacking = sum(left.values()), []
            for p in sorted(left):
                task = RangeTask(self.config.kafka.topic, self.topic.topic_id, p, 0, 0, "")
                sink, _ = open_sink(self.settings, task, caught_up=caught_up)
                released = sink.retry_pending(self.states.waiting(p))
                if released is not None:
                    self.states.released(p, released.state)
                    figures = self.summary.figures
                    figures.add(rows=released.rows, dead_letters=released.dead_letters, counts=released.counts)
                left[p] = sink.waiting
                lacking += [sink.lacking] if sink.lacking is not None else []
            self._evolve(lacking)
            left = {p: n for p, n in left.items() if n}
        self.waiting = left
        self.summary.figures.waiting = sum(left.values())

    def open_waiting(self) -> None:
        """Remember the partitions in which changes wait since an earlier run."""
        self.waiting = {}
        for p in self.topic.low:
            task = RangeTask(self.config.kafka.topic, self.topic.topic_id, p, 0, 0, "")
            sink, _ = open_sink(self.settings, task)
            if sink.waiting:
                self.waiting[p] = sink.waiting


def _as_error(result: RangeResult) -> ChSinkError:
    failure = result.failure
    assert failure is not None
    kind = getattr(errors, failure.kind, None)
    where = f"partition {result.partition}, from offset {result.end}: "
    if isinstance(kind, type) and issubclass(kind, ChSinkError):
        error = kind(failure.text, hint=failure.hint)
    else:
        error = StreamFailed(f"{where}{failure.kind}: {failure.text}", hint="run again with --debug for the trace")
    error.trace = failure.trace  # type: ignore[attr-defined]
    return error
