"""One stream across batches: what is claimed, intended, run, recorded and committed, and in which order.

A batch runs in rounds. Each round records its intents, hands the executor one task per range, and records the results.
If a range ends early because the table must change first (a truncate, new columns), the coordinator changes the table,
and the next round continues from there. The order of these writes makes a kill at any point harmless:

    intents ─▶ tasks ─▶ truncate, its floor ─▶ results ─▶ new columns ─▶ … ─▶ release waiting changes ─▶ group offsets

The coordinator knows neither Spark, HTTP nor Kafka's client: it works on ports and an executor.
"""

import logging
import sys
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ch_sink.errors import ChSinkError, ClickHouseError, DataLoss
from ch_sink.model.policy import Policy
from ch_sink.model.topic import TopicState
from ch_sink.observe import StreamSummary
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.partition_sink import Changed
from ch_sink.pipeline.target import Target
from ch_sink.pipeline.truncate import expect_one_source
from ch_sink.ports import (
    BackwardStepSeen,
    Claim,
    FinishedRange,
    RangeIntent,
)
from ch_sink.stream.added_partitions import AddedPartitions
from ch_sink.stream.batch_plan import BatchPlanner
from ch_sink.stream.claims import abandon, displaced, taken_since
from ch_sink.stream.error_limits import ErrorLimits, ErrorWatch
from ch_sink.stream.fingerprint import fingerprint, of_range, same_chunks
from ch_sink.stream.offset_ranges import Choices, OffsetRange
from ch_sink.stream.partition_states import States
from ch_sink.stream.ports import StreamPorts
from ch_sink.stream.rollback import ahead, doubling, expect_complete, may_double
from ch_sink.stream.rounds import Rounds, run_one
from ch_sink.stream.schema_changes import SchemaChanges
from ch_sink.stream.tasks import Execute, RangeDone, RangeTask, ReleaseDone, ReleaseTask, Task
from ch_sink.stream.writes import Intend, Record, Write
from ch_sink.table.fill_note import expect_entered
from ch_sink.table.letter_case import clashes
from ch_sink.table.model import TargetTable

__all__ = ["Coordinator", "StreamSettings"]

log = logging.getLogger("ch_sink")

_EPOCH_SHIFT = 112


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The part of a stream's configuration that the coordinator needs."""

    name: str
    topic: str
    policy: Policy
    chunk_offsets: int = 50_000
    chunk_bytes: int = 64 << 20
    start: str | Mapping[str, Any] = "earliest"
    """Where a stream begins of whose topic the ledger knows nothing."""
    on_data_loss: Literal["fail", "continue"] = "fail"
    topic_recreated: Literal["fail", "restart"] = "fail"
    errors: ErrorLimits = field(default_factory=ErrorLimits)
    source_table: str = ""
    """The only source table whose records are taken, of a topic with several; empty for all."""
    ends_vary: bool = False
    """A range that was begun may be read again with another end, as the batches of a DataFrame say."""


class Coordinator:
    """One topic into one table. Call `open` first and `close` at the end."""

    def __init__(
        self,
        settings: StreamSettings,
        ports: StreamPorts,
        on_batch: Callable[[StreamSummary], None] | None = None,
    ) -> None:
        """``on_batch`` receives the stream's figures after each batch."""
        self.settings, self.ports, self.on_batch = settings, ports, on_batch
        self.waiting: dict[int, int] = {}
        """Partition → number of changes that wait for the values of a row that changed its key."""
        self.summary = StreamSummary(settings.name, settings.topic, "")
        self.run_id = uuid.uuid4().hex[:12]
        self._claim: Claim | None = None
        choices = Choices(settings.on_data_loss, settings.topic_recreated, settings.chunk_offsets)
        self._errors = ErrorWatch(settings.errors, lambda: ports.dead_letters(self.topic.topic_id))
        self._gone: dict[int, int] = {}
        """Where records were lost in the last batch, by partition."""
        self._planner = BatchPlanner(
            ports.ledger,
            settings.start,
            choices,
            lambda partitions: ports.group.last_committed(settings.topic, partitions),
        )
        self._added = AddedPartitions()
        self._closing = ExitStack()

    @property
    def claim(self) -> Claim | None:
        """The claim under which it works, None before it has one."""
        return self._claim

    def open(self, before: Claim | None = None) -> None:
        """Inspect the topic and the table, claim the stream, and find where it left off.

        Args:
            before: the job's last claim, if it had the stream already: a job that has taken it since is not displaced.

        Raises:
            ChSinkError: something is missing or wrong; its hint gives the next step.
        """
        self._began = time.monotonic()
        ledger = self.ports.ledger
        self.topic: TopicState = self.ports.topics.state(self.settings.topic)
        self._errors.expect_few()
        table = self.ports.table.detect()
        if before is not None and taken_since(self.settings.name, before, owner := ledger.owner()):
            raise displaced(self.settings.name, owner)
        try:
            self._claim = ledger.claim(self.run_id)
        except BaseException:
            abandon(self.settings.name, self.run_id)  # else the next attempt takes it for another job's
            raise
        self._closing.callback(ledger.release)
        expect_entered(table, ledger)
        self._schema_changes = SchemaChanges(self.ports.table, ledger)
        # Of this life: a round that ends because columns are missing has stored nothing behind that end.
        self._used: set[str] = set()
        self._use(self._schema_changes.finish(table))
        self.states = States(ledger, self.topic.topic_id, len(self.topic.low), self._stored_epoch())
        self._expect_one_id_kind()
        self._cuts = ledger.cuts(self.topic.topic_id)
        self._look_at_group()
        expect_complete(
            self.settings.name, ledger, self.topic.topic_id, len(self.topic.low), self.target, self._stored_version
        )
        self._reached = ledger.progress(self.topic.topic_id)
        self.summary.table = self.table.qualified.replace("`", "")
        for first, second in clashes(c.name for c in self.table.columns):
            log.warning("%s: columns %r and %r differ by letter case only", self.table.qualified, first, second)
        self._look_for_waiting()

    def _look_at_group(self) -> None:
        """See whether the consumer group is ahead of the ledger's ends: the ledger was restored then."""
        ledger, topic_id = self.ports.ledger, self.topic.topic_id
        known = ledger.topic_ids()
        if known[:1] not in ([], [topic_id]):
            return
        ends = {t.partition: t.next_offset for t in ledger.totals() if t.topic_id == topic_id}
        name, topic, partitions = self.settings.name, self.settings.topic, sorted(self.topic.low)
        # Of a topic that was recreated, the group's offsets may be those of the former one.
        anew = len(known) > 1
        if not anew and may_double(ledger, topic_id, len(partitions), self.target, self._stored_version):
            if behind := ahead(self.ports.group.last_committed(topic, partitions), ends):
                ledger.check_claim()  # its successor's commits say nothing about ClickHouse
                raise doubling(name, behind)
            return

        def notice(committed: Mapping[int, int]) -> None:
            if behind := ahead(committed, ends):
                log.warning("%s: ClickHouse was taken back, and is read again: %s", name, behind)

        self.ports.group.before_commit(topic, partitions, notice)

    def _look_for_waiting(self) -> None:
        """See which changes wait, of this topic and of former ones."""
        open_ones, topic_id = self.ports.pending.places(), self.topic.topic_id
        self.waiting = {p: n for (t, p), n in open_ones.items() if t == topic_id and n and p in self.topic.low}
        self._former = [place for place, n in open_ones.items() if place[0] != topic_id and n]
        # Only tasks of this claim add to them from now on, and say so.
        self._settled = {p for p in self.topic.low if (topic_id, p) not in open_ones}

    def close(self) -> None:
        """Release what `open` took."""
        with suppress(ChSinkError):  # what ended the stream is the error to show
            self._closing.close()

    def plan(
        self, state: TopicState, limit: int | None = None, ceiling: Mapping[int, int] | None = None
    ) -> list[OffsetRange]:
        """What the next batch reads, for `batch`; empty if there is nothing. Raises as `BatchPlanner.plan` does.

        Args:
            state: the topic now.
            limit: how many offsets the batch may hold.
            ceiling: offsets beyond which nothing new is read, by partition; partitions without one wait.
        """
        self._planner.expect_topic(state)
        self._expect_topic(state.topic_id)
        return self._planner.plan(state, self.states, limit, self._with_added_partitions(state, ceiling))

    def progress(self) -> dict[str, Any] | None:
        """Where the stream continues according to its ledger, as starting offsets; None if it has read nothing."""
        for topic_id in self.ports.ledger.topic_ids()[:1]:
            reached = self.ports.ledger.progress(topic_id)
            if reached:
                return {"topic_id": topic_id, "offsets": {str(p): offset for p, offset in reached.items()}}
        return None

    def run_batch(self, ranges: Sequence[OffsetRange], execute: Execute) -> None:
        """Run one batch of this stream alone. Raises the stream's ChSinkError, or whatever the executor raises."""
        run_one(self.batch(ranges), execute)

    def run_release(self, execute: Execute) -> None:
        """Apply changes that have waited since an earlier run. Raises as `run_batch` does."""
        run_one(self.release(), execute)

    def batch(self, ranges: Sequence[OffsetRange]) -> Rounds:
        """The rounds of one batch. `plan` says what to read after one that ended early."""
        if not ranges:
            return
        self._expect_topic(ranges[0].topic_id)
        self.states.add_partitions(max(r.partition for r in ranges) + 1)
        before, left = self._planner.begin(), self._planner.lag({r.partition: r.end for r in ranges})
        limits = {r.partition: (r.chunk_offsets, r.chunk_bytes) for r in ranges if r.chunk_offsets}
        figures, batch_began = self.summary.figures, time.monotonic()
        earlier = figures.records, figures.dead_letters
        figures.batches += 1
        figures.counts["lost"] += sum(r.lost for r in ranges)
        work = {r.partition: (r.start, r.end) for r in ranges}
        reached: dict[int, int] = {}
        gone: dict[int, int] = {}
        while work:
            done = yield from self._round(work, limits, gone)
            reached |= done
            work = {p: (done[p], end) for p, (_, end) in work.items() if done[p] < end and p not in gone}
        self._gone = gone
        self.summary.lag = left + sum(max(0, r.high - reached[r.partition]) for r in ranges)
        yield from self.release(caught_up=self.summary.lag == 0)
        self._planner.finish(None if gone else before, reached)
        self.ports.group.commit(self.settings.topic, reached)
        self._fold()
        figures.seconds = time.monotonic() - self._began
        self.summary.batch_seconds = time.monotonic() - batch_began
        self.summary.offsets |= reached
        if self.on_batch is not None:
            self.on_batch(self.summary)
        self._errors.add(figures.records - earlier[0], figures.dead_letters - earlier[1])

    def _fold(self) -> None:
        """Keep the ledger short. What a server refuses now is folded after a later batch."""
        try:
            self.ports.ledger.fold()
        except ClickHouseError as error:
            log.warning("%s: old entries of the ledger were not folded: %s", self.settings.name, error)

    def release(self, *, caught_up: bool = False) -> Rounds:
        """Apply waiting changes whose values have arrived.

        The table may have lost columns since they began to wait, or may have ignored them until now. Only a stream
        that has caught up gives changes up: after an outage, or if another partition lags far behind, the values may
        not have been read yet.
        """
        yield from self._release_former_topics()
        left, before = dict(self.waiting), -1
        lacking: list[Barrier] = []
        while left and (lacking or sum(left.values()) != before):
            before = sum(left.values())
            tasks = [self._release_task(p, caught_up) for p in sorted(left)]
            results = cast(Sequence[ReleaseDone], (yield tasks))
            self._raise_failure(results)
            for done in results:
                if done.state is not None:
                    self.states.released(done.partition, done.state)
                    self.summary.figures.add(rows=done.rows, dead_letters=done.dead_letters, counts=done.counts)
            lacking = [done.lacking for done in results if done.lacking is not None]
            self._add_columns(lacking)
            left = {done.partition: done.waiting for done in results if done.waiting}
        self.waiting = left
        self.summary.figures.waiting = sum(left.values())

    def _release_former_topics(self) -> Rounds:
        """Apply or give up the changes that wait since the topic was another one: what they wait for cannot come."""
        while self._former:
            tasks = [self._final_task(*place) for place in self._former]
            results = cast(Sequence[ReleaseDone], (yield tasks))
            self._raise_failure(results)
            for task, done in zip(tasks, results, strict=True):
                self.summary.figures.add(rows=done.rows, dead_letters=done.dead_letters, counts=done.counts)
                log.warning(
                    "%s: %d changes of partition %d of the former topic %s no longer wait (dead letters: %d)",
                    *(self.settings.name, done.counts.get("released", 0), task.partition, task.topic_id),
                    done.dead_letters,
                )
            self._add_columns([done.lacking for done in results if done.lacking is not None])
            lacking = {(t.topic_id, t.partition) for t, done in zip(tasks, results, strict=True) if done.lacking}
            self._former = [place for place in self._former if place in lacking]

    def _final_task(self, topic_id: str, partition: int) -> ReleaseTask:
        return ReleaseTask(
            self.settings.name,
            self.settings.topic,
            topic_id,
            partition,
            self.table,
            self.states.of_former(topic_id, partition),
            below=sys.maxsize,
            caught_up=True,
            final=True,
            claim=self._claim,
        )

    def _round(
        self, work: dict[int, tuple[int, int]], limits: Mapping[int, tuple[int, int]], gone: dict[int, int]
    ) -> Generator[Write | Sequence[Task], Any, dict[int, int]]:
        """Run ranges once; returns the offset that each partition has reached. Barriers end ranges early.

        Args:
            limits: chunk limits of earlier attempts, by partition.
            gone: receives the partitions whose next records were lost while the batch ran, each with its offset; the
                next plan goes on behind them.
        """
        mine = self.settings.chunk_offsets, self.settings.chunk_bytes
        name, split = self.settings.topic, self.settings.ends_vary
        wanted = [
            RangeIntent(
                *(name, self.topic.topic_id, p, *span, *limits.get(p, mine)),
                fingerprint=of_range(self._fingerprint, *span) if split else self._fingerprint,
            )
            for p, span in sorted(work.items())
        ]
        self._used |= {intent.fingerprint for intent in wanted}
        intents = cast(Sequence[RangeIntent], (yield Intend(self.ports.ledger, wanted)))
        began = time.time()
        results = cast(Sequence[RangeDone], (yield [self._range_task(intent) for intent in intents]))
        barriers = [done.barrier for done in results if done.barrier is not None]
        self.states.met(name for done in results for name in done.state.names)
        for barrier in sorted((b for b in barriers if b.kind == "truncate"), key=lambda b: b.floor):
            self._truncate(barrier)
        yield from self._record(results, began)
        self._expect_one_id_kind()
        gone |= {r.partition: r.end for r in results if isinstance(r.failure, DataLoss) and self._may_skip(r)}
        for done in results:
            if done.partition in gone:
                log.warning("%s: %s", self.settings.name, done.failure)
        self._raise_failure([r for r in results if r.partition not in gone])
        self._add_columns([b for b in barriers if b.kind == "new_columns" and b.columns])
        # A range of a collapsing table that failed has no result.
        kept = {r.partition: r.start for r in results if r.partition in gone and self.target.collapsing}
        return {done.partition: done.end for done in results} | kept

    def _may_skip(self, done: RangeDone) -> bool:
        """Whether the next plan goes on behind records that were lost; not if it has led to the same place again."""
        return self.settings.on_data_loss == "continue" and self._gone.get(done.partition) != done.end

    def _changed(self, intent: RangeIntent) -> Changed:
        """Whether earlier attempts at the range may have stored other rows than this one would."""
        others = set(intent.earlier) - self._used
        if self.settings.ends_vary:
            cuts = self._cuts.get(intent.partition, ())
            others = {earlier for earlier in others if not same_chunks(earlier, self._fingerprint, intent, cuts)}
        return "unknown" if others == {""} else "other" if others else ""

    def _range_task(self, intent: RangeIntent) -> RangeTask:
        # What an earlier attempt at the range stored, or this one stores before it fails, is looked at again.
        settled = intent.partition in self._settled and not intent.attempt
        self._settled.discard(intent.partition)
        return RangeTask(
            self.settings.name,
            intent.topic,
            intent.topic_id,
            intent.partition,
            self.table,
            intent.start,
            intent.end,
            self.states.at(intent.partition, intent.start),
            intent.attempt,
            intent.chunk_offsets,
            intent.chunk_bytes,
            cuts=tuple(c for c in self._cuts.get(intent.partition, ()) if intent.start < c < intent.end),
            claim=self._claim,
            batch=intent.batch,
            changed=self._changed(intent),
            settled=settled,
        )

    def _release_task(self, partition: int, caught_up: bool) -> ReleaseTask:
        return ReleaseTask(
            self.settings.name,
            self.settings.topic,
            self.topic.topic_id,
            partition,
            self.table,
            self.states.waiting(partition),
            below=self._reached.get(partition, 0),
            caught_up=caught_up,
            claim=self._claim,
        )

    def _record(self, results: Sequence[RangeDone], began: float) -> Generator[Write, Any, None]:
        """Record what is applied. A failed range of a collapsing table gets no result: it continues from its recorded
        progress, which a result would void.
        """
        finished = [r for r in results if r.end > r.start and not (r.failure and self.target.collapsing)]
        yield Record(self.ports.ledger, [self._result(r, began) for r in finished])
        for r in finished:
            self.states.put(r.partition, r.end, r.state)
            self.summary.figures.counts["backward_steps"] += len(r.steps)
            self._reached[r.partition] = r.end
            for step in r.steps:
                log.warning("%s, partition %d, offset %d: %s", self.settings.name, r.partition, step.offset, step)
                self.ports.ledger.record(
                    BackwardStepSeen(
                        self.topic.topic_id,
                        r.partition,
                        step.offset,
                        step=step.kind,
                        source=step.source,
                        commit=step.commit,
                        highest=step.highest,
                    )
                )
            self.summary.figures.add(
                records=r.records,
                rows=r.rows,
                dead_letters=r.dead_letters,
                counts=r.counts,
                source_time=r.source_time,
            )
        # A partition without a range in this round keeps its waiting changes.
        self.waiting |= {r.partition: r.waiting for r in results if r.failure is None}
        self.waiting = {p: n for p, n in self.waiting.items() if n}
        self._settled |= {r.partition for r in results if r.settled}

    def _expect_one_id_kind(self) -> None:
        if self.settings.policy.documents.keys == "plain":
            self.states.expect_one_id_kind()

    def _result(self, done: RangeDone, began: float) -> FinishedRange:
        return FinishedRange(
            self.settings.topic,
            self.topic.topic_id,
            done.partition,
            done.start,
            done.end,
            rows=done.rows,
            deletes=done.counts.get("deletes", 0),
            dead_letters=done.dead_letters,
            counts={k: n for k, n in done.counts.items() if n > 0},
            cuts=done.cuts,
            state=done.state.to_json(),
            started=began,
            finished=time.time(),
            source_time=done.source_time,
            top=done.top,
        )

    def _raise_failure(self, results: Sequence[RangeDone] | Sequence[ReleaseDone]) -> None:
        failed = [r for r in results if r.failure is not None]
        for other in failed[1:]:
            log.error("partition %d: %s", other.partition, other.failure)
        for first in failed[:1]:
            assert first.failure is not None
            if isinstance(first.failure, DataLoss) and self.settings.on_data_loss == "continue":
                hint = "The topic's watermarks say that these offsets are there: see whether its brokers agree."
                raise DataLoss(str(first.failure), hint=hint)
            raise first.failure

    def _truncate(self, barrier: Barrier) -> None:
        """Delete the rows that the source truncated, before the rest of the ranges runs."""
        expect_one_source(barrier.source, self.states.names, barrier.next_offset - 1)
        self.ports.table.truncate(self.table, barrier.version, self.target.system.version)
        self.states.truncated(barrier.floor, barrier.source, barrier.version)

    def _add_columns(self, barriers: Sequence[Barrier]) -> None:
        """Add the columns at which ranges ended; what was applied before them is already in the ledger.

        So are the offsets at which they ended, written by the tasks: a second attempt cuts its chunks there too.
        """
        if barriers:
            self._use(self._schema_changes.carry_out(self.table, barriers))
            self._cuts = self.ports.ledger.cuts(self.topic.topic_id)

    def _use(self, table: TargetTable) -> None:
        """Use this version of the table from now on, here and in tasks."""
        self.table, self.target = table, Target.of(table, self.settings.policy)
        self._fingerprint = fingerprint(self.settings.policy, table, self.settings.source_table)
        self._used.add(self._fingerprint)

    def _with_added_partitions(self, state: TopicState, ceiling: Mapping[int, int] | None) -> Mapping[int, int] | None:
        """The ceiling under which the partitions are read that the topic had before it got more of them."""
        former = self.states.partitions
        if former < len(state.low):
            by_offset = self.states.ordered_by_offset
            if by_offset is not False:
                reached = self._planner.positions(state, self.states)
                first = self._added.ceiling(former, state, reached, ceiling, certain=bool(by_offset))
                if first is not None:
                    return first
            self.states.add_partitions(len(state.low))
        return ceiling

    def _expect_topic(self, topic_id: str) -> None:
        if topic_id != self.topic.topic_id:
            self.topic = self.ports.topics.state(self.settings.topic)
            self.states = States(self.ports.ledger, topic_id, len(self.topic.low), self._stored_epoch())
            self._cuts, self._reached = self.ports.ledger.cuts(topic_id), self.ports.ledger.progress(topic_id)
            self._look_for_waiting()

    def _stored_epoch(self) -> int | None:
        """The highest epoch in the table, None if it is empty or its versions hold none."""
        self._stored_version: int | None = None
        """The highest version in the table, −1 if it is empty, None if its versions are no positions."""
        if self.target.layout.kind != "wide" or self.target.system.version is None:
            return None
        self._stored_version = self.ports.table.highest_version(self.table)
        return self._stored_version >> _EPOCH_SHIFT if self._stored_version > 0 else None
