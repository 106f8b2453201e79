"""Stores what a plan says: hand-over, waiting changes, inserts, dead letters, in this order.

This order makes a kill harmless at every point: what later steps rely on is stored first, and each write is either
recognised by its token or found by the lookup of the next attempt.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ch_sink.errors import StreamFailed
from ch_sink.model.change import BadRecord, HandoverId, Records
from ch_sink.model.counts import Counts
from ch_sink.pipeline.applied import Applied, StreamName
from ch_sink.pipeline.bad_records import dead_letter_of, stop
from ch_sink.pipeline.fencing import Fencing
from ch_sink.pipeline.plan import Plan
from ch_sink.pipeline.target import Target
from ch_sink.pipeline.timings import Stages
from ch_sink.pipeline.waiting import WaitingChanges
from ch_sink.ports import DeadLetters, Fence, Handover, Pending, PendingRecord, TableWriter

__all__ = ["Storing", "awaited_hand_overs"]


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
    note_cut: Callable[[int], None] | None
    """Called with the offset at which a chunk ends for want of columns, before anything of the chunk is stored."""

    @property
    def fence(self) -> Fence | None:
        """The fence of this execution, None if it has none so far."""
        return self.fencing.fence if self.fencing is not None else None

    def store(self, made: Plan, records: Records, first: int, end: int) -> Applied:
        """Store a plan of the offsets ``[first, end)``.

        Raises:
            StreamFailed: a record is bad, and the stream is to stop at such a one.
            ClickHouseError: some of it may be stored.
        """
        done = Applied(
            made.state,
            first,
            end,
            Counts(
                records=int(np.searchsorted(records.offsets, end)),
                dead_letters=len(made.bad),
                source_time=made.last_source_ts,
                kinds=made.counts,
            ),
            steps=made.steps,
            barrier=made.barrier,
        )
        if made.bad and self.target.policy.changes.on_bad_record == "fail":
            raise stop(made.bad[0], records)
        cut = made.barrier
        if cut is not None and cut.kind == "new_columns" and cut.columns and end > first and self.note_cut is not None:
            self.note_cut(end)
        if made.handover is not None and self.handover is not None:
            token = self.name.token(first, end, "handover")
            self.handover.put(made.handover.ids, made.handover.rows, made.handover.known, token)
        self._close_swaps(made, records, first, end)
        self._park(made, records, first, end)
        self._insert(made, done)
        if made.bad:
            hides = self.target.policy.columns.hides
            found = [dead_letter_of(b, records, withheld=hides) for b in made.bad]
            self.dead_letters.put(found, self.name.token(first, end, "dead"))
        return done

    def _insert(self, made: Plan, done: Applied) -> None:
        fence = self.fence
        execution = fence.execution if fence is not None else f"attempt-{self.name.attempt}"
        self._roll_up(made, done)
        for insert in made.inserts:
            differs = made.reconciles or insert.partial
            token = self.name.token(done.first, done.end, insert.label, execution=execution if differs else "")
            with self.stages.stage("insert"):
                self.writer.write(insert, token, fence=fence, by_content=not self.target.exclusive)
            done.counts.rows += insert.rows.num_rows
            done.counts.top = max(done.counts.top, self.target.top_version(insert.rows))

    def _roll_up(self, made: Plan, done: Applied) -> None:
        """Store the difference in the rollups, before any row of it is stored.

        In this order a second execution is right: if the rollup has the difference and the table a part of it, the
        rest has the same token here. See docs/architecture.md for attempts whose difference may be another one.
        """
        rollups = self.target.table.rollups
        if not rollups or not made.inserts:
            return
        rows = pa.concat_tables([insert.rows for insert in made.inserts])
        for rollup in rollups:
            token = self.name.token(done.first, done.end, f"{made.unit}rollup/{rollup.choice.name}")
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

    def _park(self, made: Plan, records: Records, first: int, end: int) -> None:
        """Store the waiting events before any row of the chunk, so that a retry leaves them out too."""
        if not made.pending:
            return
        if self.pending is None:
            raise StreamFailed(
                "a change event waits for values of another key, and the stream has no pending table",
                hint="run `ch_sink init CONFIG --apply` to create it",
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
        made.counts["waiting"] += len(fresh)
