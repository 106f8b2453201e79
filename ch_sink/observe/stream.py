"""A stream of a running job as others see it: the screen, the lines of the log, the metrics and the page.

`StreamSummary` is what the job has done of a stream, `Standing` whether the stream runs and if not, why; `StreamView`
is both at one moment, with what makes a plot of it. `ch_sink status` shows a `Standing` with what the ledger says.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ch_sink.model.counts import Counts, counted, grouped
from ch_sink.ports import Compared

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
    """What a person does about the error."""
    by: str = ""
    """Who paused it, or the host of the job that found the error."""


def badness(standing: Standing, lag: float, stream: str) -> tuple[int, float, str]:
    """Sorts streams, the worst first."""
    return _RANK[standing.state], -lag, stream


@dataclass(slots=True)
class StreamSummary:
    """What one run of a stream has done."""

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
    """What a stream did in a step of ten seconds that begins at ``at`` (seconds since 1970)."""

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
    """What the newest comparison with the source found."""
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
        (seen.dead_letters, "dead letter", "dead letters"),
    ):
        if number:
            words.append(counted(number, one, many))
    if summary.lag is not None:
        words.append(f"lag {grouped(summary.lag)}")
    return "  ".join([summary.table, *words])
