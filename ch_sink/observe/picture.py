"""What a running job shows: each stream with its state, lag and rate, and how far the job as a whole is."""

from collections import Counter, deque
from dataclasses import dataclass, field, replace

from ch_sink.model.address import counted, grouped
from ch_sink.observe.status import WORST, StreamState

__all__ = ["Album", "JobPicture", "StreamPicture"]

_WINDOW = 30.0
"""Seconds over which the rate of an estimate is taken."""
_CAUGHT_UP = 5.0
"""A lag that is read in so many seconds is no backlog."""


@dataclass(frozen=True, slots=True)
class StreamPicture:
    """One stream at one moment."""

    stream: str
    table: str
    standing: StreamState
    opening: bool = False
    """It has not been opened yet."""
    lag: int | None = None
    """Offsets still to read, None if unknown."""
    records: int = 0
    """Sums since the job started, as are the next three."""
    rows: int = 0
    deletes: int = 0
    dead_letters: int = 0
    rate: float = 0.0
    """Records per second since the picture before."""

    @property
    def state(self) -> str:
        """The word shown for its state."""
        return "opening" if self.opening and self.standing.state == "running" else self.standing.state


@dataclass(frozen=True, slots=True)
class JobPicture:
    """All streams at one moment, the worst first."""

    streams: tuple[StreamPicture, ...]
    time: float
    """Seconds of a clock that never steps back."""
    doing: str = ""
    """What the job does before it reads, such as starting Spark."""
    rate: float = 0.0
    done: float | None = None
    """Share of the backlog that was read, None if there is none."""
    left: float | None = None
    """Seconds until the backlog is read, None if unknown."""

    @property
    def lag(self) -> int | None:
        """Sum of the lags that are known; None if none is."""
        lags = [s.lag for s in self.streams if s.lag is not None]
        return sum(lags) if lags else None

    @property
    def phase(self) -> str:
        """What the job is doing."""
        if self.doing:
            return self.doing
        if self.done is None:
            return "live"
        left = f", about {_span(self.left)} left" if self.left is not None else ""
        return f"catching up: {self.done:.0%}{left}"

    def line(self) -> str:
        """The job in one line, for a log."""
        states = Counter(s.state for s in self.streams)
        words = ", ".join(f"{n} {state}" for state, n in states.most_common())
        figures = [f"{counted(len(self.streams), 'stream')}: {words}"]
        if self.lag is not None:
            figures.append(f"lag {grouped(self.lag)}")
        figures.append(f"{grouped(round(self.rate))} records/s")
        figures.append(counted(sum(s.rows for s in self.streams), "row"))
        letters = sum(s.dead_letters for s in self.streams)
        if letters:
            figures.append(counted(letters, "dead letter"))
        return f"{self.phase}; {', '.join(figures)}"


@dataclass(slots=True)
class Album:
    """Turns successive pictures into rates and estimates."""

    _last: JobPicture | None = None
    _moments: "deque[tuple[float, int]]" = field(default_factory=deque)
    """Time and records read, within the window."""
    _backlog: int = 0
    """Records that had been read when the backlog began to be read."""

    def add(self, picture: JobPicture) -> JobPicture:
        """The picture with rates, order and estimate."""
        before = {} if self._last is None else {s.stream: s.records for s in self._last.streams}
        seconds = picture.time - self._last.time if self._last is not None else 0.0
        streams = [
            replace(s, rate=max(0, s.records - before.get(s.stream, s.records)) / seconds) if seconds > 0 else s
            for s in picture.streams
        ]
        streams.sort(key=_badness)
        records = sum(s.records for s in streams)
        shown = replace(picture, streams=tuple(streams), rate=sum(s.rate for s in streams))
        self._last = picture
        self._moments.append((picture.time, records))
        while picture.time - self._moments[0][0] > _WINDOW:
            self._moments.popleft()
        (since, first), lag = self._moments[0], shown.lag
        speed = (records - first) / (picture.time - since) if picture.time > since else 0.0
        if lag is None or lag <= speed * _CAUGHT_UP:
            self._backlog = records
            return shown
        read = records - self._backlog
        return replace(shown, done=read / (read + lag), left=lag / speed if speed > 0 else None)


def _badness(seen: StreamPicture) -> tuple[int, float, str]:
    return WORST.index(seen.standing.state), -(seen.lag or 0), seen.stream


def _span(seconds: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"
