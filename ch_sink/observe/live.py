"""The streams of a running job as others may see them at any moment: metrics, the page, the terminal."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ch_sink.observe.progress import SKIPPED, StreamSummary
from ch_sink.ports import Compared

__all__ = ["BatchSeen", "Live", "LiveStream", "Point"]

_STEP = 10.0
"""Seconds of one point of a stream's history."""
_POINTS = 360
"""Points that are kept: one hour."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a stream did in a step of ten seconds that begins at ``at`` (seconds since 1970)."""

    at: float
    records: int = 0
    rows: int = 0
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class BatchSeen:
    """One batch that has ended: what it added to the stream's figures."""

    stream: str
    records: int
    rows: int
    seconds: float
    stages: Mapping[str, float]
    """Seconds by stage, summed over tasks."""


@dataclass(frozen=True, slots=True)
class LiveStream:
    """A stream at one moment. Sums are those of this job."""

    stream: str
    topic: str
    table: str = ""
    state: str = "running"
    error: str = ""
    next: str = ""
    """What an operator does about the error."""
    lag: int | None = None
    source_time: float = 0.0
    """Source time of the newest event in seconds since 1970, 0 if there was none."""
    batches: int = 0
    records: int = 0
    rows: int = 0
    deletes: int = 0
    dead_letters: int = 0
    deduplicated: int = 0
    waiting: int = 0
    """Changes that wait for the other half of a key change."""
    backward_steps: int = 0
    retries: int = 0
    compared: Compared | None = None
    """What the newest comparison with the source found."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    offsets: Mapping[int, int] = field(default_factory=dict)
    """The next offset of each partition."""
    history: tuple[Point, ...] = ()

    def behind(self, now: float) -> float | None:
        """Seconds since the newest event that was applied, 0 if all of them were; None if unknown."""
        if self.lag == 0:
            return 0.0
        return max(0.0, now - self.source_time) if self.lag is not None and self.source_time else None

    @property
    def rate(self) -> float:
        """Records per second over the last step that is complete."""
        return self.history[-1].records / _STEP if self.history else 0.0

    def as_json(self, now: float) -> dict[str, Any]:
        """The stream for the page, with its history."""
        return {
            "stream": self.stream,
            "topic": self.topic,
            "table": self.table,
            "state": self.state,
            "error": self.error or None,
            "next": self.next or None,
            "lag": self.lag,
            "behind_seconds": self.behind(now),
            "rate": self.rate,
            "batches": self.batches,
            "records": self.records,
            "rows": self.rows,
            "deletes": self.deletes,
            "dead_letters": self.dead_letters,
            "deduplicated": self.deduplicated,
            "waiting": self.waiting,
            "backward_steps": self.backward_steps,
            "retries": self.retries,
            "compared": self.compared.as_json() if self.compared is not None else None,
            "stages": dict(self.stages),
            "history": [[p.at, p.records, p.rows, p.lag] for p in self.history],
        }


@dataclass(slots=True)
class _Kept:
    """What is kept of one stream. Changed under the lock only."""

    now: LiveStream
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=_POINTS))
    open: Point | None = None
    """The point of the step that is not over."""


class Live:
    """Collects what streams report. May be used by several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._streams: dict[str, _Kept] = {}
        self._listeners: list[Callable[[BatchSeen], None]] = []
        self._look: Callable[[], Iterable[LiveStream]] = tuple
        self.server_version = ""
        """That of ClickHouse, empty until a stream has been connected."""

    def follow(self, look: Callable[[], Iterable[LiveStream]]) -> None:
        """Ask ``look`` at each snapshot for the streams of the job as they are, but for its figures."""
        self._look = look

    def listen(self, listener: Callable[[BatchSeen], None]) -> None:
        """Call ``listener`` after each batch, in the thread that ran it."""
        self._listeners.append(listener)

    def retried(self, stream: str, topic: str) -> None:
        """The stream failed, and tries again."""
        with self._lock:
            kept = self._kept(stream, topic)
            kept.now = replace(kept.now, retries=kept.now.retries + 1)

    def batch(self, summary: StreamSummary) -> None:
        """A batch has ended."""
        now, figures = self._clock(), summary.figures
        with self._lock:
            kept = self._kept(summary.stream, summary.topic)
            before = kept.now
            stages = _stages(figures.counts)
            kept.now = replace(
                before,
                table=summary.table,
                lag=summary.lag,
                source_time=figures.source_time / 1000,
                batches=figures.batches,
                records=figures.records,
                rows=figures.rows,
                deletes=figures.deletes,
                dead_letters=figures.dead_letters,
                deduplicated=figures.deduplicated,
                waiting=figures.waiting,
                backward_steps=figures.counts["backward_steps"],
                skipped={kind: figures.counts[kind] for kind in SKIPPED if figures.counts[kind]},
                stages=stages,
                offsets=dict(summary.offsets),
            )
            added = {name: s - before.stages.get(name, 0.0) for name, s in stages.items()}
            seen = BatchSeen(
                summary.stream,
                figures.records - before.records,
                figures.rows - before.rows,
                summary.batch_seconds,
                added,
            )
            _note(kept, now, seen, summary.lag)
        for listener in self._listeners:
            listener(seen)

    def snapshot(self) -> list[LiveStream]:
        """All streams now, by name."""
        now, found = self._clock(), list(self._look())
        with self._lock:
            for seen in found:
                kept = self._kept(seen.stream, seen.topic)
                before = kept.now
                kept.now = replace(
                    before,
                    table=seen.table or before.table,
                    lag=before.lag if seen.lag is None else seen.lag,
                    state=seen.state,
                    error=seen.error,
                    next=seen.next,
                    compared=seen.compared,
                )
            if found:
                left = self._streams.keys() - {seen.stream for seen in found}
                for name in left:
                    del self._streams[name]
            for kept in self._streams.values():
                _close(kept, now)
            return [replace(k.now, history=tuple(k.points)) for _, k in sorted(self._streams.items())]

    def _kept(self, stream: str, topic: str) -> _Kept:
        return self._streams.setdefault(stream, _Kept(LiveStream(stream, topic)))


def _stages(counts: Mapping[str, int]) -> dict[str, float]:
    return {name.removesuffix("_ms"): n / 1000 for name, n in counts.items() if name.endswith("_ms")}


def _note(kept: _Kept, now: float, seen: BatchSeen, lag: int | None) -> None:
    """Add a batch to the point of its step."""
    _close(kept, now)
    last = kept.open or Point(now // _STEP * _STEP)
    kept.open = Point(last.at, last.records + seen.records, last.rows + seen.rows, lag)


def _close(kept: _Kept, now: float) -> None:
    """Move a point whose step is over to the history; steps without a batch become points without records."""
    step = now // _STEP * _STEP
    if kept.open is None:
        last = kept.points[-1].at if kept.points else step
    elif kept.open.at < step:
        kept.points.append(kept.open)
        last, kept.open = kept.open.at, None
    else:
        return
    at = max(last + _STEP, step - _POINTS * _STEP)
    while at < step:
        kept.points.append(Point(at, lag=kept.now.lag))
        at += _STEP
