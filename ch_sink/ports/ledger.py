"""The ledger of a stream's intents and results: queries over its entries (`ch_sink.ports.ledger_entries`), its fence.

The states of streams are entries of the same table: what operators asked for, what jobs found, and which job has a
stream now.

| Entry (class)            | Written by                        | What a restart does                                           |
|--------------------------|-----------------------------------|---------------------------------------------------------------|
| request (`Request`)      | `ch_sink pause` and `resume`, on any host | a paused stream stays paused                          |
| condition (`Condition`)  | the job that has the stream       | a stopped stream stays stopped until a later request to resume it, or another configuration |
| alive (`Alive`)          | the job that has the stream, every few seconds | nothing: it is about that job only               |
| compared (`Compared`)    | `ch_sink verify`, on any host     | nothing: it is shown until the next comparison                |

Only the newest of each kind counts, so an entry replaces the one before it. They need no claim: a request comes
from somebody who does not have the stream. The server's clock orders them, since those of several hosts differ.
"""
# ruff: noqa: E501 (a table)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from ch_sink.model.change import BackwardStep
from ch_sink.model.counts import Counts
from ch_sink.ports.ledger_entries import (
    Claim,
    Command,
    Fact,
    FinishedRange,
    RangeIntent,
    RangeProgress,
    ReleaseGroup,
    RowsEdited,
    Terms,
)


class Fence(Protocol):
    """One execution of a task, registered in the ledger; of a partition's executions only the newest may insert."""

    @property
    def execution(self) -> str:
        """Identifies the execution in deduplication tokens and query ids; no other execution ever has the same."""
        ...

    @property
    def repeats(self) -> bool:
        """An earlier execution began with the same range of the same batch, such as a task that Spark runs again."""
        ...

    @property
    def condition(self) -> str:
        """SQL that is true as long as the execution may insert; empty if the ledger is not in ClickHouse.

        An insert that evaluates it itself has no effect once it is superseded, even if its process was frozen between
        a check and the insert.
        """
        ...

    @property
    def query_id(self) -> str:
        """The prefix of the ids of this execution's inserts."""
        ...

    @property
    def partition_id(self) -> str:
        """The prefix of the ids of all inserts into the partition's rows, whichever execution sends them."""
        ...

    def check(self) -> None:
        """Raises LedgerConflict, with the owner, if another job or another execution has taken over."""
        ...


F = TypeVar("F", bound=Fact)


@dataclass(frozen=True, slots=True)
class PartitionTotals:
    """Sums over all results of one partition.

    A range that was run twice counts once: with its last result, or with the first if that was folded before.
    """

    topic: str
    topic_id: str
    partition: int
    next_offset: int
    counts: Counts
    """See `ch_sink.model.counts.total`."""
    state: str
    finished: float


class TaskLedger(Protocol):
    """The entries that a task records while its range runs, under the claim of the coordinator that planned it."""

    def begin(self, topic_id: str, partition: int, claim: Claim | None, work: str) -> Fence:
        """Register an execution of a task, which supersedes all earlier ones of the partition.

        Args:
            claim: the claim under which the task was planned; None: whoever owns the stream.
            work: identifies what the task is to do, after the number of its batch and a slash if it belongs to one; a
                second execution of the same work is a repeat.

        The fence holds until a newer execution begins, another job claims the stream, or the partition is intended for
        a later batch under the same claim.

        Raises LedgerConflict if it does not hold any more, or another job runs this partition at the same moment.
        """
        ...

    def together(self, topic_id: str, partitions: Sequence[int], claim: Claim | None, batch: int) -> Fence:
        """The fence of the first executions of several tasks of a batch, which are not registered.

        It holds until another job claims the stream, or an execution of one of these partitions is registered that is
        of this batch or a later one: whoever repeats one of the tasks registers before it looks at what is stored.
        """
        ...

    def put_progress(self, progress: RangeProgress) -> None:
        """Record how far the range has come."""
        ...

    def progress_of(self, topic_id: str, partition: int, start: int) -> RangeProgress | None:
        """The furthest progress of the range that begins at ``start``, of a batch after the last result of that range.

        Batches are compared by claim and number: the clocks of tasks and drivers may differ.
        """
        ...

    def put_release(self, group: ReleaseGroup) -> None:
        """Record which waiting records are released together."""
        ...

    def last_release(self, topic_id: str, partition: int) -> ReleaseGroup | None:
        """The last group of the partition."""
        ...


class Ledger(TaskLedger, Protocol):
    """The intents and results of one stream. Reads see all earlier writes; each write is one block.

    A stream has one owner: whoever claimed it last. An owner that has lost it finds out at its next write.
    """

    @property
    def stream(self) -> str:
        """The stream's name."""
        ...

    def claim(self, run_id: str, terms: Terms | None = None) -> Claim:
        """Take the stream; returns the claim. A claim is void once the OS process of its job has ended.

        ``terms``: under which rows are stored from now on; None: those of the claim before.

        Raises LedgerConflict if a live job on this host owns it; a job elsewhere is displaced.
        """
        ...

    def restate(self, terms: Terms) -> None:
        """Rows are stored under these terms from now on. Raises as `check_claim` does."""
        ...

    def last_claim(self) -> Claim | None:
        """The newest claim of the stream, released or not; None if there is none."""
        ...

    def owner(self) -> Claim | None:
        """The newest claim of the stream; None if there is none, or if it was released."""
        ...

    def release(self) -> None:
        """Release the stream; does nothing if it was lost or never claimed."""
        ...

    def check_claim(self) -> None:
        """Raises LedgerConflict if another job has claimed the stream since, TakenBack if the ledger lacks what was
        written last under the claim.
        """
        ...

    def intents(self, ranges: Sequence[RangeIntent]) -> list[RangeIntent]:
        """Record what a batch is about to read; returns the ranges with their attempts. Raises LedgerConflict."""
        ...

    def results(self, results: Sequence[FinishedRange]) -> None:
        """Record what the batch of the last ``intents`` did. Raises LedgerConflict, and then records nothing."""
        ...

    def fold(self) -> int:
        """Fold old intents and results into summaries if so many came together that it pays; returns how many results.

        The newest results stay as they are, of every partition. Raises LedgerConflict.
        """
        ...

    def states_at(self, topic_id: str, at: Mapping[int, int]) -> dict[int, str]:
        """Partition → the state of its last result that ends exactly at this offset, where there is one.

        Args:
            at: partition → offset.
        """
        ...

    def state_before(self, topic_id: str, partition: int, offset: int) -> tuple[int, str] | None:
        """Of the results that end at or before this offset, the end and state of the nearest, of equal ones the last.

        Folded results are known by their summaries only.
        """
        ...

    def states_over(self, topic_id: str, partition: int, first: int, end: int) -> list[tuple[int, int, str]]:
        """Start, end and state of the results in which offsets of [first, end) were read, by start.

        Folded results are known by their summaries only.
        """
        ...

    def progress(self, topic_id: str) -> dict[int, int]:
        """Partition → next offset: the end of the last result, an empty one included."""
        ...

    def open_intents(self, topic_id: str) -> list[RangeIntent]:
        """Ranges begun and not finished: the newest intent of each partition, unless a result has come to its end.

        It begins where the partition's last result since then ends. Attempts are not filled in.
        """
        ...

    def topic_ids(self) -> list[str]:
        """Ids of the topics that the stream has read, the last one first."""
        ...

    def history(self, limit: int) -> list[FinishedRange]:
        """The newest results that were not folded, newest first."""
        ...

    def totals(self) -> list[PartitionTotals]:
        """Sums by topic and partition, in that order."""
        ...

    def steps(self, topic_id: str, partition: int) -> list[BackwardStep]:
        """Places where positions stepped back, by offset; of folded results only where the epoch of a source rose."""
        ...

    def record(self, *facts: Fact) -> None:
        """Record facts of the stream, in this order and as one block. Raises LedgerConflict."""
        ...

    def note(self, *facts: RowsEdited | Command) -> None:
        """Record what a command does to the table, and that it is at work, whoever owns the stream."""
        ...

    def facts(self, kind: type[F]) -> list[F]:
        """All facts of this kind, oldest first; of equal ones the last."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """An operator's request."""

    kind: ClassVar[str] = "request"
    wanted: Literal["pause", "resume"]
    by: str
    """User and host."""
    at: float
    """Seconds since 1970, as in the other entries."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The stream's condition as the job found it."""

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
    """The result of the newest comparison of the whole table with its source.

    Without values of rows: a purge could not remove them from the ledger.
    """

    kind: ClassVar[str] = "compared"
    at: float
    """End of the comparison, or of its newest part."""
    equal_up_to: float
    """Begin of the newest comparison that judged all rows and found no difference, 0 if there was none."""
    against: str
    rows: int = 0
    """Of the table."""
    missing: int = 0
    extra: int = 0
    different: int = 0
    other: int = 0
    """Keys with wrong signs, groups of rollups that differ, and columns that the table lacks."""
    unjudged: int = 0
    """Rows that could not be judged: the topic does not hold their events, or the stream stood still amid them."""

    @property
    def differences(self) -> int:
        """Everything that makes the table another than its source; 0 if it is equal."""
        return self.missing + self.extra + self.different + self.other

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
            "other": self.other,
            "unjudged": self.unjudged,
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
