"""One stream across batches: what is claimed, intended, run, recorded and committed, and in which order.

A batch runs in rounds. Each round records its intents, hands the executor one task per range, and records the results.
If a range ends early because the table must change first (a truncate, new columns), the coordinator changes the table,
and the next round continues from there. The order of these writes makes a kill at any point harmless:

    intents ─▶ tasks ─▶ truncate, its floor ─▶ results ─▶ new columns ─▶ … ─▶ release waiting changes ─▶ group offsets

The coordinator knows neither Spark, HTTP nor Kafka's client: it works on ports and an executor.
"""

import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, cast

from ch_sink.errors import ChSinkError, ClickHouseError, DataLoss
from ch_sink.model.counts import Counts
from ch_sink.model.values import TopicState
from ch_sink.observe.stream import StreamSummary
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.ports import Claim, FinishedRange, RangeIntent
from ch_sink.stream.batch_plan import BatchPlanner, OffsetRange
from ch_sink.stream.claims import abandon, displaced, expect_same_terms, taken_since, types_of
from ch_sink.stream.error_limits import ErrorWatch
from ch_sink.stream.moved_keys import AddedPartitions, RewrittenKeys, expect_one_form
from ch_sink.stream.open_stream import OpenStream, Releases, StreamTable
from ch_sink.stream.partition_states import States
from ch_sink.stream.ports import StreamPorts, StreamSettings
from ch_sink.stream.rollback import Restored, expect_entered, expect_same_table
from ch_sink.stream.rounds import Intend, Record, Rounds, Write, run_one
from ch_sink.stream.tasks import Execute, RangeDone, RangeTask, Task
from ch_sink.table.model import clashes

log = logging.getLogger("ch_sink")


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
        self.summary = StreamSummary(settings.name, settings.topic)
        self.run_id = uuid.uuid4().hex[:12]
        self.claim: Claim | None = None
        """The claim under which it works, None before it has one."""
        self._errors = ErrorWatch(settings.errors, ports.dead_letters)
        self._gone: dict[int, int] = {}
        """The places where records were lost in the last batch, by partition."""
        self._planner = BatchPlanner(
            ports.ledger, settings, lambda partitions: ports.group.last_committed(settings.topic, partitions)
        )
        self._added, self._rewritten = AddedPartitions(), RewrittenKeys()
        self._behind = 0
        """Offsets of added partitions, which the last plan has left to later ones."""
        self._ends: Mapping[int, int] = {}
        """Partition → the offset up to which the last plan would have read it."""
        self._closing = ExitStack()

    @property
    def topic(self) -> TopicState:
        """The topic that the stream reads."""
        return self._stream.topic

    @property
    def table(self) -> StreamTable:
        """The table that the stream fills."""
        return self._stream.table

    @property
    def states(self) -> States:
        """The states of the topic's partitions."""
        return self._stream.states

    @property
    def waiting(self) -> Mapping[int, int]:
        """Partition → number of changes that wait for the values of a row that changed its key."""
        return self._releases.numbers

    def open(self, before: Claim | None = None) -> None:
        """Inspect the topic and the table, claim the stream, and find where it left off.

        Args:
            before: the job's last claim, if it had the stream already: a job that has taken it since is not displaced.

        Raises:
            ChSinkError: something is missing or wrong; its hint gives the next step.
        """
        self._began = time.monotonic()
        ledger, name = self.ports.ledger, self.settings.name
        topic = self.ports.topics.state(self.settings.topic)
        self._errors.expect_few()
        detected = self.ports.table.detect()
        self._planner.expect_topic(topic)
        if before is not None and taken_since(name, before, owner := ledger.owner()):
            raise displaced(name, owner)
        policy = self.settings.policy
        last = expect_same_terms(name, ledger, detected, policy, self.settings.source_table)
        expect_same_table(last, ledger, self.ports.table, detected, policy)
        try:
            self.claim = ledger.claim(self.run_id, self.settings.terms(detected.uuid, types_of(detected, policy)))
        except BaseException:
            abandon(name, self.run_id)  # else the next attempt takes it for another job's
            raise
        self._closing.callback(ledger.release)
        expect_entered(detected, ledger)
        table = StreamTable(self.ports.table, ledger, self.settings, detected)
        self._stream = stream = OpenStream(self.settings, self.ports, self.claim, table)
        stream.enter(topic)
        Restored(stream).expect_whole(self.ports.group)
        self.summary.table = table.now.qualified.replace("`", "")
        for first, second in clashes(c.name for c in table.now.columns):
            log.warning("%s: columns %r and %r differ by letter case only", table.now.qualified, first, second)
        self._releases = Releases(stream, self.summary.add)
        stream.look_at_rollups(last)
        self._closing.callback(stream.keep_rollups)

    def close(self) -> None:
        """Release what `open` took."""
        with suppress(ChSinkError):  # what ended the stream is the error to show
            self._closing.close()

    def plan(
        self, state: TopicState, limit: int | None = None, ceiling: Mapping[int, int] | None = None
    ) -> list[OffsetRange]:
        """The ranges of the next batch, for `batch`; empty without new records. Raises as `BatchPlanner.plan` does.

        Args:
            state: the topic now.
            limit: how many offsets the batch may hold.
            ceiling: offsets beyond which nothing new is read, by partition; partitions without one wait.
        """
        self._planner.expect_topic(state)
        ceiling = self._with_added_partitions(state, ceiling)
        self._ends = state.high if ceiling is None else ceiling
        if self.held:
            reached = self._planner.positions(state, self.states)
            self.waiting_for_others(reached, self._ends, state.asked if ceiling is None else math.inf)
        return self._planner.plan(state, self.states, limit, ceiling, self.held)

    @property
    def withheld(self) -> int:
        """Offsets of partitions that wait for others."""
        return self._behind + sum(max(0, self._ends.get(p, 0) - at) for p, at in self.held.items())

    def waiting_for_others(
        self, reached: Mapping[int, int], ends: Mapping[int, int], look: float = math.inf
    ) -> Mapping[int, int]:
        """Partition → next offset, of those that wait until the others were read: see `RewrittenKeys.released`."""
        if form := self._rewritten.released(reached, ends, look):
            log.warning(
                "%s: the keys of topic %s are %s from here on", self.settings.name, self.settings.topic, form[1]
            )
            self._stream.states.change_keys(*form)
        return self.held

    @property
    def held(self) -> dict[int, int]:
        """Partition → next offset, of those that wait until others were read."""
        return {p: barrier.next_offset for p, barrier in self._rewritten.held.items()}

    def state_at(self, partition: int, offset: int) -> State:
        """The ordering state with which a range begins at this offset."""
        return self._stream.states.at(partition, offset)

    def run_batch(self, ranges: Sequence[OffsetRange], execute: Execute) -> None:
        """Run one batch of this stream alone. Raises the stream's ChSinkError, or whatever the executor raises."""
        run_one(self.batch(ranges), execute)

    def run_release(self, execute: Execute) -> None:
        """Apply changes that have waited since an earlier run. Raises as `run_batch` does."""
        run_one(self.release(), execute)

    def batch(self, ranges: Sequence[OffsetRange]) -> Rounds:
        """The rounds of one batch. `plan` says what to read after one that ended early."""
        if ranges:
            yield from self._stream.certainly(self._batch(ranges))

    def _batch(self, ranges: Sequence[OffsetRange]) -> Rounds:
        self._stream.states.add_partitions(max(r.partition for r in ranges) + 1)
        before, left = self._planner.begin(), self._planner.lag({r.partition: r.end for r in ranges})
        limits = {r.partition: (r.chunk_offsets, r.chunk_bytes) for r in ranges if r.chunk_offsets}
        began = time.monotonic()
        self.summary.begin(sum(r.lost for r in ranges))
        work = {r.partition: (r.start, r.end) for r in ranges}
        reached: dict[int, int] = {}
        gone: dict[int, int] = {}
        while work:
            done = yield from self._round(work, limits, gone)
            reached |= done
            ended = gone.keys() | self._rewritten.held.keys()
            work = {p: (done[p], end) for p, (_, end) in work.items() if done[p] < end and p not in ended}
        self._gone = gone
        self.summary.lag = left + sum(max(0, r.high - reached[r.partition]) for r in ranges)
        yield from self._release(caught_up=self.summary.lag == 0)
        self._planner.finish(None if gone else before, reached)
        # As long as the ledger is behind what the table may have, the group's offsets are the only sign of it.
        self.ports.group.commit(
            self.settings.topic, {p: end for p, end in reached.items() if end >= self._stream.unsure.get(p, 0)}
        )
        self._fold()
        self.summary.end(reached, time.monotonic() - began, time.monotonic() - self._began)
        if self.on_batch is not None:
            self.on_batch(self.summary)
        batch, self.summary.batch = self.summary.batch, Counts()
        self._errors.add(batch.records, batch.dead_letters)

    def release(self, *, caught_up: bool = False) -> Rounds:
        """Apply waiting changes whose values have arrived: see `Releases.release`."""
        yield from self._stream.certainly(self._release(caught_up=caught_up))

    def _release(self, *, caught_up: bool) -> Rounds:
        yield from self._releases.release(caught_up=caught_up)
        self.summary.waiting = sum(self.waiting.values())

    def _fold(self) -> None:
        """Keep the ledger short. What a server refuses now is folded after a later batch."""
        try:
            self.ports.ledger.fold()
        except ClickHouseError as error:
            log.warning("%s: old entries of the ledger were not folded: %s", self.settings.name, error)

    def _round(
        self, work: dict[int, tuple[int, int]], limits: Mapping[int, tuple[int, int]], gone: dict[int, int]
    ) -> Generator[Write | Sequence[Task], Any, dict[int, int]]:
        """Run ranges once; returns the offset that each partition has reached. Barriers end ranges early.

        Args:
            limits: chunk limits of earlier attempts, by partition.
            gone: receives the partitions whose next records were lost while the batch ran, each with its offset; the
                next plan goes on behind them.
        """
        mine, stream = (self.settings.chunk_offsets, self.settings.chunk_bytes), self._stream
        name, topic_id, table = self.settings.topic, stream.topic.topic_id, stream.table
        wanted = [
            RangeIntent(name, topic_id, p, *span, *limits.get(p, mine), fingerprint=table.fingerprint_of(*span))
            for p, span in sorted(work.items())
        ]
        intents = cast(Sequence[RangeIntent], (yield Intend(self.ports.ledger, wanted)))
        began = time.time()
        results = cast(Sequence[RangeDone], (yield [self._range_task(intent) for intent in intents]))
        barriers = [done.barrier for done in results if done.barrier is not None]
        if not stream.states.key_forms:
            expect_one_form({done.partition: done.state for done in results})
        for done in results:
            stream.states.met(done.state)
            if done.barrier is not None and done.barrier.kind == "key_form":
                self._rewritten.hold(done.partition, done.barrier)
        truncates = sorted((b for b in barriers if b.kind == "truncate"), key=lambda b: b.floor)
        if truncates:
            waiting = bool(self.held or self.withheld)
            stream.states.expect_one_epoch({done.partition: done.state for done in results}, waiting=waiting)
        for barrier in truncates:
            self._truncate(barrier)
        if truncates or any(done.repeated for done in results):
            stream.fill_rollups(doubtful=True)
        yield from self._record(results, began)
        gone |= {r.partition: r.end for r in results if isinstance(r.failure, DataLoss) and self._may_skip(r)}
        for done in results:
            if done.partition in gone:
                log.warning("%s: %s", self.settings.name, done.failure)
        stream.raise_failure([r for r in results if r.partition not in gone])
        stream.add_columns([b for b in barriers if b.kind == "new_columns"])
        for done in results:
            stream.table.key_is_known(done.state.profile)
        # A range of a collapsing table that failed has no result.
        kept = {r.partition: r.start for r in results if r.partition in gone and stream.table.target.collapsing}
        return {done.partition: done.end for done in results} | kept

    def _may_skip(self, done: RangeDone) -> bool:
        """Whether the next plan goes on behind records that were lost; not if it has led to the same place again."""
        return self.settings.on_data_loss == "continue" and self._gone.get(done.partition) != done.end

    def _range_task(self, intent: RangeIntent) -> RangeTask:
        stream, p = self._stream, intent.partition
        changed = stream.table.changed(intent)
        if intent.start < stream.unsure.get(p, 0):
            intent, changed = replace(intent, attempt=max(1, intent.attempt)), "other"
        return RangeTask(
            self.settings.name,
            intent.topic,
            intent.topic_id,
            p,
            stream.table.now,
            intent.start,
            intent.end,
            stream.states.at(p, intent.start),
            intent.attempt,
            intent.chunk_offsets,
            intent.chunk_bytes,
            claim=stream.claim,
            batch=intent.batch,
            changed=changed,
            settled=self._releases.range_begins(p, intent.attempt),
        )

    def _record(self, results: Sequence[RangeDone], began: float) -> Generator[Write, Any, None]:
        """Record what is applied. A failed range of a collapsing table gets no result: it continues from its recorded
        progress, which a result would void.
        """
        stream = self._stream
        finished = [r for r in results if r.end > r.start and not (r.failure and stream.table.target.collapsing)]
        yield Record(self.ports.ledger, [self._result(r, began) for r in finished])
        for r in finished:
            stream.states.put(r.partition, r.end, r.state)
            stream.reached[r.partition] = r.end
            self.summary.add(r.counts)
            if r.steps:
                self.summary.add(Counts(kinds=Counter(backward_steps=len(r.steps))))
            for step in r.steps:
                log.warning("%s, partition %d, offset %d: %s", self.settings.name, r.partition, step.offset, step)
        self._releases.ranges_ended(results)

    def _result(self, done: RangeDone, began: float) -> FinishedRange:
        return FinishedRange(
            self.settings.topic,
            self.topic.topic_id,
            done.partition,
            done.start,
            done.end,
            done.counts,
            state=done.state.to_json(),
            started=began,
            finished=time.time(),
            steps=tuple(done.steps),
        )

    def _truncate(self, barrier: Barrier) -> None:
        """Delete the rows that the source truncated, before the rest of the ranges runs."""
        states = self._stream.states
        states.expect_one_table(barrier.source, barrier.next_offset - 1)
        self._stream.truncate(barrier.version)
        states.truncated(barrier.floor, barrier.source, barrier.version)

    def _with_added_partitions(self, state: TopicState, ceiling: Mapping[int, int] | None) -> Mapping[int, int] | None:
        """The ceiling under which the partitions are read that the topic had before it got more of them."""
        states = self._stream.states
        former, self._behind = states.partitions, 0
        if state.whole and former < len(state.low):
            reached = self._planner.positions(state, states)
            first = self._added.ceiling(former, state, reached, ceiling, compare=states.compare is not False)
            if first is not None:
                ends = state.high if ceiling is None else ceiling
                self._behind = sum(max(0, ends.get(p, 0) - reached[p]) for p in reached.keys() - first.keys())
                return first
            states.add_partitions(len(state.low))
        return ceiling
