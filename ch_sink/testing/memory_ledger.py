"""The ledger in memory; see `ch_sink.ports.ledger`. Nothing survives the process."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ch_sink.ports import (
    ChunkCut,
    Claim,
    Fact,
    FinishedRange,
    PartitionTotals,
    RangeIntent,
    RangeProgress,
    SchemaChangeBegun,
    SchemaChangeFinished,
)
from ch_sink.stream.claims import displaced, mine, new_claim, retired

__all__ = ["MemoryLedger"]

F = TypeVar("F", bound=Fact)


@dataclass(slots=True)
class _Book:
    """What the ledgers of all jobs share: the entries, in the order in which they were written."""

    claims: list[Claim] = field(default_factory=list)
    batches: list[list[RangeIntent]] = field(default_factory=list)
    ranges: list[FinishedRange | RangeProgress] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    cuts: set[ChunkCut] = field(default_factory=set)
    topics: list[str] = field(default_factory=list)
    """Ids of the topics of intents and results."""

    @property
    def newest(self) -> Claim | None:
        return self.claims[-1] if self.claims else None

    @property
    def results(self) -> list[FinishedRange]:
        return [r for r in self.ranges if isinstance(r, FinishedRange)]


class MemoryLedger:
    """The Ledger of one stream and the TaskLedger of its tasks.

    ``beside``: another job's ledger, whose entries this one shares.
    """

    def __init__(self, stream: str, beside: "MemoryLedger | None" = None) -> None:
        self.stream = stream
        self._book: _Book = beside._book if beside is not None else _Book()
        self._claim: Claim | None = None

    def claim(self, run_id: str) -> None:
        self._claim = new_claim(self.stream, run_id, self._book.newest)
        self._book.claims.append(self._claim)

    def release(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            given_back = retired(self.stream, claim)
            if mine(claim, self._book.newest):
                self._book.claims.append(given_back)

    def check_claim(self) -> None:
        if not mine(self._claim, self._book.newest):
            raise displaced(self.stream, self._book.newest)

    def intents(self, ranges: Sequence[RangeIntent]) -> list[RangeIntent]:
        self.check_claim()
        numbered = [replace(r, attempt=self._overlaps(r)) for r in ranges]
        self._book.batches.append(numbered)
        self._book.topics += dict.fromkeys(r.topic_id for r in ranges)
        return numbered

    def _overlaps(self, r: RangeIntent) -> int:
        return sum(
            any(
                (o.topic_id, o.partition) == (r.topic_id, r.partition) and o.start < r.end and o.end > r.start
                for o in batch
            )
            for batch in self._book.batches
        )

    def results(self, results: Sequence[FinishedRange]) -> None:
        self.check_claim()
        run_id = self._claim.run_id if self._claim else ""
        self._book.topics += dict.fromkeys(r.topic_id for r in results)
        self._book.ranges.extend(replace(r, run_id=run_id, batch=len(self._book.batches)) for r in results)

    def state_at(self, topic_id: str, partition: int, offset: int) -> str | None:
        for r in reversed(self._book.results):
            if (r.topic_id, r.partition, r.end) == (topic_id, partition, offset):
                return r.state
        return None

    def progress(self, topic_id: str) -> dict[int, int]:
        return {r.partition: r.end for r in self._book.results if r.topic_id == topic_id}

    def open_intents(self, topic_id: str) -> list[RangeIntent]:
        newest: dict[int, tuple[int, RangeIntent]] = {}
        for number, batch in enumerate(self._book.batches, 1):
            newest |= {r.partition: (number, r) for r in batch if r.topic_id == topic_id}
        found: list[RangeIntent] = []
        for partition, (number, intent) in sorted(newest.items()):
            place = topic_id, partition
            since = [r.end for r in self._book.results if (r.topic_id, r.partition) == place and r.batch >= number]
            start = since[-1] if since else intent.start
            if intent.start <= start < intent.end:
                found.append(replace(intent, start=start, attempt=0))
        return found

    def topic_ids(self) -> list[str]:
        return list(dict.fromkeys(reversed(self._book.topics)))

    def last_intents(self) -> list[RangeIntent]:
        last = self._book.batches[-1] if self._book.batches else []
        return sorted(last, key=lambda r: (r.topic_id, r.partition, r.start))

    def history(self, limit: int) -> list[FinishedRange]:
        return list(reversed(self._book.results))[:limit]

    def totals(self) -> list[PartitionTotals]:
        done: dict[tuple[str, int], dict[tuple[int, int], FinishedRange]] = {}
        for r in self._book.results:
            ranges = done.setdefault((r.topic_id, r.partition), {})
            ranges.pop((r.start, r.end), None)
            ranges[r.start, r.end] = r
        return [_totals(list(done[place].values())) for place in sorted(done)]

    def put_progress(self, progress: RangeProgress) -> None:
        self._book.ranges.append(progress)

    def progress_of(self, topic_id: str, partition: int, start: int) -> RangeProgress | None:
        furthest: RangeProgress | None = None
        for r in self._book.ranges:
            if (r.topic_id, r.partition, r.start) != (topic_id, partition, start):
                continue
            if isinstance(r, FinishedRange):
                furthest = None
            elif furthest is None or r.end >= furthest.end:
                furthest = r
        return furthest

    def put_cut(self, cut: ChunkCut) -> None:
        self._book.cuts.add(cut)

    def cuts(self, topic_id: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for cut in sorted(self._book.cuts, key=lambda c: (c.partition, c.offset)):
            if cut.topic_id == topic_id:
                found.setdefault(cut.partition, []).append(cut.offset)
        return found

    def record(self, *facts: Fact) -> None:
        self.check_claim()
        self._book.facts.extend(facts)

    def facts(self, kind: type[F]) -> list[F]:
        found: dict[F, None] = {}
        for fact in self._book.facts:
            if isinstance(fact, kind):
                found.pop(fact, None)
                found[fact] = None
        return list(found)

    def open_schema_change(self) -> SchemaChangeBegun | None:
        for fact in reversed(self._book.facts):
            if isinstance(fact, SchemaChangeFinished):
                return None
            if isinstance(fact, SchemaChangeBegun):
                return fact
        return None


def _totals(results: list[FinishedRange]) -> PartitionTotals:
    counts: dict[str, int] = {}
    for r in results:
        for kind, n in r.counts.items():
            counts[kind] = counts.get(kind, 0) + n
    last = results[-1]
    return PartitionTotals(
        last.topic,
        last.topic_id,
        last.partition,
        max(r.end for r in results),
        sum(r.rows for r in results),
        sum(r.deletes for r in results),
        sum(r.dead_letters for r in results),
        counts,
        last.state,
        max(r.finished for r in results),
        max(r.source_time for r in results),
    )
