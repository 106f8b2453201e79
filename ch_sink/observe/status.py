"""How far a stream has come, from its ledger and the topic's watermarks."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from ch_sink.observe.progress import DEDUPLICATED, SKIPPED
from ch_sink.order import State
from ch_sink.pipeline.timings import STAGES
from ch_sink.ports import Compared, PartitionTotals

__all__ = ["WORST", "PartitionStatus", "StateName", "StreamState", "StreamStatus", "stream_status", "worst_first"]

StateName = Literal["running", "idle", "waiting", "stopped", "paused"]

WORST: tuple[StateName, ...] = ("stopped", "waiting", "paused", "running", "idle")


@dataclass(frozen=True, slots=True)
class StreamState:
    """Whether a stream runs, and if not, why."""

    state: StateName = "idle"
    since: float = 0.0
    """Seconds since 1970, 0 if unknown."""
    error: str = ""
    next: str = ""
    """What a person does about the error."""
    by: str = ""
    """Who paused it, or the host of the job that found the error."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of the topic at this moment."""

    partition: int
    next_offset: int | None
    """Offset that will be read next; None if nothing was read yet."""
    low: int | None
    high: int | None
    """First offset that the broker holds and the one after the last; None if the broker did not answer."""
    rows: int = 0
    deletes: int = 0
    dead_letters: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    """Epoch by source name; above 0 after a position regress, added partitions or a recreated topic."""
    finished: float = 0.0
    """End of the last batch, in seconds since 1970; 0 if there was none."""
    source_time: int = 0

    @property
    def lag(self) -> int | None:
        """Offsets still to read."""
        if self.high is None:
            return None
        start = self.next_offset if self.next_offset is not None else (self.low or 0)
        return max(0, self.high - start)

    def behind(self, now: float) -> float | None:
        """Seconds since the newest event that was applied, 0 if all of them were; None if unknown."""
        if self.lag == 0:
            return 0.0
        return max(0.0, now - self.source_time / 1000) if self.lag is not None and self.source_time else None

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
            "rows": self.rows,
            "deletes": self.deletes,
            "dead_letters": self.dead_letters,
            "counts": dict(sorted(self.counts.items())),
            "epochs": dict(self.epochs),
            "finished": _iso(self.finished),
            "source_time": _iso(self.source_time / 1000),
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
    standing: StreamState = StreamState()
    compared: Compared | None = None
    """What the newest comparison with the source found."""

    @property
    def lag(self) -> int | None:
        """Sum over partitions, None if one of them is unknown."""
        lags = [p.lag for p in self.partitions]
        return None if None in lags or not self.reachable else sum(lag for lag in lags if lag is not None)

    @property
    def counts(self) -> Counter[str]:
        """Sums over partitions."""
        total: Counter[str] = Counter()
        for p in self.partitions:
            total.update(p.counts)
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
        counts = self.counts
        return {stage: counts[f"{stage}_ms"] / 1000 for stage in STAGES if counts[f"{stage}_ms"]}

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
            "rows": sum(p.rows for p in self.partitions),
            "deletes": sum(p.deletes for p in self.partitions),
            "dead_letters": sum(self.dead_letters.values()),
            "dead_letters_by_kind": dict(self.dead_letters),
            "set_aside": {kind: counts[kind] for kind in SKIPPED if counts[kind]},
            "deduplicated": sum(counts[kind] for kind in DEDUPLICATED),
            "partitions": [p.as_json() for p in self.partitions],
            "earlier_topics": list(self.earlier_topics),
            "last_batch": self.last_batch,
            "compared": self.compared.as_json() if self.compared is not None else None,
        }


def stream_status(
    stream: str,
    topic: str,
    table: str,
    totals: Sequence[PartitionTotals],
    *,
    topic_id: str | None,
    watermarks: Mapping[int, tuple[int, int]] | None,
    progress: Mapping[int, int],
    dead_letters: Mapping[str, int] | None = None,
    last_batch: Mapping[str, Any] | None = None,
    now: float | None = None,
    standing: StreamState | None = None,
    compared: Compared | None = None,
) -> StreamStatus:
    """Combine what the ledger and the broker know.

    Args:
        totals: the ledger's sums for all topics that the stream has read.
        topic_id: the current id of the topic, or the last one read if the broker did not answer.
        watermarks: (low, high) by partition; None if the broker did not answer.
        progress: next offset by partition, for this topic id.
        now: seconds since 1970; the clock's by default.
        standing: the stream's state.
        compared: what the newest comparison found.
    """
    mine = {t.partition: t for t in totals if t.topic_id == topic_id}
    numbers = sorted({*mine, *progress, *(watermarks or {})})
    partitions = []
    for number in numbers:
        total = mine.get(number)
        low, high = (watermarks or {}).get(number, (None, None))
        state = State.from_json(total.state if total else None)
        partitions.append(
            PartitionStatus(
                partition=number,
                next_offset=progress.get(number, total.next_offset if total else None),
                low=low,
                high=high,
                rows=total.rows if total else 0,
                deletes=total.deletes if total else 0,
                dead_letters=total.dead_letters if total else 0,
                counts=total.counts if total else {},
                epochs=state.epochs,
                finished=total.finished if total else 0.0,
                source_time=total.source_time if total else 0,
            )
        )
    earlier = tuple(dict.fromkeys(t.topic_id for t in totals if t.topic_id != topic_id))
    return StreamStatus(
        stream,
        topic,
        topic_id,
        table,
        tuple(partitions),
        dead_letters or {},
        earlier,
        last_batch,
        watermarks is not None,
        time.time() if now is None else now,
        standing or StreamState(),
        compared,
    )


def worst_first(streams: Iterable[StreamStatus]) -> list[StreamStatus]:
    """By state, then by lag; an unknown lag counts as a large one."""

    def badness(seen: StreamStatus) -> tuple[int, float, str]:
        return WORST.index(seen.standing.state), -(math.inf if seen.lag is None else seen.lag), seen.stream

    return sorted(streams, key=badness)


def _iso(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else None
