"""A stream as others see it: the screen, the lines of the log, the metrics and the page.

`StreamSummary` is what the job has done of a stream, `Standing` whether the stream runs and if not, why; `StreamView`
is both at one moment, with what makes a plot of it. `StreamStatus` is what `ch_sink status` shows: a `Standing` with
how far the stream has come by its ledger and the topic's watermarks.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from ch_sink.model.counts import Counts, counted, grouped
from ch_sink.order import State
from ch_sink.pipeline.guards import STAGES
from ch_sink.ports import Compared, PartitionTotals

StateName = Literal["opening", "running", "idle", "waiting", "stopped", "paused"]
STATES: tuple[StateName, ...] = ("stopped", "waiting", "paused", "opening", "running", "idle")
"""The worst first."""
_RANK = {**{state: rank for rank, state in enumerate(STATES)}, "opening": STATES.index("running")}


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a stream runs, and if not, why."""

    state: StateName = "idle"
    since: float = 0.0
    """Seconds since 1970, 0 if unknown."""
    error: str = ""
    next: str = ""
    """The next step for the operator."""
    by: str = ""
    """The person who paused it, or the host of the job that found the error."""


def badness(standing: Standing, lag: float, stream: str) -> tuple[int, float, str]:
    """Sorts streams, the worst first."""
    return _RANK[standing.state], -lag, stream


@dataclass(slots=True)
class StreamSummary:
    """The figures of one run of a stream."""

    stream: str
    topic: str
    table: str = ""
    counts: Counts = field(default_factory=Counts)
    batch: Counts = field(default_factory=Counts)
    """Those since the batch before the newest one ended."""
    batches: int = 0
    waiting: int = 0
    """Changes that wait for the other half of a key change."""
    seconds: float = 0.0
    """From the opening to the end of the newest batch."""
    batch_seconds: float = 0.0
    """How long the newest batch took."""
    lag: int | None = None
    """Offsets still to read, None if unknown."""
    offsets: dict[int, int] = field(default_factory=dict)
    """The next offset of each partition that this run has read."""
    opened: bool = False
    """It has been opened."""
    retries: int = 0
    """Failures after which it tried again."""

    def begin(self, lost: int) -> None:
        """A batch begins, before which so many offsets were lost."""
        self.batches += 1
        if lost:
            self.add(Counts(kinds=Counter(lost=lost)))

    def end(self, reached: Mapping[int, int], batch_seconds: float, seconds: float) -> None:
        """The batch has ended at these offsets."""
        self.offsets |= reached
        self.batch_seconds, self.seconds = batch_seconds, seconds

    def add(self, counts: Counts) -> None:
        """Add the figures of a range, or of changes that waited."""
        self.counts.add(counts)
        self.batch.add(counts)

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.counts.records / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "topic": self.topic,
            "table": self.table,
            "lag": self.lag,
            "batches": self.batches,
            **self.counts.as_json(),
            "waiting": self.waiting,
            "aside": sum(self.counts.skipped.values()),
            "counts": {name: n for name, n in sorted(self.counts.kinds.items()) if n},
            "seconds": round(self.seconds, 3),
            "source_time_ms": self.counts.source_time or None,
        }


@dataclass(frozen=True, slots=True)
class Point:
    """A stream's figures for the ten seconds from ``at`` (seconds since 1970)."""

    at: float
    records: int = 0
    rows: int = 0
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream of a running job at one moment."""

    summary: StreamSummary
    """Of this job; it goes on changing."""
    standing: Standing = Standing("running")
    compared: Compared | None = None
    """The result of the newest comparison with the source."""
    rate: float = 0.0
    """Records per second, lately."""
    history: tuple[Point, ...] = ()

    @property
    def stream(self) -> str:
        return self.summary.stream

    def behind(self, now: float) -> float | None:
        """Seconds since the newest event that was applied, 0 if all of them were; None if unknown."""
        return behind(self.summary.lag, self.summary.counts.source_time, now)

    def as_json(self, now: float) -> dict[str, Any]:
        """The stream for the page, with its history."""
        seen = self.summary
        return {
            "stream": seen.stream,
            "topic": seen.topic,
            "table": seen.table,
            "state": self.standing.state,
            "error": self.standing.error or None,
            "next": self.standing.next or None,
            "lag": seen.lag,
            "behind_seconds": self.behind(now),
            "rate": self.rate,
            "batches": seen.batches,
            **seen.counts.as_json(),
            "waiting": seen.waiting,
            "backward_steps": seen.counts.kinds["backward_steps"],
            "retries": seen.retries,
            "compared": self.compared.as_json() if self.compared is not None else None,
            "stages": seen.counts.stages,
            "history": [[p.at, p.records, p.rows, p.lag] for p in self.history],
        }


def behind(lag: int | None, source_time: int, now: float) -> float | None:
    """Seconds since the newest event that was applied, 0 if nothing is left to read; None if unknown.

    ``source_time``: of that event, in milliseconds since 1970.
    """
    if lag == 0:
        return 0.0
    return max(0.0, now - source_time / 1000) if lag is not None and source_time else None


def progress_line(summary: StreamSummary) -> str:
    """``orders  batch 12  1 200 000 records  310 000/s  1 100 000 rows  2 000 deletes  lag 40 000``."""
    seen = summary.counts
    words = [
        f"batch {summary.batches}",
        counted(seen.records, "record"),
        f"{grouped(round(summary.rate))}/s",
        counted(seen.rows, "row"),
    ]
    for number, one, many in (
        (seen.deletes, "delete", "deletes"),
        (seen.deduplicated, "deduplicated", "deduplicated"),
        (sum(seen.skipped.values()), "skipped", "skipped"),
        (summary.waiting, "waiting", "waiting"),
        (seen.out_of_range, "value out of range", "values out of range"),
        (seen.dead_letters, "dead letter", "dead letters"),
    ):
        if number:
            words.append(counted(number, one, many))
    if summary.lag is not None:
        words.append(f"lag {grouped(summary.lag)}")
    return "  ".join([summary.table, *words])


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of the topic at this moment."""

    partition: int
    next_offset: int | None
    """Offset that will be read next; None if nothing was read yet."""
    low: int | None
    high: int | None
    """First offset that the broker holds and the one after the last; None if the broker did not answer."""
    counts: Counts = field(default_factory=Counts)
    """Of all that the stream has read of it, but for the number of records."""
    epochs: Mapping[str, int] = field(default_factory=dict)
    """Epoch by source name; above 0 after a position regress, added partitions or a recreated topic."""
    finished: float = 0.0
    """End of the last batch, in seconds since 1970; 0 if there was none."""

    @property
    def lag(self) -> int | None:
        """Offsets still to read."""
        if self.high is None:
            return None
        start = self.next_offset if self.next_offset is not None else (self.low or 0)
        return max(0, self.high - start)

    def behind(self, now: float) -> float | None:
        """Seconds since the newest event that was applied, 0 if all of them were; None if unknown."""
        return behind(self.lag, self.counts.source_time, now)

    @property
    def lost(self) -> int:
        """Offsets that the broker dropped before they were read."""
        if self.low is None or self.next_offset is None:
            return 0
        return max(0, self.low - self.next_offset)

    def as_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "next_offset": self.next_offset,
            "low": self.low,
            "high": self.high,
            "lag": self.lag,
            "lost": self.lost,
            "rows": self.counts.rows,
            "deletes": self.counts.deletes,
            "dead_letters": self.counts.dead_letters,
            "counts": dict(sorted(self.counts.kinds.items())),
            "epochs": dict(self.epochs),
            "finished": _iso(self.finished),
            "source_time": _iso(self.counts.source_time / 1000),
        }


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream with all partitions of its topic."""

    stream: str
    topic: str
    topic_id: str | None
    table: str
    partitions: tuple[PartitionStatus, ...]
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """Dead letters not applied so far, by kind of failure."""
    earlier_topics: tuple[str, ...] = ()
    """Ids of earlier topics of the same name that the stream read."""
    last_batch: Mapping[str, Any] | None = None
    reachable: bool = True
    """Whether the broker answered."""
    time: float = 0.0
    """Time of this status, in seconds since 1970."""
    standing: Standing = field(default_factory=Standing)
    compared: Compared | None = None
    """The result of the newest comparison with the source."""

    @property
    def lag(self) -> int | None:
        """Sum over partitions, None if one of them is unknown."""
        lags = [p.lag for p in self.partitions]
        return None if None in lags or not self.reachable else sum(lag for lag in lags if lag is not None)

    @property
    def counts(self) -> Counts:
        """Sums over partitions."""
        total = Counts()
        for p in self.partitions:
            total.add(p.counts)
        return total

    @property
    def behind(self) -> float | None:
        """Seconds by which the slowest partition is behind its source, None if one of them is unknown."""
        seconds = [p.behind(self.time) for p in self.partitions]
        return (
            None if None in seconds or not self.reachable else max((s for s in seconds if s is not None), default=0.0)
        )

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent by stage, summed over tasks."""
        stages = self.counts.stages
        return {stage: stages[stage] for stage in STAGES if stages.get(stage)}

    def as_json(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "stream": self.stream,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "table": self.table,
            "state": self.standing.state,
            "since": _iso(self.standing.since),
            "by": self.standing.by or None,
            "lag": self.lag,
            "error": self.standing.error or None,
            "next": self.standing.next or None,
            "behind_seconds": None if self.behind is None else round(self.behind, 3),
            "seconds": self.seconds,
            "rows": counts.rows,
            "deletes": counts.deletes,
            "dead_letters": sum(self.dead_letters.values()),
            "dead_letters_by_kind": dict(self.dead_letters),
            "set_aside": counts.skipped,
            "deduplicated": counts.deduplicated,
            "out_of_range": counts.out_of_range,
            "partitions": [p.as_json() for p in self.partitions],
            "earlier_topics": list(self.earlier_topics),
            "last_batch": self.last_batch,
            "compared": self.compared.as_json() if self.compared is not None else None,
        }


def partitions_of(
    totals: Sequence[PartitionTotals],
    topic_id: str | None,
    watermarks: Mapping[int, tuple[int, int]] | None,
    progress: Mapping[int, int],
) -> tuple[PartitionStatus, ...]:
    """Combine what the ledger and the broker know.

    Args:
        totals: the ledger's sums for all topics that the stream has read.
        topic_id: the current id of the topic, or the last one read if the broker did not answer.
        watermarks: (low, high) by partition; None if the broker did not answer.
        progress: next offset by partition, for this topic id.
    """
    mine = {t.partition: t for t in totals if t.topic_id == topic_id}
    found = []
    for number in sorted({*mine, *progress, *(watermarks or {})}):
        total = mine.get(number)
        low, high = (watermarks or {}).get(number, (None, None))
        if total is None:
            found.append(PartitionStatus(number, progress.get(number), low, high))
            continue
        reached = progress.get(number, total.next_offset)
        epochs = State.from_json(total.state).epochs
        found.append(PartitionStatus(number, reached, low, high, total.counts, epochs, total.finished))
    return tuple(found)


def earlier_topics(totals: Sequence[PartitionTotals], topic_id: str | None) -> tuple[str, ...]:
    """Ids of earlier topics of the same name."""
    return tuple(dict.fromkeys(t.topic_id for t in totals if t.topic_id != topic_id))


def worst_first(streams: Iterable[StreamStatus]) -> list[StreamStatus]:
    """By state, then by lag; an unknown lag counts as a large one."""
    return sorted(streams, key=lambda s: badness(s.standing, math.inf if s.lag is None else s.lag, s.stream))


def _iso(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else None
