"""The entries of a ledger, one dataclass each, and what a restart does about them.

| Entry          | Written                                           | May follow                              | What a restart does                            |
|----------------|---------------------------------------------------|-----------------------------------------|------------------------------------------------|
| claim          | as a job starts, and once more as it ends         | anything; the next claim                | takes the next number, unless the owner lives  |
| intent         | before a range is read                            | progress, result; an overlapping intent | reads what no result covers, cut as before     |
| execution      | before a task asks, unless it is the first of all | a newer execution                       | begins a newer one, which supersedes it        |
| progress       | behind a chunk of a collapsing table              | progress further on; the result         | goes on there, unless there is a result        |
| release        | before the changes of waiting records are stored  | they are resolved; another group        | releases the last group again, before all else |
| result         | behind a range; an empty one where reading begins | an intent that begins at its end        | reads on at its end, in its state              |
| summary        | before the results that it contains are deleted   | a summary that contains it              | deletes what it contains                       |
| truncate_floor | behind the deletion, before that round's results  | a higher floor                          | without it, deletes again                      |
| topic          | as a topic is first read, and as it grows         | the same topic, grown                   | continues in the topic's epochs                |
| refilled       | behind an exchange of the table, by partition     | anything                                | drops changes that the new rows show           |
| edited         | before a command changes rows, by partition       | the same again                          | nothing: dead letters below it stay open       |
| command        | as a command begins to write, and as it ends      | a command, once it has ended            | nothing: a command of a dead process has ended |

Tasks write executions, progress and releases, commands edits and themselves; all others are written by the owner of the stream and
refused to anyone else. The states of streams are entries of the same table: see `ch_sink.ports.ledger`.

In ClickHouse (`sql/ledger.sql`) the kind is in the column ``entry``. Everything that is searched or summed has a
column of its own: the ranges and their figures, the topic, the offset, the claim's number. The rest of an entry is read
whole or not at all; it is JSON in the column ``fact``, in the fields of its dataclass. So a new kind of entry, or a new
field of a fact, needs no new column: a field that an entry lacks has its default, and readers ignore fields and kinds
that they do not know.
"""
# ruff: noqa: E501 (a table)

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ch_sink.model.change import BackwardStep, Loaded
from ch_sink.model.counts import Counts
from ch_sink.model.policy import Origins


@dataclass(frozen=True, slots=True)
class Terms:
    """Of what, and where, a stream stores rows: what later changes need to find them again."""

    columns: Origins = ()
    """The origins of columns that the source's columns of their names do not fill: `ColumnPolicy.origins`."""
    source_table: str = ""
    """The only source table whose records are taken, empty for all."""
    table: str = ""
    """The server's UUID of the table; empty if it has none."""
    readings: Origins = ()
    """As what values are read: `Policy.readings`."""
    types: Origins = ()
    """Columns by whose values rows may be found again, each with its type."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One job's claim on a stream; the highest number owns it."""

    kind: ClassVar[str] = "claim"
    number: int
    run_id: str
    host: str
    pid: int
    born: str
    """Start time of the process; distinguishes it from a later process with the same id."""
    released: bool = False
    terms: Terms | None = None
    """None: not known."""


@dataclass(frozen=True, slots=True)
class RangeIntent:
    """An offset range [start, end) of one partition that is about to be read, and its chunk limits."""

    kind: ClassVar[str] = "intent"
    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    chunk_offsets: int = 0
    chunk_bytes: int = 0
    attempt: int = 0
    """How many earlier batches have an intent that overlaps this range; the ledger fills it in."""
    batch: int = field(default=0, compare=False)
    """Number of the batch; the ledger fills it in."""
    fingerprint: str = field(default="", compare=False)
    """Identifies configuration, table and version of ch_sink with which the range is read; empty if unknown."""
    earlier: tuple[str, ...] = field(default=(), compare=False)
    """The fingerprints of the earlier intents that overlap this range; the ledger fills them in."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a task. Of a partition's executions the one with the highest (claim, number, id) may insert."""

    kind: ClassVar[str] = "execution"
    topic_id: str
    partition: int
    claim: int
    """Number of the claim under which the task was planned, 0 for none."""
    number: int
    """Counts the executions of the partition."""
    id: str
    """Drawn at random: two executions that draw the same number are still distinct."""
    work: str
    """The work of the task: the batch and the start of its range, or the release of waiting changes."""

    batch: int = 0
    """The highest batch of which a task of the partition was executed so far, under this claim."""

    @property
    def of_batch(self) -> int:
        """The batch of the task, 0 if it belongs to none."""
        number, _, rest = self.work.partition("/")
        return int(number) if rest else 0


@dataclass(frozen=True, slots=True)
class RangeProgress:
    """The offsets [start, end) of a range that begins at ``start`` are stored."""

    kind: ClassVar[str] = "progress"
    topic_id: str
    partition: int
    start: int
    end: int
    state: str
    """State of the partition at ``end``; opaque here."""
    claim: int = 0
    """Number of the claim under which the range is run, 0 if unknown."""
    batch: int = 0
    """Number of the batch that the range belongs to, 0 if unknown."""


@dataclass(frozen=True, slots=True)
class ReleaseGroup:
    """Waiting records of a partition whose changes are about to be stored together."""

    kind: ClassVar[str] = "release"
    topic_id: str
    partition: int
    offsets: tuple[int, ...]
    given_up: bool = False
    """Values that have not arrived count as unknown."""


@dataclass(frozen=True, slots=True)
class FinishedRange:
    """An offset range that was applied. It may end before the intended end, at a barrier."""

    kind: ClassVar[str] = "result"
    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    counts: Counts = field(default_factory=Counts)
    """Counts of its records, whose number is not kept."""
    state: str = ""
    """State of the partition at ``end``; opaque here."""
    started: float = 0.0
    """Seconds since 1970, as is ``finished``."""
    finished: float = 0.0
    run_id: str = ""
    """Filled in by the ledger, as is ``batch``."""
    batch: int = 0
    steps: tuple[BackwardStep, ...] = ()
    """The places where positions of a source stepped back."""


@dataclass(frozen=True, slots=True)
class RangeSummary:
    """Results of one partition between two offsets, folded into one entry with their sums.

    It stands for the intents, the progress and the results within [start, end) that were written before it. It may span
    offsets that were lost.
    """

    kind: ClassVar[str] = "summary"
    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    batches: int
    """An upper bound of the attempts at any of its offsets."""
    counts: Counts = field(default_factory=Counts)
    """Sums: see `ch_sink.model.counts.total`."""
    state: str = ""
    """State of the partition at ``end``."""
    started: float = 0.0
    finished: float = 0.0
    steps: tuple[BackwardStep, ...] = ()
    """The places where the epoch of a source rose."""


@dataclass(frozen=True, slots=True)
class TruncateFloor:
    """Changes of a source name below this position were deleted by a truncate, in every partition."""

    kind: ClassVar[str] = "truncate_floor"
    epoch: int
    commit: int
    inner: int
    source: str = ""
    version: str = ""
    """Rows of lower versions were deleted, as decimal digits; empty if that is unknown."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The stream's facts about one topic: how many partitions it has had, and the lowest epoch of its versions."""

    kind: ClassVar[str] = "topic"
    topic_id: str
    partitions: int
    epoch: int
    on_rows: bool = False
    """The table had rows before the stream read anything: the topic may have no event of them."""


CLOCKS = 60_000
"""Milliseconds by which the clocks of source, Kafka and ch_sink may differ."""


@dataclass(frozen=True, slots=True)
class TableRefilled:
    """The table was replaced by one that was filled from the source: it holds everything below ``offset``."""

    kind: ClassVar[str] = "refilled"
    topic_id: str
    partition: int
    offset: int
    position: int = 0
    """Changes of ``epoch`` below this position of the source are in the rows that were loaded; 0 if it is unknown."""
    epoch: int = 0
    until: int = 0
    """Milliseconds since 1970 up to which that holds: when the rows were loaded, and what clocks may differ by.

    0 if the rows are those of the topic.
    """
    top: str = ""
    """The highest version of a living row, as decimal digits; −1 if there was none, empty if it is unknown."""
    run: str = ""
    """A name of its own: fillings may be equal otherwise, and the ledger holds equal facts once."""

    def shows(self, offset: int, timestamp: int) -> bool:
        """Whether the loaded rows certainly show a record of the partition, by its place and its time in Kafka."""
        return offset < self.offset and 0 < timestamp <= self.until - 2 * CLOCKS

    @property
    def loaded(self) -> Loaded:
        """The changes that the rows show."""
        return Loaded(self.epoch, self.position, self.until)


@dataclass(frozen=True, slots=True)
class RowsEdited:
    """A command changed rows of the table, or is about to: the topic's changes below ``offset`` would not give them."""

    kind: ClassVar[str] = "edited"
    topic_id: str
    partition: int
    offset: int
    """Everything of the partition below it was applied by then."""
    act: Literal["repaired", "removed"]
    """``repaired``: made those of the source, or counted again where rows have no key. ``removed``: purged or erased,
    marks of deleted rows too."""
    since: int = 0
    """How many facts said by then that the table had been refilled: a later refill makes a repair void."""
    top: str = "0"
    """The highest version among removed rows, as decimal digits; 0 for none."""
    skip: tuple[int, ...] = ()
    """Offsets of erased changes, which a fill from the topic leaves out."""
    left: str = ""
    """The highest version among the other rows, as decimal digits; −1 if there were none, empty if it is unknown."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that writes to the stream's table. Others refuse to begin until it has ended."""

    kind: ClassVar[str] = "command"
    id: str
    what: str
    """Its name, such as ``resync``."""
    host: str
    pid: int
    born: str
    """Start time of the process; distinguishes it from a later process with the same id."""
    since: str
    """The time of its beginning, in readable form."""
    ended: bool = False


Fact = Command | RowsEdited | TableRefilled | TopicFacts | TruncateFloor
"""Entries that do not concern an offset range."""
