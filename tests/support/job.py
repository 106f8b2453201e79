"""A job of streams in memory: topics that grow, an executor that says what was read, failures where wanted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np

from ch_sink.errors import ChSinkError, StreamFailed, TopicNotFound
from ch_sink.model.change import Records
from ch_sink.model.counts import Counts
from ch_sink.model.policy import policy_of
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.ports import Request
from ch_sink.stream.job import Job, JobOptions
from ch_sink.stream.job_stream import JobStream, Pace, Watermarks
from ch_sink.stream.lanes import Kind, Report, ThreadLanes, Work
from ch_sink.stream.pace import Flush, Patience, Pauses
from ch_sink.stream.roster import Roster
from ch_sink.stream.standing import Member
from ch_sink.stream.tasks import RangeDone, RangeTask, ReleaseDone, Task, TaskResult
from ch_sink.types.column import Column
from tests.support.document_run import document_table
from tests.support.memory_stream import MemoryStream, MemoryStreamStates, MemoryTopic

_AT_ONCE = Flush()
TABLE = document_table((Column("id", "Int64"),), "replacing", "id")


class InlineLanes:
    """Work runs at once in the caller's thread, and time passes only while the job waits."""

    def __init__(self) -> None:
        self.clock = 0.0
        self._reports: list[Report] = []

    def now(self) -> float:
        return self.clock

    def free(self, kind: Kind, server: object = "") -> int:
        return 1

    def start(self, kind: Kind, work: Work, server: object = "") -> None:
        work(self._reports.append)

    def wait(self, seconds: float) -> list[Report]:
        found, self._reports = self._reports, []
        if not found:
            self.clock += max(0.0, seconds)
        return found

    def close(self) -> None:
        pass


@dataclass
class MemoryJob:
    """Streams by name, each of a topic of its own name; what outlives a job outlives `run` here."""

    streams: dict[str, MemoryStream] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    """Stream → the offset at which its tasks fail."""
    given_up: list[bool] = field(default_factory=list)
    """Of each release of waiting changes, whether those are given up that have waited long enough."""
    rewritten: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Stream → the partition and offset from which on its keys are written in another form."""
    read: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Stream → the partition, start and end of each range that was applied."""
    calls: list[list[str]] = field(default_factory=list)
    """Streams of the tasks of each call of the executor."""
    looks: list[list[str]] = field(default_factory=list)
    """Topics of each question to the broker."""
    before: Callable[["MemoryJob", Sequence[Task]], None] = lambda _job, _tasks: None
    """Called before each call of the executor, which fails if this does."""
    lanes: InlineLanes | ThreadLanes = field(default_factory=InlineLanes)
    job: Job | None = None
    states_of_streams: MemoryStreamStates = field(init=False)
    asked: int = 0
    clusters: dict[str, Watermarks] = field(default_factory=dict)
    """Stream → its Kafka cluster; all others are in one."""
    servers: dict[str, str] = field(default_factory=dict)
    """Stream → its ClickHouse server; all others are on one."""
    ledgers: dict[str, MemoryStreamStates] = field(default_factory=dict)
    """Stream → the ledger of its states; all others share one."""
    failing: ChSinkError | None = None
    """Every task fails with this error, before it applies anything."""

    def __post_init__(self) -> None:
        self.states_of_streams = MemoryStreamStates(self.lanes.now)

    def add(self, name: str, *ends: int) -> None:
        """A stream whose topic has so many offsets in each partition."""
        nothing = Records(name, 0, np.zeros(0, np.int64), np.zeros(0, np.int64), [], [])
        topic = GrowingTopic(name, dict.fromkeys(range(len(ends)), nothing), dict(enumerate(ends)))
        self.streams[name] = MemoryStream(TABLE, ("id",), topic, policy_of(), name=name, chunk_offsets=10)
        self.read[name] = []

    def having(self, **ends: int | tuple[int, ...]) -> Self:
        """With a stream of each name, whose topic has so many offsets in its partition or in each of them."""
        for name, found in ends.items():
            self.add(name, *((found,) if isinstance(found, int) else found))
        return self

    @property
    def current(self) -> Job:
        """The job that runs, or has run."""
        assert self.job is not None
        return self.job

    def grow(self, name: str, offsets: int, partition: int = 0) -> None:
        self.streams[name].topic.ends[partition] += offsets

    def run(
        self,
        *,
        limit: int | None = None,
        interval: float = 1.0,
        retry_for: float = 3600.0,
        flush: Flush = _AT_ONCE,
        **options: object,
    ) -> dict[str, ChSinkError]:
        """Run a job to its end; returns the errors of its streams that stopped."""
        made = [self._stream(memory, limit, interval, flush) for memory in self.streams.values()]
        members = [self._member(m.name, retry_for) for m in made]
        roster = Roster(members, f"run-{len(self.calls)}", clock=self.lanes.now, steady=self.lanes.now)
        self.job = Job(made, self._execute, self.lanes, JobOptions(**options), roster)  # type: ignore[arg-type]
        return self.job.run()

    def joining(self, name: str) -> tuple[JobStream, Member]:
        """A stream that joins the running job, as one of a topic that a pattern found."""
        stream = self._stream(self.streams[name], None, 1.0, Flush())
        stream.comes_and_goes = True
        return stream, self._member(name)

    def _member(self, name: str, retry_for: float = 3600.0) -> Member:
        states = self.ledgers.get(name, self.states_of_streams)
        return Member(name, states, "config", Patience(retry_for, Pauses(1.0, 30.0)))

    def ask(self, wanted: Literal["pause", "resume"], *names: str) -> None:
        """What `ch_sink pause` and `resume` do."""
        self.asked += 1
        self.states_of_streams.ask(dict.fromkeys(names, Request(wanted, "ann", float(self.asked))))

    def states(self, topics: Sequence[str]) -> Mapping[str, TopicState | ChSinkError]:
        """See Watermarks."""
        self.looks.append(list(topics))
        return {t: self.streams[t].topic.state(t) if t in self.streams else TopicNotFound(t) for t in topics}

    def retries(self) -> dict[str, int]:
        """Stream → failures after which it tried again."""
        return {seen.stream: seen.retries for seen in self.current.summaries}

    def covered(self, name: str) -> dict[int, int]:
        """Partition → how far it was read from offset 0, without a gap and nothing twice."""
        reached: dict[int, int] = {}
        for partition, start, end in self.read[name]:
            assert start == reached.get(partition, 0), (name, self.read[name])
            reached[partition] = end
        return reached

    def _stream(self, memory: MemoryStream, limit: int | None, interval: float, flush: Flush) -> JobStream:
        name = memory.settings.name
        cluster, server = self.clusters.get(name, self), self.servers.get(name, "")
        return JobStream(memory.settings, memory.coordinator, cluster, Pace(interval, flush), limit, server=server)

    def _execute(self, tasks: Sequence[Task], most: int | None = None) -> list[TaskResult]:
        self.before(self, tasks)
        self.calls.append(sorted({task.stream for task in tasks}))
        return [self._done(task) for task in tasks]

    def _done(self, task: Task) -> TaskResult:
        if not isinstance(task, RangeTask):
            self.given_up.append(task.caught_up)
            return ReleaseDone(task.stream, task.partition, State(), waiting=1)
        if self.failing is not None:
            return RangeDone(task.stream, task.partition, task.start, task.start, State(), failure=self.failing)
        place, at = self.rewritten.get(task.stream, (-1, -1))
        if place == task.partition and task.start <= at < task.end and task.state.key_forms.get("") != "new":
            if at > task.start:
                self.read[task.stream].append((place, task.start, at))
            barrier = Barrier("key_form", at, key_form=("", "new"))
            return RangeDone(task.stream, place, task.start, at, State(), Counts(at - task.start), barrier=barrier)
        bad = self.broken.get(task.stream)
        fails = bad is not None and task.start <= bad < task.end
        end = bad if fails and bad is not None else task.end
        if end > task.start:
            self.read[task.stream].append((task.partition, task.start, end))
        failure = StreamFailed(f"{task.stream} is broken at {bad}") if fails else None
        return RangeDone(
            task.stream, task.partition, task.start, end, State(), Counts(end - task.start), failure=failure
        )


class GrowingTopic(MemoryTopic):
    """All its offsets are there, without records."""

    def state(self, topic: str) -> TopicState:
        return TopicState(topic, self.topic_id, dict.fromkeys(self.ends, 0), dict(self.ends))
