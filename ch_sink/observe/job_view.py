"""The view of a running job: on the screen and in the log how far it is, on the page an hour of it."""

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Self

from ch_sink.model.counts import counted, grouped
from ch_sink.observe.stream import Point, StreamSummary, StreamView, badness

log = logging.getLogger("ch_sink")

_WINDOW = 30.0
"""Seconds over which the rate of an estimate is taken."""
_CAUGHT_UP = 5.0
"""A lag that is read within so many seconds, or that a job which was live has had for less, is not a backlog."""
_UNREAD = ("paused", "stopped", "waiting")
"""States of streams that read nothing now."""
_MINUTE = 60.0
"""Seconds from one line of the log to the next, if nothing changes."""
_SELDOM = 30
"""How many times as long as a look at the job takes passes at least from one to the next."""


@dataclass(frozen=True, slots=True)
class JobView:
    """All streams at one moment, the worst first."""

    streams: tuple[StreamView, ...]
    time: float
    """Seconds of a clock that never steps back."""
    doing: str = ""
    """The job's activity before it reads, such as starting Spark."""
    rate: float = 0.0
    done: float | None = None
    """Share of the backlog that was read, None if there is none."""
    left: float | None = None
    """Seconds until the backlog is read, None if unknown."""

    @property
    def lag(self) -> int | None:
        """Sum of the lags that are known; None if none is."""
        return _lag(self.streams)

    @property
    def phase(self) -> str:
        """The job's present activity."""
        if self.doing:
            return self.doing
        opening = sum(s.standing.state == "opening" for s in self.streams)
        if opening:
            return f"opening streams: {len(self.streams) - opening} of {len(self.streams)} open"
        if self.done is None:
            return "live"
        left = f", about {_span(self.left)} left" if self.left is not None else ""
        return f"catching up: {self.done:.0%}{left}"

    def line(self) -> str:
        """The job in one line, for a log."""
        states = Counter(s.standing.state for s in self.streams)
        words = ", ".join(f"{n} {state}" for state, n in states.most_common())
        figures = [f"{counted(len(self.streams), 'stream')}: {words}"]
        if self.lag is not None:
            figures.append(f"lag {grouped(self.lag)}")
        figures.append(f"{grouped(round(self.rate))} records/s")
        figures.append(counted(sum(s.summary.counts.rows for s in self.streams), "row"))
        letters = sum(s.summary.counts.dead_letters for s in self.streams)
        if letters:
            figures.append(counted(letters, "dead letter"))
        return f"{self.phase}; {', '.join(figures)}"


def _lag(streams: Iterable[StreamView]) -> int | None:
    lags = [s.summary.lag for s in streams if s.summary.lag is not None]
    return sum(lags) if lags else None


@dataclass(slots=True)
class Album:
    """Turns successive views of a job into rates and estimates."""

    _time: float = math.inf
    _records: dict[str, int] = field(default_factory=dict)
    """Stream → records it had read at that time."""
    _total: int = 0
    """Records read since the first view, also of streams that have left."""
    _moments: "deque[tuple[float, int]]" = field(default_factory=deque)
    """Time and records read, within the window."""
    _backlog: int = 0
    """Records that had been read when the backlog began to be read."""
    _was_live: bool = False
    _behind: float | None = None
    """Time at which a job that was live fell behind."""

    def add(self, view: JobView) -> JobView:
        """The view with rates, order and estimate."""
        read = {s.stream: s.summary.counts.records for s in view.streams}
        more = {name: max(0, n - self._records.get(name, n)) for name, n in read.items()}
        seconds = view.time - self._time
        streams = [replace(s, rate=more[s.stream] / seconds) if seconds > 0 else s for s in view.streams]
        streams.sort(key=lambda s: badness(s.standing, s.summary.lag or 0, s.stream))
        self._total = records = self._total + sum(more.values())
        shown = replace(view, streams=tuple(streams), rate=sum(s.rate for s in streams))
        self._time, self._records = view.time, read
        self._moments.append((view.time, records))
        while view.time - self._moments[0][0] > _WINDOW:
            self._moments.popleft()
        # A paused, stopped or waiting stream reads nothing, so its lag says nothing about progress.
        (since, first), lag = self._moments[0], _lag(s for s in streams if s.standing.state not in _UNREAD)
        speed = (records - first) / (view.time - since) if view.time > since else 0.0
        if lag is None or lag <= speed * _CAUGHT_UP:
            self._backlog, self._behind = records, None
            self._was_live = self._was_live or lag is not None
            return shown
        if self._was_live:
            self._behind = view.time if self._behind is None else self._behind
            if view.time - self._behind < _CAUGHT_UP:
                return shown
        done = records - self._backlog
        return replace(shown, done=done / (done + lag), left=lag / speed if speed > 0 else None)


@dataclass(slots=True)
class JobWatch:
    """Where whoever shows a job finds its views. Says what is being done until ``source`` can be asked."""

    doing: str = ""
    source: Callable[[], JobView] | None = None

    def look(self) -> JobView:
        """The job now."""
        return self.source() if self.source is not None else JobView((), time.monotonic(), self.doing)


class Lines:
    """Writes the job in one line to the log: when what it does changes, and every minute."""

    def __init__(self, look: Callable[[], JobView]) -> None:
        self._look = look
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ch_sink lines", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        steps, minutes = Album(), Album()
        kind, said = "", -math.inf
        while True:
            began = time.monotonic()
            view = self._look()
            seen = steps.add(view)
            now = seen.doing or seen.phase.partition(":")[0]
            if said < 0:
                minutes.add(view)
            if seen.doing and now != kind:
                log.info("%s", seen.doing)
            elif not seen.doing and (now != kind or view.time - said >= _MINUTE):
                log.info("%s", minutes.add(view).line())
            if now != kind or view.time - said >= _MINUTE:
                said = view.time
            kind = now
            # Views of thousands of streams take a while, in which the job does not get on.
            if self._end.wait(max(1.0, min(_SELDOM * (time.monotonic() - began), _MINUTE))):
                return


def _span(seconds: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"


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
        """The version of ClickHouse, empty until a stream has been connected."""

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
