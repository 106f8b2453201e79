"""The states of streams: what operators asked for, what jobs found, and which job has a stream now.

| Entry (class)            | Written by                        | What a restart does                                           |
|--------------------------|-----------------------------------|---------------------------------------------------------------|
| request (`Request`)      | `ch_sink pause` and `resume`, on any host | a paused stream stays paused                          |
| condition (`Condition`)  | the job that has the stream       | a stopped stream stays stopped until a later request to resume it, or another configuration |
| alive (`Alive`)          | the job that has the stream, every few seconds | nothing: it is about that job only               |
| compared (`Compared`)    | `ch_sink verify`, on any host     | nothing: it is shown until the next comparison                |

Only the newest entry of each kind counts, so an entry replaces the one before it. They need no claim: a request comes
from somebody who does not have the stream. The server's clock orders them, since those of several hosts differ.
"""
# ruff: noqa: E501 (a table)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """What an operator asked for."""

    kind: ClassVar[str] = "request"
    wanted: Literal["pause", "resume"]
    by: str
    """User and host."""
    at: float
    """Seconds since 1970, as in the other entries."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What the job found."""

    kind: ClassVar[str] = "condition"
    state: Literal["running", "waiting", "stopped"]
    since: float
    error: str = ""
    next: str = ""
    """The next step for a person."""
    by: str = ""
    """The job's host."""
    config: str = ""
    """Fingerprint of the configuration with which the stream stopped."""


@dataclass(frozen=True, slots=True)
class Alive:
    """A job has the stream; ``host`` is empty once it has let it go."""

    kind: ClassVar[str] = "alive"
    run_id: str
    host: str
    pid: int
    born: str
    """Start time of the process; distinguishes it from a later process with the same id."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What the newest comparison of the whole table with its source found."""

    kind: ClassVar[str] = "compared"
    at: float
    """End of the comparison, or of its newest part."""
    equal_up_to: float
    """Begin of the newest comparison that found no difference, 0 if there was none."""
    against: str
    rows: int = 0
    """Of the table."""
    missing: int = 0
    extra: int = 0
    different: int = 0
    examples: tuple[Any, ...] = ()
    """Some of the rows that differ: ``{"key", "kind", "columns"}``."""

    @property
    def differences(self) -> int:
        """Rows that differ."""
        return self.missing + self.extra + self.different

    def as_json(self) -> dict[str, Any]:
        """For `status`, the page and the command."""
        return {
            "at": _iso(self.at),
            "equal_up_to": _iso(self.equal_up_to),
            "against": self.against,
            "rows": self.rows,
            "differences": self.differences,
            "missing": self.missing,
            "extra": self.extra,
            "different": self.different,
            "examples": list(self.examples),
        }


@dataclass(frozen=True, slots=True)
class RecordedState:
    """The newest entries of one stream."""

    request: Request | None = None
    condition: Condition | None = None
    asked_after: bool = False
    """The request is newer than the condition."""
    alive: Alive | None = None
    quiet: float = 0.0
    """Seconds since the entry ``alive``."""
    compared: Compared | None = None


class StreamStates(Protocol):
    """The states of all streams of one ledger. Every method raises ClickHouseError."""

    def read(self, streams: Sequence[str]) -> dict[str, RecordedState]:
        """The newest entries of each of these streams, by one query."""
        ...

    def mark(self) -> object:
        """Becomes another one when a request or a comparison is recorded, of whichever stream.

        None if that cannot be said. It costs less than `read`, and does not depend on the number of streams.
        """
        ...

    def ask(self, requests: Mapping[str, Request]) -> None:
        """Record requests, by stream."""
        ...

    def note(self, conditions: Mapping[str, Condition]) -> None:
        """Record conditions, by stream."""
        ...

    def beat(self, beats: Mapping[str, Alive]) -> None:
        """Record that a job has these streams, or has let them go."""
        ...

    def compare(self, comparisons: Mapping[str, Compared]) -> None:
        """Record what comparisons found, by stream."""
        ...


def _iso(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None
