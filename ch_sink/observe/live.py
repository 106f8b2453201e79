"""The streams of a running job at any moment, with an hour of history: for the metrics and the page."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ch_sink.observe.stream import Point, StreamSummary, StreamView

_STEP = 10.0
"""Seconds of one point of a stream's history."""
_POINTS = 360
"""Points that are kept: one hour."""


@dataclass(slots=True)
class _History:
    """Of one stream. Changed under the lock only."""

    points: deque[Point] = field(default_factory=lambda: deque(maxlen=_POINTS))
    open: Point | None = None
    """The point of the step that is not over."""

    def add(self, now: float, summary: StreamSummary) -> None:
        """Add a batch to the point of its step."""
        self.close(now, summary.lag)
        last = self.open or Point(now // _STEP * _STEP)
        batch = summary.batch
        self.open = Point(last.at, last.records + batch.records, last.rows + batch.rows, summary.lag)

    def close(self, now: float, lag: int | None) -> None:
        """Move a point whose step is over to the history; steps without a batch become points without records.

        Nobody may have looked at the lag during these steps: it is drawn as a line to what it is now.
        """
        step = now // _STEP * _STEP
        if self.open is not None:
            if self.open.at >= step:
                return
            self.points.append(self.open)
            self.open = None
        last = self.points[-1] if self.points else Point(step)
        at = max(last.at + _STEP, step - _POINTS * _STEP)
        while at < step:
            share = (at - last.at) / (step - _STEP - last.at)
            between = lag if lag is None or last.lag is None else round(last.lag + share * (lag - last.lag))
            self.points.append(Point(at, lag=between))
            at += _STEP


class Live:
    """Collects what streams report. May be used by several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._histories: dict[str, _History] = {}
        self._listeners: list[Callable[[StreamSummary], None]] = []
        self._look: Callable[[], Iterable[StreamView]] = tuple
        self.server_version = ""
        """That of ClickHouse, empty until a stream has been connected."""

    def follow(self, look: Callable[[], Iterable[StreamView]]) -> None:
        """Ask ``look`` at each snapshot for the streams of the job."""
        self._look = look

    def listen(self, listener: Callable[[StreamSummary], None]) -> None:
        """Call ``listener`` after each batch, in the thread that ran it."""
        self._listeners.append(listener)

    def batch(self, summary: StreamSummary) -> None:
        """A batch has ended."""
        with self._lock:
            self._histories.setdefault(summary.stream, _History()).add(self._clock(), summary)
        for listener in self._listeners:
            listener(summary)

    def snapshot(self) -> list[StreamView]:
        """All streams now, by name."""
        now, seen = self._clock(), sorted(self._look(), key=lambda view: view.stream)
        with self._lock:
            self._histories = {view.stream: self._histories.get(view.stream, _History()) for view in seen}
            for view in seen:
                self._histories[view.stream].close(now, view.summary.lag)
            points = [tuple(self._histories[view.stream].points) for view in seen]
        return [
            replace(view, rate=history[-1].records / _STEP if history else 0.0, history=history)
            for view, history in zip(seen, points, strict=True)
        ]
