"""A new table, filled and brought up to a place of the topic.

The place O in the topic is read first, then the source's rows. Every change below O was committed before the rows were
read, so they show it. Every change from O on is applied to them in its order, also one that they show already: after
the last change of a row the row is as the source has it. So nothing has to be locked, and no position of the source has
to be compared with one of Kafka.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace

from ch_sink.clickhouse import Client, detect, max_version
from ch_sink.errors import ChSinkError, ConfigError, StreamFailed
from ch_sink.model.address import counted
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.pipeline.target import Target
from ch_sink.ports import CLOCKS, Fact, Handover, Pending, TableRefilled
from ch_sink.ports.stream_states import StreamStates
from ch_sink.snapshot import SourceReader
from ch_sink.table.model import TargetTable
from ch_sink.trust.fill import Filling, filling
from ch_sink.trust.fold import Fold
from ch_sink.trust.hold import held
from ch_sink.trust.load import expect_unique
from ch_sink.trust.removal import mark_of
from ch_sink.trust.subject import Subject
from ch_sink.trust.successor import Successor
from ch_sink.trust.wiring import filled_columns

__all__ = [
    "NEW_SNAPSHOT",
    "Loaded",
    "NewTable",
    "Refill",
    "Say",
    "Start",
    "differences_of_shape",
    "expect_good_records",
    "expect_keyed",
    "expect_refillable",
    "filler",
    "has_rows",
    "new_run",
    "new_table",
    "of_table",
    "other_table",
]

NEW_SNAPSHOT = "Otherwise empty the table, delete the topic, and let the connector take a new snapshot."
"""What is left for a table without a key."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Refill:
    """One stream whose table is to be filled."""

    subject: Subject
    states: StreamStates
    pending: Pending
    """The stream's own waiting changes."""
    handover: Handover
    """The stream's own; it is read only."""
    notes: str = ""
    """Qualified name of the table in which ``init`` notes source types."""
    cluster: str | None = None
    patience: float = 30.0
    """Seconds to wait for changes that are under way."""
    settle: float = 10.0
    """Seconds that transactions of the source get to their end before its rows are read."""

    @property
    def stream(self) -> str:
        return self.subject.settings.name

    def held(self, topic_id: str, say: Say) -> AbstractContextManager[None]:
        """Nobody else works on the stream until the context ends; see `hold.held`."""
        subject = self.subject
        return held(subject.ledger, self.states, self.stream, topic_id, say, check=subject.check)

    @property
    def successor(self) -> Successor:
        subject = self.subject
        return Successor(subject.client, subject.table, subject.settings.policy, self.notes, self.cluster)

    def top(self) -> str:
        """The highest version of a living row of the successor, as `TableRefilled` has it.

        Marks of deleted rows do not count: users may remove them.
        """
        target = Target.of(self.subject.table, self.subject.settings.policy)
        if target.layout.kind != "wide" or target.system.version is None:
            return ""
        mark = mark_of(self.subject.table)
        living = f"NOT ({mark})" if mark else "1"
        return str(max_version(self.subject.client, self.successor.found(), empty=-1, condition=living))

    def waiting(self, topic_id: str, partitions: Mapping[int, int]) -> dict[int, list[int]]:
        """Partition → offsets of the stream's waiting changes."""
        found = {p: [r.offset for r in self.pending.open(topic_id, p) if r.swap is None] for p in partitions}
        return {p: offsets for p, offsets in found.items() if offsets}


def expect_refillable(refill: Refill) -> None:
    """Raises StreamFailed if no other table can take the table's place."""
    subject = refill.subject
    table = subject.table
    if subject.condition:
        raise StreamFailed(
            f"{table.qualified} has the rows of several topics, and would lose those of the others",
            hint="Use `ch_sink repair`, which leaves them alone.",
        )
    refill.successor.expect_possible()


def expect_keyed(refill: Refill) -> None:
    """Raises StreamFailed if the rows of the source cannot be told apart."""
    if not refill.subject.key:
        raise StreamFailed(
            f"{refill.subject.table.qualified} has no key: a row that changes while the source is read would be "
            "counted twice",
            hint=f"Use --against topic if the topic still holds its first records, or set key_columns. {NEW_SNAPSHOT}",
        )


@dataclass(frozen=True, slots=True)
class Start:
    """Where the changes begin that are applied to the rows of the source."""

    at: Mapping[int, int]
    """Partition → offset; every change below it was committed before the rows are read."""
    states: Mapping[int, tuple[int, State]] | None = None
    """The stream's states there, None if it has none yet."""
    epoch: int = 0
    facts: tuple[Fact, ...] = ()
    """What the fold knows besides."""
    version: int = 0
    """That of the rows: below the versions of all those changes."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the new table has once the rows of the source are in it."""

    rows: int
    passes: int
    """The source's position after its rows were read."""
    floors: tuple[TableRefilled, ...]
    """What the ledger has to know, by partition."""


@dataclass(frozen=True, slots=True)
class NewTable:
    """The table that is filled, and the fold that applies changes to it."""

    refill: Refill
    table: TargetTable
    fold: Fold

    def load(self, topic: TopicState, start: Callable[[], Start], say: Say) -> Loaded:
        """Store all rows of the source, and begin the fold behind them. Raises ChSinkError.

        ``start`` is called once the source is open, before anything is read of it.
        """
        with filler(self.refill, say) as (reader, made):
            begun = start()
            position = reader.settled(self.refill.settle)
            if not position:
                say("it is not known which changes the rows show; those that are under way are applied once more")
            floors = _floors(self.refill, topic, begun.at, position, begun.epoch)
            self.fold.begin(begun.at, begun.states, (*begun.facts, *floors))
            rows, passes = _loaded(self.refill, self.table, reader, made, begun.version, say)
            return Loaded(rows, passes, floors)


@contextmanager
def new_table(refill: Refill, say: Say, handover: Handover | None = None) -> Iterator[NewTable]:
    """The table that shall take the place of the stream's, empty. If the context fails, it is dropped.

    ``handover``: see `Fold`.
    """
    subject, successor = refill.subject, refill.successor
    successor.clear(say)
    try:
        table = successor.create()
        fold = Fold(subject.client, table, subject.settings, subject.topic, subject.decoder, handover)
        try:
            yield NewTable(refill, table, fold)
        finally:
            fold.close()
    except BaseException:
        with suppress(ChSinkError):  # the error that ended the run is the one to show; the next run drops the table
            successor.drop()
        raise


def of_table(refill: Refill, name: str) -> Refill:
    """The same stream with another table of the database, which must be empty. Raises StreamFailed; TableError."""
    subject = refill.subject
    table = detect(subject.client, subject.table.database, name, subject.settings.policy)
    if table.qualified == subject.table.qualified or has_rows(subject.client, table):
        raise StreamFailed(
            f"{table.qualified} is not empty",
            hint=f"Name a table without rows: CREATE TABLE … AS {subject.table.qualified}, with any engine, order "
            "and columns.",
        )
    return replace(refill, subject=replace(subject, table=table, columns=filled_columns(table, subject.schema)))


@contextmanager
def other_table(refill: Refill, handover: Handover | None) -> Iterator[NewTable]:
    """The table of `of_table`, to be filled. If the context fails, it is empty again."""
    subject = refill.subject
    fold = Fold(subject.client, subject.table, subject.settings, subject.topic, subject.decoder, handover)
    try:
        yield NewTable(refill, subject.table, fold)
    except BaseException:
        with suppress(ChSinkError):  # the error that ended the run is the one to show; the next run says what is left
            subject.client.command(f"TRUNCATE TABLE {subject.table.qualified}", doing=f"empty {subject.table.name}")
        raise
    finally:
        fold.close()


def has_rows(client: Client, table: TargetTable) -> bool:
    """Whether the table has a row, whatever readers see of it."""
    sql = f"SELECT 1 AS one FROM {table.qualified} LIMIT 1"
    return bool(client.rows(sql, of=table, doing=f"look into {table.qualified}"))


def differences_of_shape(table: TargetTable, live: TargetTable) -> tuple[str, ...]:
    """What a table has otherwise than the stream's, in words."""
    # A VersionedCollapsingMergeTree has its version in the sorting key.
    order = [", ".join(e for e in t.sorting_key if e != t.engine.version_column) for t in (table, live)]
    pairs = {
        "engine": (str(table.engine), str(live.engine)),
        "ORDER BY": (order[0], order[1]),
        "PARTITION BY": (table.partition_key, live.partition_key),
    }
    said = [f"{what} ({new}) instead of ({now})" for what, (new, now) in pairs.items() if new != now]
    mine, theirs = ({c.name: c.type for c in t.source_columns} for t in (table, live))
    for doing, names in (("adds", mine.keys() - theirs.keys()), ("lacks", theirs.keys() - mine.keys())):
        if names:
            said.append(f"{doing} the columns {', '.join(sorted(names))}")
    both = [name for name in theirs if name in mine and mine[name] != theirs[name]]
    return (*said, *(f"column {name} is {mine[name]} instead of {theirs[name]}" for name in both))


@contextmanager
def filler(refill: Refill, say: Say) -> Iterator[tuple[SourceReader, Filling]]:
    """The source, open, and how it is read. Raises ConfigError, SourceError, StreamFailed."""
    subject = refill.subject
    if subject.source is None:
        raise ConfigError(
            "the configuration has no section source", hint="Add source.url, source.username and source.password."
        )
    with closing(subject.source()) as reader:
        columns = (*subject.columns, *subject.inputs)
        policy = subject.settings.policy
        made = filling(subject.table, columns, subject.key, subject.schema, policy, reader, say, subject.check)
        yield reader, made


def _loaded(
    refill: Refill, table: TargetTable, reader: SourceReader, made: Filling, version: int, say: Say
) -> tuple[int, int]:
    """Load all rows; returns their number and the source's position after that. Raises ChSinkError."""
    say("reading the source")
    began = time.monotonic()
    rows = made.load(refill.subject.client, table, reader, version, say)
    expect_unique(refill.subject.client, table, refill.subject.key, rows)
    say(f"{counted(rows, 'row')} read in {time.monotonic() - began:.0f} seconds")
    return rows, reader.position()


def _floors(
    refill: Refill, topic: TopicState, at: Mapping[int, int], position: int, epoch: int
) -> tuple[TableRefilled, ...]:
    """What the ledger has to know of rows that show every change below this position of the source; 0 for none."""
    if refill.subject.settings.policy.versions.strategy in ("kafka_offset", "source_time"):
        position = 0  # nothing tells when the positions of the source begin anew
    until, run = int(time.time() * 1000) + CLOCKS, new_run()
    return tuple(
        TableRefilled(topic.topic_id, p, offset, position, epoch, until, run=run) for p, offset in sorted(at.items())
    )


def new_run() -> str:
    """The name of a filling, see `TableRefilled`."""
    return uuid.uuid4().hex[:8]


def expect_good_records(fold: Fold, below: Mapping[int, int]) -> None:
    """Raises StreamFailed if a record that the stream has not seen cannot be applied: it would get lost.

    A value that an event leaves out, of a row that was deleted before the rows were read, is no such case.
    """
    bad = [
        letter
        for letter in fold.letters.stored.values()
        if letter.kind != "unresolved" and letter.offset >= below.get(letter.partition, 0)
    ]
    if bad:
        first = min(bad, key=lambda letter: (letter.partition, letter.offset))
        raise StreamFailed(
            f"{counted(len(bad), 'record')} of the topic cannot be applied, first that at offset {first.offset} of "
            f"partition {first.partition}: {first.reason}",
            hint="Let `ch_sink run` read them first, which makes them dead letters, or mend the configuration.",
        )
