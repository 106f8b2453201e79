"""What a job is asked to do, and what the work of its streams comes to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ch_sink.errors import ChSinkError
from ch_sink.model.values import TopicState
from ch_sink.stream.job_stream import JobStream
from ch_sink.stream.offset_ranges import OffsetRange
from ch_sink.stream.roster import Member

__all__ = ["Changed", "Ended", "JobOptions"]


@dataclass(frozen=True, slots=True)
class Changed:
    """Streams that join a running job, and names of those whose topics are gone."""

    joined: Sequence[tuple[JobStream, Member]] = ()
    left: Sequence[str] = ()
    settled: Sequence[str] = ()
    """Names of those that only showed why a topic is no stream of the job, which is settled."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a job runs, and for how long."""

    slots: Callable[[], int] = lambda: 1
    """How many tasks the executor runs at once."""
    once: bool = False
    """Until everything has been read that was there when it started."""
    fail_fast: bool = False
    """Until the first stream fails."""
    stopping: Callable[[], bool] = lambda: False
    """Whether no further batch is to begin."""
    abandon: Callable[[], None] = lambda: None
    """Cancels the running calls of the executor."""
    on_open: Callable[[JobStream], None] = lambda _: None
    """Is told of each stream that has been opened."""
    on_stop: Callable[[JobStream], None] = lambda _: None
    """Is told of each stream that stops."""
    on_resume: Callable[[JobStream], None] = lambda _: None
    """Is told of each stream that somebody resumed, before it is opened again."""
    on_retry: Callable[[JobStream], None] = lambda _: None
    """Called for each failure after which the stream tries again."""
    discover: Callable[[], Changed] | None = None
    """Looks which streams join and leave; None if the job's streams are given once and for all. It must not raise."""
    discover_every: float = 30.0
    """Seconds from one such look to the next."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a piece of a stream's work came to."""

    stream: JobStream | None
    work: Literal["open", "look", "executed", "batch", "close", "states", "topics"]
    error: ChSinkError | None = None
    executor: bool = False
    """The executor failed, so that the outcome of the stream's tasks is unknown."""
    job: bool = False
    """The error is that of the job, such as Spark that cannot be started."""
    opened: tuple[TopicState, Sequence[OffsetRange]] | None = None
    """The topic of a stream that was opened, and what there is to read."""
    changed: Changed = Changed()
    """What a look at the topics found."""
    cluster: int = 0
    """Which cluster was asked for watermarks."""
    topics: Mapping[str, TopicState | ChSinkError] = field(default_factory=dict)
    """What it answered: the state of each topic, or why it is not known."""
