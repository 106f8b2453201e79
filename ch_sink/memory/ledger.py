"""The ledger in memory; see `ch_sink.ports.ledger`. Nothing survives the process."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ch_sink.model.change import BackwardStep
from ch_sink.model.counts import total
from ch_sink.ports import (
    Claim,
    Command,
    Execution,
    Fact,
    Fence,
    FinishedRange,
    PartitionTotals,
    RangeIntent,
    RangeProgress,
    RangeSummary,
    ReleaseGroup,
    RowsEdited,
    Terms,
)
from ch_sink.stream.claims import displaced, mine, new_claim, next_execution, retired, superseded
from ch_sink.stream.summaries import KEEP, Written, covered, fold, fold_due, standing, with_summaries

F = TypeVar("F", bound=Fact)


@dataclass(slots=True)
class _Book:
    """Shared by the ledgers of all jobs: the entries, in the order in which they were written."""

    claims: list[Claim] = field(default_factory=list)
    batches: list[list[RangeIntent]] = field(default_factory=list)
    ranges: list[FinishedRange | RangeProgress | RangeSummary] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    releases: dict[tuple[str, int], ReleaseGroup] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    """Ids of the topics of intents and results."""
    keep: int = KEEP
    """How many results of each partition are kept at least when old ones are folded."""
    executions: dict[tuple[str, int], Execution] = field(default_factory=dict)
    """Topic id and partition → the newest execution."""

    @property
    def newest(self) -> Claim | None:
        return self.claims[-1] if self.claims else None

    @property
    def results(self) -> list[FinishedRange]:
        return [r for r in self.ranges if isinstance(r, FinishedRange)]

    def summaries(self, topic_id: str, partition: int) -> list[Written]:
        """The summaries of a partition that stand."""
        return standing(
            Written(order, r)
            for order, r in enumerate(self.ranges)
            if isinstance(r, RangeSummary) and (r.topic_id, r.partition) == (topic_id, partition)
        )


@dataclass(frozen=True, slots=True)
class MemoryFence:
    """The Fence of one execution."""

    book: _Book
    stream: str
    own: Execution
    claim: Claim | None
    repeats: bool
    condition: str = ""

    @property
    def execution(self) -> str:
        return f"{self.own.claim}-{self.own.number}"

    @property
    def query_id(self) -> str:
        return f"{self.partition_id}{self.execution}/"

    @property
    def partition_id(self) -> str:
        return f"ch_sink/{self.stream}/{self.own.topic_id}/{self.own.partition}/"

    def check(self) -> None:
        self.check_claim()
        self.check_batch()
        if self.book.executions[self.own.topic_id, self.own.partition] != self.own:
            raise superseded(self.stream, self.own.partition)

    def check_batch(self) -> None:
        """Raises LedgerConflict if a later batch reads the partition."""
        place, batch = (self.own.topic_id, self.own.partition), self.own.of_batch
        later = self.book.batches[batch:] if batch else []
        if any((r.topic_id, r.partition) == place for ranges in later for r in ranges):
            raise superseded(self.stream, self.own.partition)

    def check_claim(self) -> None:
        """Raises LedgerConflict if another job has claimed the stream since the task was planned."""
        if self.claim is not None and not mine(self.claim, self.book.newest):
            raise displaced(self.stream, self.book.newest)


@dataclass(frozen=True, slots=True)
class MemoryGroupFence:
    """The Fence of the first executions of several tasks: see `TaskLedger.together`."""

    book: _Book
    stream: str
    topic_id: str
    partitions: Sequence[int]
    claim: Claim | None
    batch: int
    repeats: bool = False
    condition: str = ""
    execution: str = "group"
    query_id: str = ""
    partition_id: str = ""

    def check(self) -> None:
        if self.claim is not None and not mine(self.claim, self.book.newest):
            raise displaced(self.stream, self.book.newest)
        own = self.claim.number if self.claim is not None else 0
        for partition in self.partitions:
            newest = self.book.executions.get((self.topic_id, partition))
            if newest is not None and newest.claim >= own and newest.batch >= self.batch:
                raise superseded(self.stream, partition)


class MemoryLedger:
    """The Ledger of one stream and the TaskLedger of its tasks.

    ``beside``: another job's ledger, whose entries this one shares.
    """

    def __init__(self, stream: str, beside: "MemoryLedger | None" = None) -> None:
        self.stream = stream
        self._book: _Book = beside._book if beside is not None else _Book()
        self._claim: Claim | None = None

    def claim(self, run_id: str, terms: Terms | None = None) -> Claim:
        self._claim = new_claim(self.stream, run_id, self._book.newest, terms)
        self._book.claims.append(self._claim)
        return self._claim

    def restate(self, terms: Terms) -> None:
        self.check_claim()
        assert self._claim is not None
        self._claim = replace(self._claim, terms=terms)
        self._book.claims.append(self._claim)

    def last_claim(self) -> Claim | None:
        return self._book.newest

    def owner(self) -> Claim | None:
        newest = self._book.newest
        return None if newest is None or newest.released else newest

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
        batch = len(self._book.batches) + 1
        numbered = [
            replace(r, attempt=self._overlaps(r), batch=batch, earlier=tuple(sorted(self._fingerprints(r))))
            for r in ranges
        ]
        self._book.batches.append(numbered)
        self._book.topics += dict.fromkeys(r.topic_id for r in ranges)
        return numbered

    def _fingerprints(self, r: RangeIntent) -> set[str]:
        place = (r.topic_id, r.partition)
        found = {
            o.fingerprint
            for batch in self._book.batches
            for o in batch
            if (o.topic_id, o.partition) == place and o.start < r.end and o.end > r.start
        }
        return found | {"" for s in self._summaries(*place) if s.start < r.end and s.end > r.start}

    def _overlaps(self, r: RangeIntent) -> int:
        return sum(
            any(
                (o.topic_id, o.partition) == (r.topic_id, r.partition) and o.start < r.end and o.end > r.start
                for o in batch
            )
            for batch in self._book.batches
        ) + sum(s.batches for s in self._summaries(r.topic_id, r.partition) if s.start < r.end and s.end > r.start)

    def _summaries(self, topic_id: str, partition: int) -> list[RangeSummary]:
        return [w.entry for w in self._book.summaries(topic_id, partition) if isinstance(w.entry, RangeSummary)]

    def results(self, results: Sequence[FinishedRange]) -> None:
        self.check_claim()
        run_id = self._claim.run_id if self._claim else ""
        self._book.topics += dict.fromkeys(r.topic_id for r in results)
        self._book.ranges.extend(replace(r, run_id=run_id, batch=len(self._book.batches)) for r in results)

    def keep(self, results: int) -> None:
        """Fold all but so many results of each partition, here and in the ledgers of other jobs."""
        self._book.keep = results

    def fold(self) -> int:
        by_place: dict[tuple[str, int], list[Written]] = {}
        for order, r in enumerate(self._book.ranges):
            if isinstance(r, FinishedRange):
                by_place.setdefault((r.topic_id, r.partition), []).append(Written(order, r))
        due = {
            place: found for place, found in by_place.items() if len(found) >= fold_due(self.stream, self._book.keep)
        }
        if due:
            self.check_claim()
        for place, found in due.items():
            self._fold(place, found[: -self._book.keep])
        return sum(len(found) - self._book.keep for found in due.values())

    def _fold(self, place: tuple[str, int], results: Sequence[Written]) -> None:
        book = self._book
        intents = [(r.start, r.end) for batch in book.batches for r in batch if (r.topic_id, r.partition) == place]
        before = book.summaries(*place)
        made = fold(results, before, intents, time.time())
        known = covered([*(w.entry for w in before if isinstance(w.entry, RangeSummary)), *made])
        newest = max(results, key=lambda w: w.order)

        def inside(r: RangeIntent | FinishedRange | RangeProgress) -> bool:
            same = (r.topic_id, r.partition) == place
            return same and any(start <= r.start and r.end <= end for start, end in known)

        kept = [
            r
            for order, r in enumerate(book.ranges)
            if not isinstance(r, RangeSummary) and (order > newest.order or not inside(r))
        ]
        # In place, since the ledgers of other jobs share the book.
        book.ranges[:] = [*(r for r in book.ranges if isinstance(r, RangeSummary)), *made, *kept]
        batches = newest.entry.batch if isinstance(newest.entry, FinishedRange) else 0
        for batch in book.batches[:batches]:
            batch[:] = [r for r in batch if not inside(r)]

    def states_at(self, topic_id: str, at: Mapping[int, int]) -> dict[int, str]:
        found: list[FinishedRange | RangeSummary] = [s for p in at for s in self._summaries(topic_id, p)]
        found += [r for r in self._book.results if r.topic_id == topic_id]
        return {r.partition: r.state for r in found if at.get(r.partition) == r.end}

    def _read(self, topic_id: str, partition: int) -> list[FinishedRange | RangeSummary]:
        """The summaries of a partition that stand, and its results."""
        mine = [r for r in self._book.results if (r.topic_id, r.partition) == (topic_id, partition)]
        return [*self._summaries(topic_id, partition), *mine]

    def state_before(self, topic_id: str, partition: int, offset: int) -> tuple[int, str] | None:
        found = enumerate(self._read(topic_id, partition))
        below = [(r.end, number, r.state) for number, r in found if r.end <= offset]
        return (max(below)[0], max(below)[2]) if below else None

    def states_over(self, topic_id: str, partition: int, first: int, end: int) -> list[tuple[int, int, str]]:
        found = self._read(topic_id, partition)
        read = [(r.start, r.end, r.state) for r in found if r.start < min(r.end, end) and r.end > first]
        return sorted(read, key=lambda one: one[:2])

    def steps(self, topic_id: str, partition: int) -> list[BackwardStep]:
        found = {step for r in self._read(topic_id, partition) for step in r.steps}
        return sorted(found, key=lambda step: step.offset)

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

    def history(self, limit: int) -> list[FinishedRange]:
        return list(reversed(self._book.results))[:limit]

    def totals(self) -> list[PartitionTotals]:
        done: dict[tuple[str, int], dict[tuple[int, int], FinishedRange]] = {}
        for r in self._book.results:
            ranges = done.setdefault((r.topic_id, r.partition), {})
            ranges.pop((r.start, r.end), None)
            ranges[r.start, r.end] = r
        folded = {place: self._summaries(*place) for place in done}
        return with_summaries([_totals(list(done[place].values()), folded[place]) for place in sorted(done)], folded)

    def begin(self, topic_id: str, partition: int, claim: Claim | None, work: str) -> Fence:
        before = self._book.executions.get((topic_id, partition))
        mine = Execution(topic_id, partition, claim.number if claim else 0, 0, "", work)
        mine = next_execution(self.stream, before, mine)
        fence = MemoryFence(self._book, self.stream, mine, claim, before is not None and before.work == work)
        fence.check_claim()
        fence.check_batch()
        self._book.executions[topic_id, partition] = mine
        return fence

    def together(self, topic_id: str, partitions: Sequence[int], claim: Claim | None, batch: int) -> Fence:
        return MemoryGroupFence(self._book, self.stream, topic_id, partitions, claim, batch)

    def put_progress(self, progress: RangeProgress) -> None:
        self._book.ranges.append(progress)

    def progress_of(self, topic_id: str, partition: int, start: int) -> RangeProgress | None:
        furthest: RangeProgress | None = None
        for r in self._book.ranges:
            if (r.topic_id, r.partition, r.start) != (topic_id, partition, start):
                continue
            if isinstance(r, FinishedRange):
                furthest = None
            elif isinstance(r, RangeProgress) and (furthest is None or r.end >= furthest.end):
                furthest = r
        return furthest

    def put_release(self, group: ReleaseGroup) -> None:
        self._book.releases[group.topic_id, group.partition] = group

    def last_release(self, topic_id: str, partition: int) -> ReleaseGroup | None:
        return self._book.releases.get((topic_id, partition))

    def record(self, *facts: Fact) -> None:
        self.check_claim()
        self._book.facts.extend(facts)

    def note(self, *facts: RowsEdited | Command) -> None:
        self._book.facts.extend(facts)

    def facts(self, kind: type[F]) -> list[F]:
        found: dict[F, None] = {}
        for fact in self._book.facts:
            if isinstance(fact, kind):
                found.pop(fact, None)
                found[fact] = None
        return list(found)


def _totals(results: list[FinishedRange], folded: Sequence[RangeSummary]) -> PartitionTotals:
    """Sums over the results that no summary contains, and what the last result of all says."""
    known = covered(folded)
    counted = [r for r in results if not any(start <= r.start and r.end <= end for start, end in known)]
    last = results[-1]
    return PartitionTotals(
        last.topic,
        last.topic_id,
        last.partition,
        max(r.end for r in results),
        total(r.counts for r in counted),
        last.state,
        max(r.finished for r in results),
    )
