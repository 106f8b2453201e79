"""Two jobs on one stream over the real engine: one is frozen between a check and its insert, the other one runs."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from ch_sink.clickhouse import (
    ClickHouseLedger,
    ClickHouseTableAdmin,
    ClickHouseWriter,
    Client,
    await_earlier_inserts,
    detect,
)
from ch_sink.errors import ChSinkError
from ch_sink.model.policy import Policy, policy_of
from ch_sink.ports import Insert, TableWriter
from ch_sink.stream.claims import forget
from ch_sink.stream.ports import StreamSettings
from ch_sink.stream.run_task import range_steps
from ch_sink.stream.tasks import RangeTask, Task, TaskResult
from ch_sink.table.model import TargetTable
from ch_sink.table.views import view_of
from tests.support.hand import APPEND, OWN, Event, records_of
from tests.support.kills import Kill
from tests.support.local_runner import LocalBatch, LocalRunner
from tests.support.memory_stream import MemoryTopic
from tests.support.stream import engine_ports

_numbers = count(1)


@dataclass
class Freezing:
    """A writer whose process is frozen before (or after) its nth insert, while something else happens."""

    inner: TableWriter
    meanwhile: Callable[[], None]
    nth: int
    after: bool = False
    inserts: int = 0

    def write(self, insert: Insert, token: str, **options: Any) -> int:
        self.inserts += 1
        if self.inserts != self.nth:
            return self.inner.write(insert, token, **options)
        if not self.after:
            self.meanwhile()
        done = self.inner.write(insert, token, **options)
        if self.after:
            self.meanwhile()
        return done


@dataclass
class Takeover:
    """One topic and one table. Each ``job`` is a life of its own, as if on another host."""

    client: Client
    database: str
    own: str
    engine: str
    partitions: dict[int, Sequence[Event]]
    more: str = ""
    tail: str = ""
    chunk_offsets: int = 2
    policy: Policy = field(default_factory=lambda: policy_of(truncate="apply", on_bad_record="fail"))
    """Chunks of two records, so that a range has several."""

    def __post_init__(self) -> None:
        name = f"t{next(_numbers)}"
        self.table = f"{self.database}.{name}"
        clause, own = OWN.get(self.engine, APPEND)
        columns = f"id Int64, v Nullable(String){', ' + self.more if self.more else ''}"
        self.client.command(
            f"CREATE TABLE {self.table} ({columns}, {own}) ENGINE = {clause} {self.tail} ORDER BY id "
            "SETTINGS non_replicated_deduplication_window = 1000"
        )
        self.client.command(f"SYSTEM STOP MERGES {self.table}")
        self.detected = detect(self.client, self.database, name, self.policy)
        self.client.command(view_of(self.detected, ("id",)))
        self.stream = f"takeover/{self.table}"
        self.topic = MemoryTopic("t", {p: records_of(events, partition=p) for p, events in self.partitions.items()})

    def job(self, writer: Callable[[TableWriter], TableWriter] = lambda inner: inner) -> LocalRunner:
        """A job that is not aware of any other; ``writer`` wraps its writers."""
        client, stream, topic = self.client, self.stream, self.topic
        cached: list[TableWriter] = []

        def write(table: TargetTable) -> TableWriter:
            if not cached:
                cached.append(writer(ClickHouseWriter(client, table)))
            return cached[0]

        ports = engine_ports(
            client, self.own, "", stream, topic, self.policy,
            open_ledger=lambda: ClickHouseLedger(client, self.own, "ledger", stream),
            admin=ClickHouseTableAdmin(client, self.database, self.detected.name, self.policy),
            writer=write,
            settle=lambda table, fence: await_earlier_inserts(client, table, fence),
        )  # fmt: skip
        return LocalRunner(StreamSettings(stream, topic.name, self.policy, self.chunk_offsets), ports)

    def elsewhere(self, job: LocalRunner) -> None:
        """As if the job ran on another host: a claim from there does not keep others away."""
        forget(self.stream, job.coordinator.run_id)

    def whole(self) -> list[LocalBatch]:
        """One batch of everything."""
        return [LocalBatch({p: (0, end) for p, end in self.topic.ends.items()})]

    def run_all(self, job: LocalRunner) -> ChSinkError | None:
        """Run everything as one batch; returns the error that stopped it."""
        try:
            job.run(self.whole())
        except ChSinkError as error:
            return error
        return None

    def run_killed(self, kill: Kill) -> None:
        """A job that dies in its only batch, at this point."""
        job = self.job()
        job.after_kill = _stay_dead
        with suppress(_Dead):
            job.run([replace(batch, kills=(kill,)) for batch in self.whole()])

    def run_twice(self, nth: int, *, after: bool = False) -> list[TaskResult]:
        """One job whose first task is run a second time, as Spark does, while the first execution is frozen.

        Returns the results of both executions, the frozen one's last.
        """
        results: list[TaskResult] = []
        job = self.job(lambda inner: Freezing(inner, again, nth, after))
        asked: list[Task] = []

        def again() -> None:
            results.append(_finished(asked[0], job))

        def execute(tasks: Sequence[Task]) -> list[TaskResult]:
            asked[:] = tasks
            first = [_finished(task, job) for task in tasks]
            results.extend(first)
            # Spark takes the result of whichever execution ends well.
            return [results[0] if results[0].failure is None else first[0], *first[1:]]

        coordinator = job.coordinator
        ranges = coordinator.plan(coordinator.ports.topics.state("t"))
        coordinator.run_batch([replace(r, chunk_offsets=0) for r in ranges], execute)
        job.stop()
        return results

    def view(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(r.values()) for r in self.client.rows(f"SELECT * FROM {self.table}_current")), key=repr)

    def sums(self) -> set[int]:
        """The sums of signs that the keys of a collapsing table have."""
        rows = self.client.rows(f"SELECT DISTINCT toInt64(sum(_sign)) AS s FROM {self.table} GROUP BY id")
        return {int(r["s"]) for r in rows}

    def unpaired(self) -> int:
        """How many different rows of a collapsing table have a sum of signs outside {0, 1}."""
        rows = self.client.rows(
            f"SELECT count() AS n FROM (SELECT * EXCEPT _sign, sum(toInt64(_sign)) AS s FROM {self.table} GROUP BY ALL "
            "HAVING s NOT IN (0, 1))"
        )
        return int(rows[0]["n"])

    def stored(self) -> int:
        return int(self.client.rows(f"SELECT count() AS n FROM {self.table}")[0]["n"])


class _Dead(Exception):
    """The job is not started again."""


def _stay_dead() -> None:
    raise _Dead


def _finished(task: Task, job: LocalRunner) -> TaskResult:
    assert isinstance(task, RangeTask)
    steps = range_steps(task, job.open_task)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
