"""The ledger in a ClickHouse table (``sql/ledger.sql``)."""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from ch_sink.clickhouse import ledger_queries as ask
from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.fence import CLAIM_BITS, ClickHouseFence, rank
from ch_sink.clickhouse.ledger_folds import LedgerFolds
from ch_sink.clickhouse.ledger_kinds import CLAIM_AND_KINDS, needs
from ch_sink.clickhouse.ledger_rows import (
    SCHEMA,
    Entry,
    claim_of,
    fact_of,
    fingerprint_of,
    intent_of,
    result_of,
    row,
    totals_of,
)
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.ports import (
    ChunkCut,
    Claim,
    Execution,
    Fact,
    Fence,
    FinishedRange,
    PartitionTotals,
    RangeIntent,
    RangeProgress,
    ReleaseGroup,
    RowsRemoved,
    SchemaChangeBegun,
    TableRepaired,
)
from ch_sink.stream.claims import displaced, mine, new_claim, retired
from ch_sink.stream.summaries import KEEP, covered, with_summaries

__all__ = ["ClickHouseLedger", "Row", "insert_rows"]

Row = dict[str, Any]
"""An entry as a row of the table."""

F = TypeVar("F", bound=Fact)


class ClickHouseLedger:
    """The Ledger of one stream, and the TaskLedger of its tasks. See the protocols; raises ClickHouseError too."""

    def __init__(
        self,
        client: Client,
        database: str,
        table: str,
        stream: str,
        *,
        keep: int = KEEP,
    ) -> None:
        """
        Args:
            keep: how many results of each partition are kept at least when old ones are folded.
        """
        self.stream = stream
        self.table = StateTable(client, database, table)
        self._claim: Claim | None = None
        self._written = 0
        self._batch = 0
        self._reached: dict[tuple[str, int], int] | None = None
        self._kinds: set[str] | None = None
        """The kinds of the stream's entries, while this ledger owns it."""
        self._folds = LedgerFolds(self.table, stream, self._rows, keep)

    def claim(self, run_id: str) -> Claim:
        self._claim = new_claim(self.stream, run_id, self._newest())
        self._insert([self._claim], 0)
        # Two jobs that claim at the same moment get the same number; the later of the two owns the stream.
        found = self._rows(CLAIM_AND_KINDS)
        self.expect_mine(self._noted(found))
        kinds = {str(kind) for kind in found[0]["kinds"]}
        if FinishedRange.kind not in kinds:
            self._folds.none_yet()
        self._kinds = kinds
        return self._claim

    def release(self) -> None:
        claim, self._claim, self._kinds = self._claim, None, None
        if claim is None:
            return
        given_back = retired(self.stream, claim)
        if mine(claim, self._newest()):
            self._insert([given_back], 0, claim)

    def last_claim(self) -> Claim | None:
        return self._newest()

    def owner(self) -> Claim | None:
        newest = self._newest()
        return None if newest is None or newest.released else newest

    def check_claim(self) -> None:
        self.expect_mine(self._newest())

    def expect_mine(self, newest: Claim | None) -> None:
        """Raises LedgerConflict if the stream's newest claim is another one."""
        if not mine(self._claim, newest):
            raise displaced(self.stream, newest)

    def intents(self, ranges: Sequence[RangeIntent]) -> list[RangeIntent]:
        self.check_claim()
        numbered, rows = self.intent_rows(ranges)
        self._insert_rows(rows)
        self.intended(numbered)
        return numbered

    def intent_rows(self, ranges: Sequence[RangeIntent]) -> tuple[list[RangeIntent], list[Row]]:
        """The intents of a new batch with their attempts, and their rows. The claim must have been checked."""
        self._batch = self._tick()
        numbered = self._numbered(ranges)
        return numbered, self._entry_rows(numbered, self._batch, self._claim)

    def intended(self, numbered: Sequence[RangeIntent]) -> None:
        """The rows of these intents are inserted."""
        reached = self._intended()
        for r in numbered:
            place = (r.topic_id, r.partition)
            reached[place] = max(reached.get(place, 0), r.end)

    def results(self, results: Sequence[FinishedRange]) -> None:
        self.check_claim()
        self._insert_rows(self.result_rows(results))
        self.finished(results)

    def result_rows(self, results: Sequence[FinishedRange]) -> list[Row]:
        """The rows of these results. The claim must have been checked."""
        return self._entry_rows(results, self._batch, self._claim)

    def finished(self, results: Sequence[FinishedRange]) -> None:
        """The rows of these results are inserted."""
        self._folds.add((r.topic_id, r.partition) for r in results)

    def fold(self) -> int:
        places = self._folds.due()
        if not places:
            return 0
        self.check_claim()
        assert self._claim is not None
        done = self._folds.fold(places, lambda made: self._insert(made, 0, self._claim))
        self._folds.sweep(self._claim)
        return done

    def states_at(self, topic_id: str, at: Mapping[int, int]) -> dict[int, str]:
        found = self._rows(ask.STATES_AT, topic_id=topic_id, places=sorted(at.items())) if at else []
        return {r["partition"]: str(r["state"]) for r in found}

    def state_before(self, topic_id: str, partition: int, offset: int) -> tuple[int, str] | None:
        found = self._rows(ask.STATE_BEFORE, topic_id=topic_id, partition=partition, offset=offset)
        return (int(found[0]["end_offset"]), str(found[0]["state"])) if found else None

    def states_over(self, topic_id: str, partition: int, first: int, end: int) -> list[tuple[int, int, str]]:
        found = self._rows(ask.STATES_OVER, topic_id=topic_id, partition=partition, first=first, end=end)
        return [(int(r["start_offset"]), int(r["end_offset"]), str(r["state"])) for r in found]

    def progress(self, topic_id: str) -> dict[int, int]:
        return {int(r["partition"]): int(r["next_offset"]) for r in self._rows(ask.PROGRESS, topic_id=topic_id)}

    def open_intents(self, topic_id: str) -> list[RangeIntent]:
        return [intent_of(r) for r in self._rows(ask.OPEN_INTENTS, topic_id=topic_id)]

    def topic_ids(self) -> list[str]:
        return [str(r["topic_id"]) for r in self._rows(ask.TOPIC_IDS)]

    def last_intents(self) -> list[RangeIntent]:
        return [intent_of(r) for r in self._rows(ask.LAST_INTENTS)]

    def history(self, limit: int) -> list[FinishedRange]:
        return [result_of(r) for r in self._rows(ask.HISTORY, limit=limit)]

    def totals(self) -> list[PartitionTotals]:
        summaries = self._folds.summaries()
        while True:
            known = [(*place, *span) for place, folded in summaries.items() for span in covered(folded)]
            found = self._rows(ask.TOTALS, covered=known)
            last = [(r["topic_id"], r["partition"], r["last_start"]) for r in found]
            answers = self._rows(ask.LAST_STATES, ranges=last)
            before, summaries = summaries, self._folds.summaries()
            if summaries == before:  # else the owner has folded results in between
                break
        states = {(r["topic_id"], r["partition"]): str(r["state"]) for r in answers}
        return with_summaries([totals_of(r, states[r["topic_id"], r["partition"]]) for r in found], summaries)

    def begin(self, topic_id: str, partition: int, claim: Claim | None, work: str) -> Fence:
        number, before = claim.number if claim is not None else 0, self._last_execution(topic_id, partition)
        repeats = before is not None and before.work == work
        while before is None or before.claim <= number:
            mine = Execution(
                topic_id, partition, number, before.number + 1 if before else 1, uuid.uuid4().hex[:12], work
            )
            self._insert([mine], 0)
            fence = ClickHouseFence(self.table, self.stream, mine, claim, repeats, self._newest)
            if fence.holds():
                return fence
            fence.check_claim()
            # Two executions drew the same number at the same moment, and the other one is the newest.
            before = self._last_execution(topic_id, partition)
        raise displaced(self.stream, self._newest())

    def _last_execution(self, topic_id: str, partition: int) -> Execution | None:
        found = self._rows(ask.LAST_EXECUTION, topic_id=topic_id, partition=partition)
        if not found:
            return None
        claim, number = divmod(int(found[0]["written"]), 1 << CLAIM_BITS)
        return Execution(topic_id, partition, claim, number, str(found[0]["run_id"]), str(found[0]["state"]))

    def put_progress(self, progress: RangeProgress) -> None:
        self._insert([progress], progress.start)

    def progress_of(self, topic_id: str, partition: int, start: int) -> RangeProgress | None:
        found = self._rows(ask.PROGRESS_OF, topic_id=topic_id, partition=partition, start=start)
        return RangeProgress(topic_id, partition, start, found[0]["end_offset"], found[0]["state"]) if found else None

    def put_release(self, group: ReleaseGroup) -> None:
        self._insert([group], 0)

    def last_release(self, topic_id: str, partition: int) -> ReleaseGroup | None:
        found = self._rows(ask.LAST_RELEASE, topic_id=topic_id, partition=partition)
        if not found:
            return None
        self._written = max(self._written, int(found[0]["written"]))
        return ReleaseGroup(topic_id, partition, tuple(found[0]["cuts"]), bool(found[0]["given_up"]))

    def put_cut(self, cut: ChunkCut) -> None:
        self._insert([cut], 0)

    def cuts(self, topic_id: str) -> dict[int, list[int]]:
        # Tasks record cuts, so that what is not there before the first batch may be there after it.
        if self._kinds is not None and not self._batch and ChunkCut.kind not in self._kinds:
            return {}
        found = self._rows(ask.CUTS, topic_id=topic_id)
        return {int(r["partition"]): sorted(int(o) for o in r["offsets"]) for r in found}

    def record(self, *facts: Fact) -> None:
        self.check_claim()
        self._insert(facts, 0, self._claim)

    def note(self, *facts: RowsRemoved | TableRepaired) -> None:
        self._insert(facts, 0)

    def facts(self, kind: type[F]) -> list[F]:
        found = [fact_of(r, kind) for r in self._rows(ask.FACTS, kind=kind.kind)]
        return list(dict.fromkeys(reversed(found)))[::-1]

    def open_schema_change(self) -> SchemaChangeBegun | None:
        found = self._rows(ask.LAST_SCHEMA_CHANGE)
        return fact_of(found[0], SchemaChangeBegun) if found and found[0]["entry"] == SchemaChangeBegun.kind else None

    def _rows(self, sql: str, **parameters: object) -> list[dict[str, Any]]:
        needed = needs(sql, parameters.get("kind")) if self._kinds is not None else None
        if needed is not None and self._kinds is not None and not needed & self._kinds:
            return []
        return self.table.rows(sql, stream=self.stream, **parameters)

    def _newest(self) -> Claim | None:
        return self._noted(self._rows(ask.NEWEST_CLAIM))

    def _noted(self, found: Sequence[Row]) -> Claim | None:
        """The newest claim, whose time the next entries come after."""
        if not found:
            return None
        self._written = max(self._written, int(found[0]["written"]))
        return claim_of(found[0])

    def _numbered(self, ranges: Sequence[RangeIntent]) -> list[RangeIntent]:
        """The ranges, with how often they were tried before, and under what."""
        reached = self._intended()
        again = [r for r in ranges if r.start < reached.get((r.topic_id, r.partition), 0)]
        if not again:
            return [replace(r, batch=self._batch) for r in ranges]
        spans = [(r.topic_id, r.partition, r.start, r.end) for r in again]
        tried = {
            (f["topic_id"], f["partition"], f["first"], f["last"]): f for f in self._rows(ask.ATTEMPTS, spans=spans)
        }
        summaries = self._folds.summaries()
        numbered = []
        for r in ranges:
            found = tried.get((r.topic_id, r.partition, r.start, r.end), {"n": 0, "facts": ()})
            mine = summaries.get((r.topic_id, r.partition), ())
            folded = [s.batches for s in mine if s.start < r.end and s.end > r.start]
            earlier = {fingerprint_of(str(fact)) for fact in found["facts"]} | ({""} if folded else set())
            attempt = int(found["n"]) + sum(folded)
            numbered.append(replace(r, attempt=attempt, batch=self._batch, earlier=tuple(sorted(earlier))))
        return numbered

    def _intended(self) -> dict[tuple[str, int], int]:
        """The highest intended offset by topic and partition; queried once, then kept."""
        if self._reached is None:
            self._reached = {(r["topic_id"], r["partition"]): int(r["reached"]) for r in self._rows(ask.INTENDED)}
        return self._reached

    def _tick(self) -> int:
        """The current time, or just after the last entry and the newest claim if the clock is behind them."""
        self._written = max(time.time_ns(), self._written + 1)
        return self._written

    def _insert(self, entries: Iterable[Entry], batch: int, under: Claim | None = None) -> None:
        """Insert entries as one block, under a claim, or under none for tasks."""
        self._insert_rows(self._entry_rows(entries, batch, under))

    def _entry_rows(self, entries: Iterable[Entry], batch: int, under: Claim | None) -> list[Row]:
        number, run_id = (under.number, under.run_id) if under is not None else (0, "")
        rows = [
            row(
                self.stream,
                e,
                claim_number=number,
                run_id=run_id,
                batch=batch,
                # The version of an execution's row is its rank, so that the engine keeps the newest one.
                written=rank(e) if isinstance(e, Execution) else self._tick(),
            )
            for e in entries
        ]
        if self._kinds is not None:
            self._kinds |= {r["entry"] for r in rows}
        return rows

    def _insert_rows(self, rows: Sequence[Row]) -> None:
        insert_rows(self.table, rows)


def insert_rows(table: StateTable, rows: Sequence[Row]) -> None:
    """Insert rows of entries as one block. Raises ClickHouseError."""
    if rows:
        first = rows[0]
        token = f"{first['stream']}/{first['entry']}/{first['run_id']}/{first['batch']}/{first['written']}"
        # A fence is asked on whichever replica takes an insert.
        fences = first["entry"] in (Claim.kind, Execution.kind)
        table.insert(pa.Table.from_pylist(list(rows), schema=SCHEMA), token=token, everywhere=fences)
