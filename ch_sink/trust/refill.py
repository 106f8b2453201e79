"""A new table, filled and brought up to a place of the topic.

The place O in the topic is read first, then the source's rows. Every change below O was committed before the rows were
read, so they show it. Every change from O on is applied to them in its order, also one that they show already: after
the last change of a row the row is as the source has it. So nothing has to be locked, and no position of the source has
to be compared with one of Kafka.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace

from ch_sink.clickhouse import detect, expect_free_names, has_rows, max_version
from ch_sink.errors import ChSinkError, ConfigError, StreamFailed
from ch_sink.model.counts import counted
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.pipeline.target import Target
from ch_sink.ports import CLOCKS, DeadLetters, Fact, Handover, Pending, TableRefilled
from ch_sink.snapshot import SourceReader
from ch_sink.table.checks import expect_key
from ch_sink.table.model import TargetTable
from ch_sink.trust.fold import Fold
from ch_sink.trust.load import SnapshotColumn, every_column, expect_unique, load
from ch_sink.trust.own_tables import mark_of
from ch_sink.trust.shape import Shape, Wanted, shape_of
from ch_sink.trust.sides import KEY, ROW, TIMES, Side
from ch_sink.trust.subject import Subject, expect_witness, filled_columns
from ch_sink.trust.successor import Successor
from ch_sink.types.chtype import parse_type

NEW_SNAPSHOT = (
    "Otherwise delete the topic, let the connector take a new snapshot, and fill the table from that: "
    "`ch_sink resync CONFIG --against topic --apply`."
)
"""The next step for a table without a key."""

_MOST_LETTERS = 10_000
"""They are kept in memory."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Refill:
    """One stream whose table is filled."""

    subject: Subject
    pending: Pending
    """The stream's own waiting changes."""
    handover: Handover
    """The stream's own; it is read only."""
    dead_letters: Callable[[str], DeadLetters]
    """The stream's own, by topic id."""
    notes: str = ""
    """Qualified name of the table in which ``init`` notes source types."""
    cluster: str | None = None
    wanted: Wanted | None = None
    """The shape in the stream's file; None keeps the shape of the live table."""
    patience: float = 30.0
    """Seconds to wait for changes that are under way."""
    settle: float = 10.0
    """Seconds that transactions of the source get to their end before its rows are read."""

    @property
    def stream(self) -> str:
        return self.subject.settings.name

    @property
    def successor(self) -> Successor:
        subject = self.subject
        return Successor(subject.client, subject.table, subject.settings.policy, self.notes, self.cluster)

    def shape(self) -> Shape | None:
        """Another shape that the file states for the table. Raises StreamFailed, TableError."""
        return shape_of(self.subject, self.successor.clause, self.wanted) if self.wanted is not None else None

    def of(self, table: TargetTable) -> "Refill":
        """The same stream with another table, whose columns are its own."""
        subject = self.subject
        return replace(self, subject=replace(subject, table=table, columns=filled_columns(table, subject.schema)))

    def waiting(self, topic_id: str, partitions: Mapping[int, int]) -> dict[int, list[int]]:
        """Partition → offsets of the stream's waiting changes."""
        found = {p: [r.offset for r in self.pending.open(topic_id, p) if r.swap is None] for p in partitions}
        return {p: offsets for p, offsets in found.items() if offsets}


def expect_refillable(refill: Refill) -> None:
    """Raises StreamFailed if no other table can take the table's place, TableError if rollups would lack theirs."""
    subject = refill.subject
    table = subject.table
    if subject.condition:
        raise StreamFailed(
            f"{table.qualified} has the rows of several topics, and would lose those of the others",
            hint="Use `ch_sink repair`, which leaves them alone." if subject.key else NEW_SNAPSHOT,
        )
    expect_free_names(subject.client, subject.rollups)
    refill.successor.expect_possible()


def expect_keyed(refill: Refill) -> None:
    """Raises StreamFailed if the rows of the source cannot be distinguished."""
    if not refill.subject.key:
        raise StreamFailed(
            f"{refill.subject.table.qualified} has no key: a row that changes while the source is read would be "
            "counted twice",
            hint=f"Use --against topic if the topic still holds its first records, or set key_columns. {NEW_SNAPSHOT}",
        )


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of the changes that are applied to the rows of the source."""

    at: Mapping[int, int]
    """Partition → offset; every change below it was committed before the rows are read."""
    states: Mapping[int, tuple[int, State]] | None = None
    """The stream's states there, None if it has none yet."""
    epoch: int = 0
    facts: tuple[Fact, ...] = ()
    """Further facts that the fold takes into account."""
    version: int = 0
    """The version of the rows, below the versions of all those changes."""


@dataclass(frozen=True, slots=True)
class NewTable:
    """The table that is filled, and the fold that applies changes to it."""

    refill: Refill
    table: TargetTable
    fold: Fold

    def top(self) -> str:
        """The highest version of a living row, as `TableRefilled` has it.

        Marks of deleted rows do not count: users may remove them.
        """
        subject = self.refill.subject
        target = Target.of(self.table, subject.settings.policy)
        if target.layout.kind == "time" or target.system.version is None:
            return ""
        mark = mark_of(self.table)
        living = f"NOT ({mark})" if mark else "1"
        return str(max_version(subject.client, self.table, empty=-1, condition=living))

    def load(self, topic: TopicState, start: Callable[[], Start], say: Say) -> tuple[int, tuple[TableRefilled, ...]]:
        """Store all rows of the source, and begin the fold behind them. Raises ChSinkError.

        ``start`` is called once the source is open, before anything is read of it. Returns the source's position after
        its rows were read, and the facts to record in the ledger, by partition.
        """
        with filler(self.refill, say) as (reader, columns):
            begun = start()
            position = reader.settled(self.refill.settle)
            if not position:
                say("unknown which changes the rows already contain; changes in flight are applied again")
            floors = _floors(self.refill, topic, begun.at, position, begun.epoch)
            self.fold.begin(begun.at, begun.states, (*begun.facts, *floors))
            subject, began = self.refill.subject, time.monotonic()
            say("reading the source")
            rows = load(subject.client, self.table, columns, reader, begun.version, subject.check, say)
            expect_unique(subject.client, self.table, subject.key, rows)
            say(f"{counted(rows, 'row')} read in {time.monotonic() - began:.0f} seconds")
            return reader.position(), floors


@dataclass(frozen=True, slots=True)
class Moved:
    """The differences between the rows that readers see in a new table and in the former one."""

    gone: int
    came: int
    changed: int
    kept: int
    """Rows of both, with the same values or others."""

    def __str__(self) -> str:
        return f"{counted(self.gone, 'row')} gone, {self.came} new, {self.changed} with other values"


def compared(refill: Refill, new: NewTable) -> Moved:
    """Compare the new table with the live one by key, in the columns that both have.

    Raises StreamFailed if a key has several rows in the new table.
    """
    live, key = refill.subject.table, refill.subject.key
    types = {c.name: c.type for c in live.source_columns}
    columns = tuple(c for c in new.table.source_columns if types.get(c.name) == c.type)
    was, now = ({c.name: c.type for c in table.columns} for table in (live, new.table))
    cast = {name: now[name] for name in key if now[name] != was[name] and not parse_type(now[name]).nullable}
    sides = Side(live, key, columns, key_types=cast), Side(new.table, key, columns)
    rows = " UNION ALL ".join(
        f"SELECT {KEY}, {ROW}, {TIMES}, {which} AS side FROM ({side.live()})" for which, side in enumerate(sides)
    )
    [found] = refill.subject.client.rows(
        "SELECT sum(greatest(old - new, 0)) AS gone, sum(greatest(new - old, 0)) AS came, "
        "countIf(old > 0 AND new > 0 AND was != is) AS changed, countIf(old > 0 AND new > 0) AS kept, "
        "countIf(new > 1) AS several FROM ("
        f"SELECT sumIf({TIMES}, side = 0) AS old, sumIf({TIMES}, side = 1) AS new, "
        f"anyIf({ROW}, side = 0) AS was, anyIf({ROW}, side = 1) AS is FROM ({rows}) GROUP BY {KEY})",
        settings={"max_bytes_before_external_group_by": 1 << 30},
        of=new.table,
        doing=f"compare {live.qualified} with {new.table.qualified}",
    )
    if key and (several := int(found["several"])):
        raise StreamFailed(
            f"{counted(several, 'key')} would have several rows in the new table of {live.qualified}",
            hint="Check init.order_by and init.partition_by: rows of a key must meet in a merge.",
        )
    return Moved(int(found["gone"]), int(found["came"]), int(found["changed"]), int(found["kept"]))


def expect_related(refill: Refill, moved: Moved) -> None:
    """Raises StreamFailed if no row of the table is in one that was filled from the source."""
    if moved.gone and not moved.kept:
        name = refill.subject.table.qualified
        raise StreamFailed(
            f"none of the {counted(moved.gone, 'row')} of {name} is in the source: source.table may be another table",
            hint=f"Check source.url and source.table. If the source now has other rows: TRUNCATE TABLE {name}, then "
            "run the command again.",
        )


@contextmanager
def new_table(refill: Refill, shape: Shape | None, say: Say, *, begun: bool) -> Iterator[NewTable]:
    """The empty table that will replace the stream's. If the context fails, it is dropped.

    ``begun``: whether the stream has read something, and may have kept values of rows that changed their key.
    """
    subject, successor = refill.subject, refill.successor
    successor.clear(say)
    try:
        table = successor.create(shape)
        handover = refill.handover if shape is None else subject.kept(table)
        fold = Fold(
            subject.client,
            table,
            subject.settings,
            subject.topic,
            subject.decoder,
            handover if begun else None,
            say,
            whole_letters=not begun,
        )
        try:
            yield NewTable(refill if shape is None else refill.of(table), table, fold)
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
    expect_key(table, subject.key)
    return refill.of(table)


@contextmanager
def other_table(refill: Refill, handover: Handover | None, say: Say) -> Iterator[NewTable]:
    """The table of `of_table`, to be filled. If the context fails, it is empty again."""
    subject = refill.subject
    fold = Fold(subject.client, subject.table, subject.settings, subject.topic, subject.decoder, handover, say)
    try:
        yield NewTable(refill, subject.table, fold)
    except BaseException:
        with suppress(ChSinkError):  # the error that ended the run is the one to show; the next run says what is left
            subject.still_alone()
            subject.client.command(f"TRUNCATE TABLE {subject.table.qualified}", doing=f"empty {subject.table.name}")
        raise
    finally:
        fold.close()


@contextmanager
def filler(refill: Refill, say: Say) -> Iterator[tuple[SourceReader, list[SnapshotColumn]]]:
    """The source, open, and how its columns are read. Raises ConfigError, SourceError, StreamFailed."""
    subject = refill.subject
    if subject.source is None:
        raise ConfigError(
            "the configuration has no section source", hint="Add source.url, source.username and source.password."
        )
    with closing(subject.source()) as reader:
        policy = subject.settings.policy
        yield reader, every_column(subject.table, subject.columns, subject.key, subject.schema, policy, reader, say)


def _floors(
    refill: Refill, topic: TopicState, at: Mapping[int, int], position: int, epoch: int
) -> tuple[TableRefilled, ...]:
    """The ledger's entries about rows that show every change below this position of the source; 0 for none."""
    if refill.subject.settings.policy.versions.strategy in ("kafka_offset", "source_time"):
        position = 0  # nothing shows when the source's positions restart
    until, run = int(time.time() * 1000) + CLOCKS, new_run()
    return tuple(
        TableRefilled(topic.topic_id, p, offset, position, epoch, until, run=run) for p, offset in sorted(at.items())
    )


def new_run() -> str:
    """The name of a filling, see `TableRefilled`."""
    return uuid.uuid4().hex[:8]


def keep_letters(refill: Refill, fold: Fold) -> None:
    """Make what cannot be applied of an unread topic the stream's dead letters, as the stream would have.

    Raises StreamFailed if bad records stop the stream, or there are very many of them.
    """
    letters = [one for _, one in sorted(fold.letters.stored.items())]
    if letters and (refill.subject.settings.policy.changes.on_bad_record == "fail" or len(letters) > _MOST_LETTERS):
        first = letters[0]
        raise StreamFailed(
            f"{counted(len(letters), 'record')} of topic {first.topic} cannot be applied: first that at offset "
            f"{first.offset} of partition {first.partition}: {first.reason}",
            hint=f"Correct the cause; with on_bad_record: dead_letter, up to {_MOST_LETTERS} become dead letters.",
        )
    if letters:
        refill.dead_letters(fold.topic_id).put(letters, "")


def expect_good_records(refill: Refill, fold: Fold) -> None:
    """Raises StreamFailed if the new table lacks a change that the stream has, or would have."""
    expect_witness(refill.subject, fold)
    known = refill.subject.not_applied(fold.topic_id)
    lost = [letter for letter in fold.unresolved() if (letter.partition, letter.offset) not in known]
    if lost:
        first = min(lost, key=lambda letter: (letter.partition, letter.offset))
        raise StreamFailed(
            f"the new table lacks {counted(len(lost), 'row')}: the change at offset {first.offset} of partition "
            f"{first.partition} leaves out a value, and the row that has it was gone before the source was read",
            hint="Let the stream read the topic to its end, and run `ch_sink resync` again: it begins behind that. If "
            "it stops because rows are missing, `ch_sink repair CONFIG --apply` and `ch_sink resume CONFIG` first.",
        )
