"""Stores what a plan says: hand-over, waiting changes, inserts, dead letters, in this order.

This order makes a kill harmless at every point: what later steps rely on is stored first, and each write is either
recognised by its token or found by the lookup of the next attempt.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ch_sink.errors import StreamFailed
from ch_sink.model.change import BadRecord, HandoverId, Records
from ch_sink.model.counts import Counts
from ch_sink.pipeline.guards import Fencing, Stages
from ch_sink.pipeline.plans import Applied, Plan, StreamName
from ch_sink.pipeline.target import Target
from ch_sink.pipeline.waiting import WaitingChanges
from ch_sink.ports import DeadLetter, DeadLetters, Fence, Handover, Pending, PendingRecord, TableWriter


def awaited_hand_overs(made: Plan, records: Records) -> dict[int, HandoverId]:
    """Offset → the hand-over for which that record waits."""
    return {int(records.offsets[w.index]): w.awaits for w in made.pending if w.awaits is not None}


@dataclass(slots=True)
class Storing:
    """Stores the plans of one task."""

    name: StreamName
    target: Target
    writer: TableWriter
    dead_letters: DeadLetters
    pending: Pending | None
    handover: Handover | None
    waiting: WaitingChanges
    fencing: Fencing | None
    stages: Stages
    clock: Callable[[], float]
    """Seconds since 1970; since when a change waits."""

    @property
    def fence(self) -> Fence | None:
        """The fence of this execution, None if it has none so far."""
        return self.fencing.fence if self.fencing is not None else None

    def store(
        self, made: Plan, records: Records, first: int, end: int, *, label: str = "", letters: bool = True
    ) -> Applied:
        """Store a plan of the offsets ``[first, end)``.

        Args:
            label: how the labels of its inserts begin.
            letters: whether bad records become dead letters; else they are some already.

        Raises:
            StreamFailed: a record is bad, and the stream is to stop at such a one.
            ClickHouseError: some of it may be stored.
        """
        bad = made.bad if letters else ()
        if bad and self.target.policy.changes.on_bad_record == "fail":
            raise stop(bad[0], records)
        if made.handover is not None and self.handover is not None:
            token = self.name.token(first, end, "handover")
            self.handover.put(made.handover.ids, made.handover.rows, made.handover.known, token)
        self._close_swaps(made, records, first, end)
        done = self.outcome(made, records, first, end)
        done.counts.dead_letters = len(bad)
        done.counts.kinds += Counter(waiting=self._park(made, records, first, end))
        self._insert(made, done, label)
        if bad:
            hides = self.target.policy.columns.hides
            found = [dead_letter_of(b, records, withheld=hides) for b in bad]
            self.dead_letters.put(found, self.name.token(first, end, "dead"))
        return done

    def outcome(self, made: Plan, records: Records, first: int, end: int) -> Applied:
        """The result for the offsets ``[first, end)`` once the inserts of their plan are stored."""
        sent = [insert.rows for insert in made.inserts]
        counts = Counts(
            records=int(np.searchsorted(records.offsets, end)),
            rows=sum(rows.num_rows for rows in sent),
            source_time=made.last_source_ts,
            kinds=+made.counts,
            top=max(map(self.target.top_version, sent), default=0),
        )
        return Applied(made.state, first, end, counts, steps=list(made.steps), barrier=made.barrier)

    def _insert(self, made: Plan, done: Applied, label: str) -> None:
        fence = self.fence
        execution = fence.execution if fence is not None else f"attempt-{self.name.attempt}"
        self._roll_up(made, done, label)
        for insert in made.inserts:
            differs = made.reconciles or insert.partial
            token = self.name.token(
                done.first, done.end, f"{label}{insert.label}", execution=execution if differs else ""
            )
            with self.stages.stage("insert"):
                self.writer.write(insert, token, fence=fence, by_content=not self.target.exclusive)

    def _roll_up(self, made: Plan, done: Applied, label: str) -> None:
        """Store the difference in the rollups, before any row of it is stored.

        In this order a second execution is right: if the rollup has the difference and the table a part of it, the
        rest has the same token here. See docs/internals/storing.md for attempts whose difference may be another one.
        """
        rollups = self.target.table.rollups
        if not rollups or not made.inserts:
            return
        rows = pa.concat_tables([insert.rows for insert in made.inserts])
        for rollup in rollups:
            token = self.name.token(done.first, done.end, f"{label}rollup/{rollup.choice.name}/{self.name.batch}")
            with self.stages.stage("insert"):
                self.writer.roll_up(rollup.choice.name, rows, token, fence=self.fence)

    def _close_swaps(self, made: Plan, records: Records, first: int, end: int) -> None:
        """Note which swaps of released changes are closed here: others of their transaction may wait for long."""
        closers = {key: int(records.offsets[place]) for key, place in made.closers.items()}
        entries = self.waiting.closed(closers) if closers else []
        if entries and self.pending is not None:
            token = self.name.token(first, end, "closed")
            self.pending.put(self.name.topic_id, self.name.partition, entries, token, fence=self.fence)
            self.waiting.keep(entries)

    def _park(self, made: Plan, records: Records, first: int, end: int) -> int:
        """Store the waiting events before any row of the chunk, so that a retry leaves them out too; returns how many.

        Those that waited already are stored.
        """
        if not made.pending:
            return 0
        if self.pending is None:
            raise StreamFailed(
                "a change event waits for values of another key, and the stream has no pending table",
                hint="Run `ch_sink init CONFIG --apply` to create it.",
            )
        now = self.clock()
        parked = []
        for wait in made.pending:
            record = dead_letter_of(BadRecord(wait.index, ""), records)
            parked.append(
                PendingRecord(
                    record.offset,
                    record.timestamp,
                    record.key,
                    record.value,
                    record.headers,
                    wait.epoch,
                    wait.commit,
                    now,
                )
            )
        fresh = [r for r in parked if r.offset not in self.waiting]
        if fresh:
            token = self.name.token(first, end, "pending")
            self.pending.put(self.name.topic_id, self.name.partition, fresh, token, fence=self.fence)
            self.waiting.add(fresh, awaited_hand_overs(made, records))
        return len(fresh)


WITHHELD = "its value is withheld, since columns are masked or excluded; Kafka has it at this offset"


def stop(bad: BadRecord, records: Records) -> StreamFailed:
    """The error that stops a stream at a bad record."""
    offset = int(records.offsets[bad.index])
    where = f"{records.topic}, partition {records.partition}, offset {offset}"
    column = f", column {bad.column!r}" if bad.column else ""
    return StreamFailed(
        f"the record at {where}{column} cannot be applied: {bad.reason}",
        hint="Correct the record, or set on_bad_record: dead_letter.",
    )


def dead_letter_of(bad: BadRecord, records: Records, *, withheld: bool = False) -> DeadLetter:
    """The dead letter of a record: the whole record with the reason.

    ``withheld``: without its value and headers, which hold columns that must not be stored.
    """
    i = bad.index
    headers = records.headers[i] if records.headers is not None else None
    value, reason = records.values[i], bad.reason
    if withheld and value is not None:
        # Empty, not null: a null value would be a delete.
        value, headers, reason = b"", None, f"{reason} ({WITHHELD})"
    return DeadLetter(
        records.topic,
        records.partition,
        int(records.offsets[i]),
        int(records.timestamps[i]),
        records.keys[i],
        value,
        headers or (),
        bad.kind,
        bad.column,
        reason,
    )
