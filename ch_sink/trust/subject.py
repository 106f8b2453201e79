"""The subject of a command: one stream with its table, and what of the table is compared."""

from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from ch_sink.clickhouse import Client
from ch_sink.errors import AccessDenied, ClickHouseError, StreamFailed, TableError
from ch_sink.model.counts import counted
from ch_sink.order import State
from ch_sink.ports import Claim, Handover, Ledger, RowsEdited, TopicFacts
from ch_sink.ports.ledger import StreamStates
from ch_sink.snapshot import SourceReader
from ch_sink.stream.ports import StreamSettings
from ch_sink.stream.standing import held
from ch_sink.table.model import TargetTable
from ch_sink.table.rollup import Rollup
from ch_sink.trust.fold import Fold, MakeDecoder
from ch_sink.trust.topic import Check, Reached, TopicReader, never_stops, reached
from ch_sink.types.build import is_constant
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema
from ch_sink.types.sql import tokenize


@dataclass(frozen=True, slots=True)
class Subject:
    """One stream and its table."""

    client: Client
    settings: StreamSettings
    table: TargetTable
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    """The columns that the stream fills."""
    database: str
    """The database of the shadow."""
    topic: TopicReader
    decoder: MakeDecoder
    ledger: Ledger
    """The stream's own; it is read, and claimed only by commands that need the stream to stand still."""
    states: StreamStates
    """The table in which a job is asked to pause."""
    schema: RowSchema | None = None
    """The row type that the topic shows."""
    source: Callable[[], SourceReader] | None = None
    """Opens the source table, if the configuration has one."""
    condition: str = ""
    """SQL that tells the stream's rows from those of other streams in the same table."""
    check: Check = never_stops
    """Called between batches of rows, and while a command waits."""
    handover: Callable[[TargetTable], Handover] | None = None
    """Gives what the stream has kept of rows that changed their key, as a table's columns hold it."""
    failed: Callable[[str], Set[tuple[int, int]]] = lambda _: frozenset()
    """By a topic's id: partition and offset of the stream's dead letters that were not applied since, and of its
    waiting changes."""
    rollups: tuple[Rollup, ...] = ()
    """The rollups that the stream keeps beside the table."""
    still_alone: Check = never_stops
    """Called before a command writes; raises StreamFailed if another command may be writing to the table."""

    def kept(self, table: TargetTable) -> Handover | None:
        """The values of rows that changed their key before a fold into this table begins."""
        return self.handover(table) if self.handover is not None else None

    @property
    def declared(self) -> RowSchema | None:
        """The row type, if events state it."""
        return self.schema if self.schema is not None and not self.schema.inferred else None

    def not_applied(self, topic_id: str) -> Set[tuple[int, int]]:
        """Partition and offset of the records that the table does not show: failed, waiting, or of an erased key."""
        edits = [fact for fact in self.ledger.facts(RowsEdited) if fact.topic_id == topic_id]
        return self.failed(topic_id) | {(edit.partition, offset) for edit in edits for offset in edit.skip}

    def held(self, what: str, say: Callable[[str], None]) -> AbstractContextManager[Claim]:
        """Let the stream stand still for a command: see `ch_sink.stream.standing.held`."""
        return held(self.ledger, self.states, what, check=self.check, say=say)

    def reached(self, topic_id: str) -> Reached:
        """The progress of the stream in this topic."""
        return reached(self.ledger, topic_id)


@dataclass(frozen=True, slots=True)
class Options:
    """Options that select what to compare."""

    columns: tuple[str, ...] = ()
    """Names of the columns that are compared, besides the key; empty for all."""
    condition: str = ""
    """SQL over the table's columns; rows that meet it in the source or in the table are compared."""
    share: float = 1.0
    examples: int = 10
    against: Literal["source", "topic"] = "topic"
    patience: float = 30.0
    """Seconds to wait for the stream to apply what keys that change need to be judged."""
    bounds: tuple[int | None, int | None] | None = None
    """Only rows whose first key column lies between these, the second excluded; None for no limit."""
    parallel: int = 0
    """Processes that read the source; 0 for one on a small table, and up to four on a large one."""

    @property
    def of_all_rows(self) -> bool:
        """Whether every row and column is compared."""
        return not (self.columns or self.condition or self.bounds) and self.share == 1.0


def chosen_columns(subject: Subject, options: Options) -> tuple[Column, ...]:
    """The columns that are compared. Raises StreamFailed if the stream does not fill one of them."""
    wanted = [*options.columns]
    unknown = [name for name in wanted if name not in {c.name for c in subject.columns}]
    if unknown:
        raise StreamFailed(
            f"{subject.table.qualified} has no column {unknown[0]!r} that the stream fills",
            hint=f"Its columns are {', '.join(c.name for c in subject.columns)}.",
        )
    names = {*wanted, *subject.key} if wanted else {c.name for c in subject.columns}
    return tuple(c for c in subject.columns if c.name in names)


def states_at(subject: Subject, topic_id: str, applied: Mapping[int, int]) -> dict[int, tuple[int, State]]:
    """The stream's state at the offsets that it had applied, by partition; without those that it has not recorded.

    A partition that the stream has not begun is at offset 0, and counts: its changes are all to come.
    """
    texts = subject.ledger.states_at(topic_id, applied)
    epoch = max((f.epoch for f in subject.ledger.facts(TopicFacts) if f.topic_id == topic_id), default=0)
    known = {p: offset for p, offset in applied.items() if texts.get(p) or not offset}
    return {p: (offset, State.from_json(texts.get(p)).raised_to(epoch)) for p, offset in known.items()}


def filled_columns(table: TargetTable, schema: RowSchema | None) -> tuple[Column, ...]:
    """Columns that events fill. One that the topic never states, and whose default varies, is the user's own."""
    stated = {f.name for f in (*schema.fields, *schema.key)} if schema is not None else set()
    names = [c.name for c in table.columns]
    return tuple(
        c
        for c in table.source_columns
        if c.name in stated or not c.default_expression or is_constant(c.default_expression, names)
    )


def expect_condition(subject: Subject, condition: str) -> None:
    """Raises StreamFailed if ClickHouse does not understand the condition over the table's columns."""
    if not condition:
        return
    table = subject.table.qualified
    try:
        tokenize(condition)
        subject.client.rows(f"SELECT 1 AS one FROM {table} WHERE ({condition}) LIMIT 0", doing=f"look into {table}")
    except (ClickHouseError, TableError) as error:
        if error.temporary or isinstance(error, AccessDenied):
            raise
        raise StreamFailed(
            f"--where {condition} is not a condition over {table}: {error}",
            hint=f"Write SQL over its columns: {', '.join(column.name for column in subject.columns)}.",
        ) from None


def expect_witness(subject: Subject, fold: Fold) -> None:
    """Raises StreamFailed if the fold lacks a change that the stream has applied, or would apply.

    Such a topic says nothing of the table: it would call the stream's own rows wrong.
    """
    known, reached = subject.not_applied(fold.topic_id), subject.ledger.progress(fold.topic_id)

    def below_the_start(partition: int, offset: int) -> bool:
        read = subject.ledger.states_over(fold.topic_id, partition, offset, offset + 1)
        return offset < reached.get(partition, 0) and not read

    lost = [
        one
        for at, one in sorted(fold.letters.stored.items())
        if one.kind != "unresolved" and at not in known and not below_the_start(one.partition, one.offset)
    ]
    if lost:
        raise StreamFailed(
            f"{counted(len(lost), 'record')} of the topic cannot be applied, and {'is' if len(lost) == 1 else 'are'} "
            f"not among the dead letters of {subject.settings.name!r}: first that at offset {lost[0].offset} of "
            f"partition {lost[0].partition}: {lost[0].reason}",
            hint="The stream has applied what it has read: restore the schema, the setting or the column's type that "
            "it had, or use --against source. What it has not read becomes dead letters by `ch_sink run`.",
        )
