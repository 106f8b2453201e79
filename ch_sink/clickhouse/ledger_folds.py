"""Folds old results of a stream into summaries, in steps that a kill cannot separate to harm.

    insert summaries ─▶ delete progress ─▶ delete intents and results ─▶ delete summaries that others contain

Whoever reads counts what a summary contains once, whether or not it was deleted yet. Partitions of a stream come due
together, and each step is one request for all of them. A batch folds at most `_PAGE` results, so none waits for long;
what is left is folded behind the next ones, and nothing is deleted before all is folded.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ch_sink.clickhouse.ledger_rows import result_of, summary_of
from ch_sink.clickhouse.ledger_table import MINE, ORDER, LedgerTable
from ch_sink.errors import AccessDenied
from ch_sink.ports import Claim, RangeSummary
from ch_sink.stream.summaries import KEEP, Written, covered, fold, fold_due, standing

log = logging.getLogger("ch_sink")

Place = tuple[str, int]
"""Topic id and partition."""

_PAGE = 5_000
"""How many results are folded at once."""
_AT_ONCE = 100
"""How many partitions are folded at once."""
_CLAIMS = 20
"""How many of the newest claims are kept."""

_FIGURES = """\
    topic, topic_id, partition, start_offset, end_offset, rows, deletes, dead_letters, counts, state, fact,
    toUnixTimestamp64Milli(started) AS started_ms,
    toUnixTimestamp64Milli(finished) AS finished_ms,
    toUnixTimestamp64Milli(source_time) AS source_time_ms,
    claim_number, written, run_id, batch"""

# A few for each partition, however long the stream has run.
SUMMARIES = f"""\
SELECT attempt AS batches,
{_FIGURES}
FROM $table FINAL
WHERE {MINE} AND entry = 'summary' ORDER BY topic_id, partition, start_offset, end_offset"""

RESULTS_BY_PLACE = f"""\
SELECT topic_id, partition, count() AS n FROM $table
WHERE {MINE} AND entry = 'result' GROUP BY topic_id, partition ORDER BY topic_id, partition"""

_SPANS = "Array(Tuple(String, Int32, Int64, Int64, UInt64, UInt64))"
_PLACES = "(topic_id, partition) IN {places:Array(Tuple(String, Int32))}"
_WITHIN = "c.1 = topic_id AND c.2 = partition AND c.3 <= start_offset AND end_offset <= c.4"

# The oldest results that may be folded: of each partition all but the newest ones, and none that summaries contain.
# They are found by narrow columns, before their states are read.
_FOLDABLE = f"""\
SELECT
{_FIGURES}
FROM $table FINAL
WHERE {MINE} AND entry = 'result' AND {_PLACES} AND (claim_number, written) IN
(
    SELECT claim_number, written FROM
    (
        SELECT topic_id, partition, claim_number, written FROM $table
        WHERE {MINE} AND entry = 'result' AND {_PLACES}
            AND NOT arrayExists(c -> {_WITHIN} AND (claim_number, written) <= (c.5, c.6), {{folded:{_SPANS}}})
        ORDER BY {ORDER} DESC LIMIT {{keep:UInt64}}, 4294967295 BY topic_id, partition
    )
    ORDER BY topic_id, partition, {ORDER} LIMIT {{limit:UInt64}}
)
ORDER BY topic_id, partition, {ORDER}"""

_INTENTS_WITHIN = f"""\
SELECT topic_id, partition, start_offset, end_offset FROM $table
WHERE {MINE} AND entry = 'intent'
    AND arrayExists(c -> {_WITHIN}, {{spans:Array(Tuple(String, Int32, Int64, Int64))}})"""

# The newest result that need not be kept.
_KEPT_FROM = f"""\
SELECT topic_id, partition, claim_number, written FROM $table
WHERE {MINE} AND entry = 'result' AND {_PLACES}
ORDER BY {ORDER} DESC LIMIT {{keep:UInt64}}, 1 BY topic_id, partition"""

# A rerun's entries are newer than the summary that contains them, and stay.
_SWEEP = f"""\
DELETE FROM $table
WHERE {MINE} AND entry IN {{entries:Array(String)}} AND arrayExists(
    c -> {_WITHIN} AND (claim_number, if(entry = 'progress', batch, written)) <= (c.5, c.6), {{covered:{_SPANS}}})"""

_SWEEP_SUMMARIES = f"""\
DELETE FROM $table
WHERE {MINE} AND entry = 'summary' AND (topic_id, partition, start_offset, end_offset, claim_number, written)
    IN {{void:{_SPANS}}}"""

_SWEEP_CLAIMS = f"""\
DELETE FROM $table
WHERE {MINE} AND entry = 'claim' AND claim_number < {{claim_number:UInt64}}"""


class LedgerFolds:
    """The summaries of one stream, and when new ones are due."""

    def __init__(self, ledger: LedgerTable, keep: int = KEEP) -> None:
        self._ledger, self._keep = ledger, keep
        self._due = fold_due(ledger.stream, keep)
        self._counts: dict[Place, int] | None = None

    def add(self, places: Iterable[Place]) -> None:
        """Each of these partitions got one more result."""
        if self._counts is not None:
            for place in places:
                self._counts[place] = self._counts.get(place, 0) + 1

    def none_yet(self) -> None:
        """The stream has no results."""
        self._counts = {}

    def due(self) -> list[Place]:
        """The partitions with enough results to fold."""
        if self._counts is None:
            found = self._ledger.ask(RESULTS_BY_PLACE, "result")
            self._counts = {(r["topic_id"], r["partition"]): int(r["n"]) for r in found}
        return sorted(place for place, n in self._counts.items() if n >= self._due)

    def summaries(self) -> dict[Place, list[RangeSummary]]:
        """The summaries that stand, by partition, in the order of their offsets."""
        return {place: _summaries(standing(written)) for place, written in self._written().items()}

    def fold(self, places: Sequence[Place], owner: Claim) -> int:
        """Fold these partitions, which are due; returns how many results the summaries contain newly.

        Raises ClickHouseError; what is done by then is finished by the next fold.
        """
        places, before = places[:_AT_ONCE], self._written()
        stands = {place: standing(before.get(place, ())) for place in places}
        results = self._foldable(stands)
        spans = [(*place, min(w.entry.start for w in r), max(w.entry.end for w in r)) for place, r in results.items()]
        intents: dict[Place, list[tuple[int, int]]] = {}
        for r in self._ledger.ask(_INTENTS_WITHIN, spans=spans) if spans else ():
            intents.setdefault((r["topic_id"], r["partition"]), []).append((r["start_offset"], r["end_offset"]))
        now = time.time()
        made = [s for place, r in results.items() for s in fold(r, stands[place], intents.get(place, ()), now)]
        self._ledger.insert(made, under=owner)
        self._count(places, {place: len(found) for place, found in results.items()})
        if not self.due():
            self._sweep(owner)
        return sum(map(len, results.values()))

    def _foldable(self, stands: Mapping[Place, Sequence[Written]]) -> dict[Place, list[Written]]:
        """The oldest results of these partitions that may be folded, a page of them."""
        folded = [
            (*place, start, end, *_split(max(w.order for w in written)))
            for place, written in stands.items()
            for start, end in covered(_summaries(written))
        ]
        found = self._ledger.ask(_FOLDABLE, places=list(stands), keep=self._keep, folded=folded, limit=_PAGE)
        results: dict[Place, list[Written]] = {}
        for r in found:
            results.setdefault((r["topic_id"], r["partition"]), []).append(Written(_order(r), result_of(r)))
        return results

    def _count(self, places: Sequence[Place], taken: Mapping[Place, int]) -> None:
        """Results were folded; what a sweep could not delete does not count again."""
        assert self._counts is not None
        full = sum(taken.values()) == _PAGE
        whole = places if not full else places[: places.index(max(taken))]
        for place in places:
            left = self._counts[place] - taken.get(place, 0)
            self._counts[place] = min(left, self._keep) if place in whole else left

    def _sweep(self, owner: Claim) -> None:
        """Delete what summaries contain, and claims that newer ones made void."""
        all_written = self._written()
        found = self._ledger.ask(_KEPT_FROM, places=list(all_written), keep=self._keep)
        kept_from = {(r["topic_id"], r["partition"]): _order(r) for r in found}
        cover, void = [], []
        for place in kept_from:
            written = all_written[place]
            stands = standing(written)
            orders = {w.order for w in stands}
            # A stream that reads again what was folded has its newest results within a summary.
            newest = _split(min(kept_from[place], max(orders)))
            cover += [(*place, start, end, *newest) for start, end in covered(_summaries(stands))]
            void += [(*place, w.entry.start, w.entry.end, *_split(w.order)) for w in written if w.order not in orders]
        try:
            if cover:
                self._ledger.delete(_SWEEP, entries=["progress"], covered=cover)
                self._ledger.delete(_SWEEP, entries=["intent", "result"], covered=cover)
            if void:
                self._ledger.delete(_SWEEP_SUMMARIES, void=void)
            if owner.number > 2 * _CLAIMS:
                self._ledger.delete(_SWEEP_CLAIMS, claim_number=owner.number - _CLAIMS)
        except AccessDenied:
            log.warning(
                "the ledger %s grows because this user may not delete its old entries; "
                "GRANT ALTER DELETE ON %s TO this user",
                *(self._ledger.table.qualified, self._ledger.table.qualified),
            )

    def _written(self) -> dict[Place, list[Written]]:
        by_place: dict[Place, list[Written]] = {}
        for r in self._ledger.ask(SUMMARIES, RangeSummary.kind):
            by_place.setdefault((r["topic_id"], r["partition"]), []).append(Written(_order(r), summary_of(r)))
        return by_place


def _summaries(written: Iterable[Written]) -> list[RangeSummary]:
    return [w.entry for w in written if isinstance(w.entry, RangeSummary)]


def _order(r: Mapping[str, Any]) -> int:
    """The place of an entry in the order of the stream's entries: by claim first, since clocks may differ."""
    return int(r["claim_number"]) << 64 | int(r["written"])


def _split(order: int) -> tuple[int, int]:
    return order >> 64, order & (1 << 64) - 1
