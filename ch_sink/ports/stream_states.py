"""The states of streams: what operators asked for, what jobs found, and which job has a stream now.

| Entry (class)            | Written by                        | What a restart does                                           |
|--------------------------|-----------------------------------|---------------------------------------------------------------|
| request (`Request`)      | `ch_sink pause` and `resume`, on any host | a paused stream stays paused                          |
| condition (`Condition`)  | the job that has the stream       | a stopped stream stays stopped until a later request to resume it, or another configuration |
| alive (`Alive`)          | the job that has the stream, every few seconds | nothing: it is about that job only               |

Only the newest entry of each kind counts, so an entry replaces the one before it. They need no claim: a request comes
from somebody who does not have the stream. The server's clock orders them, since those of several hosts differ.
"""
# ruff: noqa: E501 (a table)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

__all__ = ["Alive", "Condition", "RecordedState", "Request", "StreamStates"]


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
class RecordedState:
    """The newest entries of one stream."""

    request: Request | None = None
    condition: Condition | None = None
    asked_after: bool = False
    """The request is newer than the condition."""
    alive: Alive | None = None
    quiet: float = 0.0
    """Seconds since the entry ``alive``."""


class StreamStates(Protocol):
    """The states of all streams of one ledger. Every method raises ClickHouseError."""

    def read(self, streams: Sequence[str]) -> dict[str, RecordedState]:
        """The newest entries of each of these streams, by one query."""
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
