"""The ledger in a ClickHouse table (``sql/ledger.sql``): the ranges of one stream, and writes of many streams at once.

Queries have ``$table`` for its name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.ledger_folds import LedgerFolds
from ch_sink.clickhouse.ledger_rows import claim_of, fingerprint_of, intent_of, result_of, steps_of, totals_of
from ch_sink.clickhouse.ledger_table import MINE, ORDER, PARTITION, ClickHouseTaskLedger, OwnedLedger, Row, insert_rows
from ch_sink.errors import ChSinkError, TakenBack
from ch_sink.model.change import BackwardStep
from ch_sink.ports import Claim, FinishedRange, PartitionTotals, RangeIntent, Terms
from ch_sink.stream.rounds import Intend, Record, Write, Written, write_each
from ch_sink.stream.summaries import KEEP, covered, with_summaries

_NEWEST_CLAIMS = """\
WITH (SELECT groupUniqArray(stream) FROM $table
    WHERE (stream, entry, topic_id, partition, start_offset, end_offset, batch)
        IN {last:Array(Tuple(String, String, String, Int32, Int64, Int64, UInt64))}) AS streams
SELECT stream, claim_number, run_id, fact, written, has(streams, stream) AS whole FROM $table
WHERE stream IN {streams:Array(String)} AND entry = 'claim'
ORDER BY claim_number DESC, written DESC LIMIT 1 BY stream"""

_ATTEMPTS = f"""\
SELECT topic_id, partition, first, last, uniqExact(batch) AS n, groupUniqArray(fact) AS facts
FROM (SELECT topic_id, partition, start_offset, end_offset, batch, fact FROM $table
    WHERE {MINE} AND entry = 'intent') AS intents
INNER JOIN (SELECT span.1 AS topic_id, span.2 AS partition, span.3 AS first, span.4 AS last
    FROM (SELECT arrayJoin({{spans:Array(Tuple(String, Int32, Int64, Int64))}}) AS span)) AS wanted
USING (topic_id, partition)
WHERE start_offset < last AND end_offset > first
GROUP BY topic_id, partition, first, last"""

INTENDED = f"""\
SELECT topic_id, partition, max(end_offset) AS reached FROM $table
WHERE {MINE} AND entry = 'intent' GROUP BY topic_id, partition"""

STATES_AT = f"""\
SELECT partition, argMax(state, {ORDER}) AS state FROM $table
WHERE {MINE} AND entry IN ('result', 'summary') AND topic_id = {{topic_id:String}}
    AND (partition, end_offset) IN {{places:Array(Tuple(Int32, Int64))}}
GROUP BY partition"""

_STATE_BEFORE = f"""\
SELECT end_offset, state FROM $table
WHERE {MINE} AND entry IN ('result', 'summary') AND {PARTITION} AND end_offset <= {{offset:Int64}}
ORDER BY end_offset DESC, {ORDER} DESC LIMIT 1"""

_STATES_OVER = f"""\
SELECT start_offset, end_offset, state FROM $table
WHERE {MINE} AND entry IN ('result', 'summary') AND {PARTITION}
AND start_offset < least(end_offset, {{end:Int64}}) AND end_offset > {{first:Int64}}
ORDER BY start_offset, end_offset, {ORDER}"""

_STEPS = f"""\
SELECT fact FROM $table
WHERE {MINE} AND entry IN ('result', 'summary') AND {PARTITION} AND position(fact, '"steps"') > 0"""

# A result that is empty says where reading goes on after offsets were lost, and where it begins.
PROGRESS = f"""\
SELECT partition, argMax(end_offset, {ORDER}) AS next_offset FROM $table
WHERE {MINE} AND entry = 'result' AND topic_id = {{topic_id:String}}
GROUP BY partition"""

OPEN_INTENTS = f"""\
SELECT
    topic, {{topic_id:String}} AS topic_id, partition,
    if(finished > intended, reached, start) AS start_offset,
    end AS end_offset, chunk_offsets, chunk_bytes, 0 AS attempt
FROM
(
    SELECT
        partition,
        maxIf({ORDER}, entry = 'intent') AS intended,
        argMaxIf(topic, {ORDER}, entry = 'intent') AS topic,
        argMaxIf(start_offset, {ORDER}, entry = 'intent') AS start,
        argMaxIf(end_offset, {ORDER}, entry = 'intent') AS end,
        argMaxIf(chunk_offsets, {ORDER}, entry = 'intent') AS chunk_offsets,
        argMaxIf(chunk_bytes, {ORDER}, entry = 'intent') AS chunk_bytes,
        maxIf({ORDER}, entry = 'result') AS finished,
        argMaxIf(end_offset, {ORDER}, entry = 'result') AS reached
    FROM $table
    WHERE {MINE} AND entry IN ('intent', 'result') AND topic_id = {{topic_id:String}}
    GROUP BY partition
)
WHERE intended > 0 AND start <= start_offset AND start_offset < end
ORDER BY partition"""

TOPIC_IDS = f"""\
SELECT topic_id FROM $table WHERE {MINE} AND entry IN ('intent', 'result')
GROUP BY topic_id ORDER BY max({ORDER}) DESC"""

# Find the newest results by narrow columns, then read the states and counts of these only.
_HISTORY = f"""\
SELECT
    topic, topic_id, partition, start_offset, end_offset, rows, deletes, dead_letters, counts, state, fact,
    run_id, batch,
    toUnixTimestamp64Milli(started) AS started_ms,
    toUnixTimestamp64Milli(finished) AS finished_ms,
    toUnixTimestamp64Milli(source_time) AS source_time_ms
FROM $table FINAL
WHERE {MINE} AND entry = 'result' AND (topic_id, partition, start_offset, end_offset, batch) IN
(
    SELECT topic_id, partition, start_offset, end_offset, batch FROM $table
    WHERE {MINE} AND entry = 'result'
    ORDER BY {ORDER} DESC LIMIT {{limit:UInt64}}
)
ORDER BY {ORDER} DESC, topic_id, partition LIMIT {{limit:UInt64}}"""

# If a range was run more than once, all results but the last are excluded. They are few, so this is faster than picking
# the last result of each range. What summaries contain is counted there.
TOTALS = f"""\
WITH NOT arrayExists(
    c -> c.1 = topic_id AND c.2 = partition AND c.3 <= start_offset AND end_offset <= c.4,
    {{covered:Array(Tuple(String, Int32, Int64, Int64))}}) AS counted
SELECT
    topic_id, partition,
    any(topic) AS topic,
    argMax(start_offset, {ORDER}) AS last_start,
    max(end_offset) AS next_offset,
    sumIf(rows, counted) AS rows,
    sumIf(deletes, counted) AS deletes,
    sumIf(dead_letters, counted) AS dead_letters,
    sumMapIf(counts, counted) AS counts,
    toUnixTimestamp64Milli(max(finished)) AS finished_ms,
    toUnixTimestamp64Milli(max(source_time)) AS source_time_ms
FROM $table
WHERE {MINE} AND entry = 'result' AND (topic_id, partition, start_offset, end_offset, written) NOT IN
(
    SELECT topic_id, partition, start_offset, end_offset, written FROM $table
    WHERE {MINE} AND entry = 'result'
    ORDER BY topic_id, partition, start_offset, end_offset, {ORDER} DESC
    LIMIT 1, 4294967295 BY topic_id, partition, start_offset, end_offset
)
GROUP BY topic_id, partition
ORDER BY topic_id, partition"""

# The states of the ranges that begin at `last_start` of TOTALS, by the primary key: states are long, results many.
LAST_STATES = f"""\
SELECT topic_id, partition, argMax(state, {ORDER}) AS state FROM $table
WHERE {MINE} AND entry = 'result'
    AND (topic_id, partition, start_offset) IN {{ranges:Array(Tuple(String, Int32, Int64))}}
GROUP BY topic_id, partition"""


class ClickHouseLedger(OwnedLedger, ClickHouseTaskLedger):
    """The Ledger of one stream. See the protocol; raises ClickHouseError too."""

    def __init__(self, client: Client, database: str, table: str, stream: str, *, keep: int = KEEP) -> None:
        """``keep``: how many results of each partition are kept at least when old ones are folded."""
        super().__init__(client, database, table, stream)
        self.folds = LedgerFolds(self, keep)
        self._batch = 0
        self._reached: dict[tuple[str, int], int] | None = None
        self.last: tuple[object, ...] | None = None
        """The place of the last intent or result that was written under the claim."""

    def claim(self, run_id: str, terms: Terms | None = None) -> Claim:
        self.last = None
        claim = super().claim(run_id, terms)
        if self._kinds is not None and FinishedRange.kind not in self._kinds:
            self.folds.none_yet()
        return claim

    def check_claim(self) -> None:
        self.expect_own(*_looks([self]).get(self.stream, (None, False)))

    def intents(self, ranges: Sequence[RangeIntent]) -> list[RangeIntent]:
        self.check_claim()
        numbered, rows = self.intent_rows(ranges)
        insert_rows(self.table, rows)
        self.intended(numbered)
        return numbered

    def intent_rows(self, ranges: Sequence[RangeIntent]) -> tuple[list[RangeIntent], list[Row]]:
        """The intents of a new batch with their attempts, and their rows. The claim must have been checked."""
        self._batch = self.tick()
        numbered = self._numbered(ranges)
        return numbered, self.rows_of(numbered, self._batch, self._claim)

    def intended(self, numbered: Sequence[RangeIntent]) -> None:
        """The rows of these intents are inserted."""
        reached = self._intended()
        for r in numbered:
            place = (r.topic_id, r.partition)
            reached[place] = max(reached.get(place, 0), r.end)
        self._wrote(numbered)

    def _wrote(self, entries: Sequence[RangeIntent] | Sequence[FinishedRange]) -> None:
        if entries:
            r = entries[-1]
            self.last = (self.stream, r.kind, r.topic_id, r.partition, r.start, r.end, self._batch)

    def expect_own(self, newest: Claim | None, whole: bool) -> None:
        """Raises LedgerConflict if the stream has another owner, TakenBack if the ledger lacks what was written last.

        ``whole``: it has that.
        """
        self.expect_mine(newest)
        if self.last is not None and not whole:
            raise TakenBack(
                f"the ledger of stream {self.stream} lacks what this job has recorded: ClickHouse was taken back to an "
                "earlier state",
                hint="The stream is opened again, and goes on from what the ledger has.",
            )

    def results(self, results: Sequence[FinishedRange]) -> None:
        self.check_claim()
        insert_rows(self.table, self.result_rows(results))
        self.finished(results)

    def result_rows(self, results: Sequence[FinishedRange]) -> list[Row]:
        """The rows of these results. The claim must have been checked."""
        return self.rows_of(results, self._batch, self._claim)

    def finished(self, results: Sequence[FinishedRange]) -> None:
        """The rows of these results are inserted."""
        self.folds.add((r.topic_id, r.partition) for r in results)
        self._wrote(results)

    def fold(self) -> int:
        places = self.folds.due()
        if not places:
            return 0
        self.check_claim()
        assert self._claim is not None
        return self.folds.fold(places, self._claim)

    def states_at(self, topic_id: str, at: Mapping[int, int]) -> dict[int, str]:
        found = self.ask(STATES_AT, *_RANGES, topic_id=topic_id, places=sorted(at.items())) if at else []
        return {r["partition"]: str(r["state"]) for r in found}

    def state_before(self, topic_id: str, partition: int, offset: int) -> tuple[int, str] | None:
        found = self.ask(_STATE_BEFORE, *_RANGES, topic_id=topic_id, partition=partition, offset=offset)
        return (int(found[0]["end_offset"]), str(found[0]["state"])) if found else None

    def states_over(self, topic_id: str, partition: int, first: int, end: int) -> list[tuple[int, int, str]]:
        found = self.ask(_STATES_OVER, *_RANGES, topic_id=topic_id, partition=partition, first=first, end=end)
        return [(int(r["start_offset"]), int(r["end_offset"]), str(r["state"])) for r in found]

    def steps(self, topic_id: str, partition: int) -> list[BackwardStep]:
        found = self.ask(_STEPS, *_RANGES, topic_id=topic_id, partition=partition)
        return sorted({step for r in found for step in steps_of(r["fact"])}, key=lambda step: step.offset)

    def progress(self, topic_id: str) -> dict[int, int]:
        return {int(r["partition"]): int(r["next_offset"]) for r in self.ask(PROGRESS, "result", topic_id=topic_id)}

    def open_intents(self, topic_id: str) -> list[RangeIntent]:
        return [intent_of(r) for r in self.ask(OPEN_INTENTS, "intent", topic_id=topic_id)]

    def topic_ids(self) -> list[str]:
        return [str(r["topic_id"]) for r in self.ask(TOPIC_IDS, "intent", "result")]

    def history(self, limit: int) -> list[FinishedRange]:
        return [result_of(r) for r in self.ask(_HISTORY, "result", limit=limit)]

    def totals(self) -> list[PartitionTotals]:
        summaries = self.folds.summaries()
        while True:
            known = [(*place, *span) for place, folded in summaries.items() for span in covered(folded)]
            found = self.ask(TOTALS, "result", covered=known)
            last = [(r["topic_id"], r["partition"], r["last_start"]) for r in found]
            answers = self.ask(LAST_STATES, "result", ranges=last)
            before, summaries = summaries, self.folds.summaries()
            if summaries == before:  # else the owner has folded results in between
                break
        states = {(r["topic_id"], r["partition"]): str(r["state"]) for r in answers}
        return with_summaries([totals_of(r, states[r["topic_id"], r["partition"]]) for r in found], summaries)

    def _numbered(self, ranges: Sequence[RangeIntent]) -> list[RangeIntent]:
        """The ranges, with how often they were tried before, and under what."""
        reached = self._intended()
        again = [r for r in ranges if r.start < reached.get((r.topic_id, r.partition), 0)]
        if not again:
            return [replace(r, batch=self._batch) for r in ranges]
        spans = [(r.topic_id, r.partition, r.start, r.end) for r in again]
        tried = {(f["topic_id"], f["partition"], f["first"], f["last"]): f for f in self.ask(_ATTEMPTS, spans=spans)}
        summaries = self.folds.summaries()
        numbered = []
        for r in ranges:
            found: Mapping[str, Any] = tried.get((r.topic_id, r.partition, r.start, r.end), {"n": 0, "facts": ()})
            mine = summaries.get((r.topic_id, r.partition), ())
            folded = [s.batches for s in mine if s.start < r.end and s.end > r.start]
            earlier = {fingerprint_of(str(fact)) for fact in found["facts"]} | ({""} if folded else set())
            attempt = int(found["n"]) + sum(folded)
            numbered.append(replace(r, attempt=attempt, batch=self._batch, earlier=tuple(sorted(earlier))))
        return numbered

    def _intended(self) -> dict[tuple[str, int], int]:
        """The highest intended offset by topic and partition; queried once, then kept."""
        if self._reached is None:
            found = self.ask(INTENDED, "intent")
            self._reached = {(r["topic_id"], r["partition"]): int(r["reached"]) for r in found}
        return self._reached


_RANGES = ("result", "summary")


def write_together(writes: Sequence[Write]) -> list[Written]:
    """Write them all, those to the same table at once: one look at their claims, one insert. See WriteAll.

    A stream appears once.
    """
    tables: dict[tuple[int, str], list[int]] = {}
    found: dict[int, Written] = {}
    for number, write in enumerate(writes):
        if isinstance(write.ledger, ClickHouseLedger):
            table = write.ledger.table
            tables.setdefault((id(table.client), table.qualified), []).append(number)
        else:
            [found[number]] = write_each([write])
    for numbers in tables.values():
        some = [writes[number] for number in numbers]
        found |= zip(numbers, write_each(some) if len(some) == 1 else _at_once(some), strict=True)
    return [found[number] for number in range(len(writes))]


def _at_once(writes: Sequence[Write]) -> list[Written]:
    ledgers = [ledger for write in writes if isinstance(ledger := write.ledger, ClickHouseLedger)]
    answers: list[Written] = [None] * len(writes)
    rows: list[Row] = []
    accepted: list[int] = []
    try:
        looks = _looks(ledgers)
        for number, (ledger, write) in enumerate(zip(ledgers, writes, strict=True)):
            try:
                ledger.expect_own(*looks.get(ledger.stream, (None, False)))
                if isinstance(write, Intend):
                    answers[number], own = ledger.intent_rows(write.ranges)
                else:
                    own = ledger.result_rows(write.results)
            except ChSinkError as error:
                answers[number] = error
            else:
                rows += own
                accepted.append(number)
        insert_rows(ledgers[0].table, rows)
    except ChSinkError as error:
        return [answer if isinstance(answer, ChSinkError) else error for answer in answers]
    for number in accepted:
        write, answer = writes[number], answers[number]
        if isinstance(write, Intend) and isinstance(answer, list):
            ledgers[number].intended(answer)
        elif isinstance(write, Record):
            ledgers[number].finished(write.results)
    return answers


def _looks(ledgers: Sequence[ClickHouseLedger]) -> dict[str, tuple[Claim, bool]]:
    """By stream: the newest claim, and whether the ledger has what was written last under it."""
    last = [ledger.last for ledger in ledgers if ledger.last is not None]
    rows = ledgers[0].table.rows(_NEWEST_CLAIMS, streams=[ledger.stream for ledger in ledgers], last=last)
    return {str(row["stream"]): (claim_of(row), bool(row["whole"])) for row in rows}
