"""Folds old results of a stream into summaries, in steps that a kill cannot separate to harm.

    insert summaries ─▶ delete progress ─▶ delete intents and results ─▶ delete summaries that others contain

Whoever reads counts what a summary contains once, whether or not it was deleted yet.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ch_sink.clickhouse import ledger_queries as ask
from ch_sink.clickhouse.ledger_rows import result_of, summary_of
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.errors import AccessDenied
from ch_sink.ports import Claim, RangeSummary
from ch_sink.stream.summaries import KEEP, Written, covered, fold, fold_due, standing

__all__ = ["LedgerFolds", "Place"]

log = logging.getLogger("ch_sink")

Place = tuple[str, int]
"""Topic id and partition."""
Rows = Callable[..., list[dict[str, Any]]]

_PAGE = 20_000
"""How many results are folded at once."""
_CLAIMS = 20
"""How many of the newest claims are kept."""


class LedgerFolds:
    """The summaries of one stream, and when new ones are due."""

    def __init__(self, table: StateTable, stream: str, rows: Rows, keep: int = KEEP) -> None:
        """``rows`` runs a query of `ledger_queries` for this stream."""
        self._table, self._stream, self._rows, self._keep = table, stream, rows, keep
        self._due = fold_due(stream, keep)
        self._counts: dict[Place, int] | None = None

    def add(self, places: Iterable[Place]) -> None:
        """Each of these partitions got one more result."""
        if self._counts is not None:
            for place in places:
                self._counts[place] = self._counts.get(place, 0) + 1

    def none_yet(self) -> None:
        """The stream has no results."""
        self._counts = {}

    def forget(self) -> None:
        """Count the results again before the next fold."""
        self._counts = None

    def due(self) -> list[Place]:
        """The partitions with so many results that they are to be folded."""
        if self._counts is None:
            found = self._rows(ask.RESULTS_BY_PLACE)
            self._counts = {(r["topic_id"], r["partition"]): int(r["n"]) for r in found}
        return [place for place, n in self._counts.items() if n >= self._due]

    def summaries(self) -> dict[Place, list[RangeSummary]]:
        """The summaries that stand, by partition, in the order of their offsets."""
        found = {}
        for place, written in self._written().items():
            found[place] = [w.entry for w in standing(written) if isinstance(w.entry, RangeSummary)]
        return found

    def fold(self, places: Sequence[Place], write: Callable[[Sequence[RangeSummary]], None]) -> int:
        """Write the summaries of these partitions; returns how many results they contain newly."""
        before = self._written()
        done = 0
        for place in places:
            made, taken = self._folded(place, standing(before.get(place, ())))
            write(made)
            if self._counts is not None:
                # A page that was full leaves more to fold; what a sweep could not delete does not count again.
                left = self._counts[place] - taken
                self._counts[place] = left if taken == _PAGE else min(left, self._keep)
            done += taken
        return done

    def sweep(self, owner: Claim) -> None:
        """Delete what summaries contain, and claims that newer ones made void."""
        still = set(self.due())
        cover, void = [], []
        for place, written in self._written().items():
            if place in still:
                continue
            stands = standing(written)
            kept_from = self._rows(ask.KEPT_FROM, topic_id=place[0], partition=place[1], keep=self._keep)
            if not kept_from:
                continue
            # A stream that reads again what was folded has its newest results within a summary.
            newest = _split(min(_order(kept_from[0]), max(w.order for w in stands)))
            ranges = covered(w.entry for w in stands if isinstance(w.entry, RangeSummary))
            cover += [(*place, start, end, *newest) for start, end in ranges]
            orders = {w.order for w in stands}
            void += [(*place, w.entry.start, w.entry.end, *_split(w.order)) for w in written if w.order not in orders]
        try:
            if cover:
                self._delete(ask.SWEEP, entries=["progress"], covered=cover)
                self._delete(ask.SWEEP, entries=["intent", "result"], covered=cover)
            if void:
                self._delete(ask.SWEEP_SUMMARIES, void=void)
            if owner.number > 2 * _CLAIMS:
                self._delete(ask.SWEEP_CLAIMS, claim_number=owner.number - _CLAIMS)
        except AccessDenied:
            log.warning(
                "the ledger %s grows, since this user may not delete its old entries; "
                "GRANT ALTER DELETE ON %s TO this user",
                *(self._table.qualified, self._table.qualified),
            )

    def _folded(self, place: Place, stands: Sequence[Written]) -> tuple[list[RangeSummary], int]:
        at = {"topic_id": place[0], "partition": place[1]}
        known = covered(w.entry for w in stands if isinstance(w.entry, RangeSummary))
        since = _split(max((w.order for w in stands), default=0))
        found = self._rows(ask.FOLDABLE, keep=self._keep, covered=known, since=since, limit=_PAGE, **at)
        results = [Written(_order(r), result_of(r)) for r in found]
        if not results:
            return [], 0
        span = {"start": min(w.entry.start for w in results), "end": max(w.entry.end for w in results)}
        intents = [(r["start_offset"], r["end_offset"]) for r in self._rows(ask.INTENTS_WITHIN, **span, **at)]
        return fold(results, stands, intents, time.time()), len(results)

    def _written(self) -> dict[Place, list[Written]]:
        by_place: dict[Place, list[Written]] = {}
        for r in self._rows(ask.SUMMARIES):
            by_place.setdefault((r["topic_id"], r["partition"]), []).append(Written(_order(r), summary_of(r)))
        return by_place

    def _delete(self, sql: str, **parameters: object) -> None:
        self._table.client.command(
            sql.replace("$table", self._table.qualified),
            {"stream": self._stream, **parameters},
            settings={"lightweight_deletes_sync": 1},
            doing=f"delete folded entries of {self._table.qualified}",
        )


def _order(r: Mapping[str, Any]) -> int:
    """The place of an entry in the order of the stream's entries: by claim first, since clocks may differ."""
    return int(r["claim_number"]) << 64 | int(r["written"])


def _split(order: int) -> tuple[int, int]:
    return order >> 64, order & (1 << 64) - 1
