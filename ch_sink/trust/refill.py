"""What resync and bootstrap have in common: a new table, filled from the source and brought up to a place of the topic.

The place O in the topic is read first, then the source's rows. Every change below O was committed before the rows were
read, so they show it. Every change from O on is applied to them in its order, also one that they show already: after
the last change of a row the row is as the source has it. So nothing has to be locked, and no position of the source has
to be compared with one of Kafka.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

from ch_sink.errors import ChSinkError, ConfigError, StreamFailed
from ch_sink.model.counted import counted
from ch_sink.model.topic import TopicState
from ch_sink.ports import Handover, Pending, TableRefilled
from ch_sink.ports.stream_states import StreamStates
from ch_sink.snapshot import SourceReader
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.fill import Filling, expect_unique, filling
from ch_sink.trust.fold import Fold
from ch_sink.trust.successor import Successor
from ch_sink.trust.verify import Subject

__all__ = ["Refill", "Say", "expect_good_records", "expect_refillable", "filler", "floors", "loaded", "successor_table"]

Say = Callable[[str], None]
_CLOCKS = 60_000
"""Milliseconds by which the source's clock may be ahead: later changes are never taken for old ones."""


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

    @property
    def successor(self) -> Successor:
        subject = self.subject
        return Successor(subject.client, subject.table, subject.settings.policy, self.notes, self.cluster)

    def waiting(self, topic_id: str, partitions: Mapping[int, int]) -> dict[int, list[int]]:
        """Partition → offsets of the stream's waiting changes."""
        found = {p: [r.offset for r in self.pending.open(topic_id, p) if r.swap is None] for p in partitions}
        return {p: offsets for p, offsets in found.items() if offsets}


def expect_refillable(refill: Refill) -> None:
    """Raises StreamFailed if the table cannot be filled from its source."""
    subject = refill.subject
    table = subject.table
    if not subject.key:
        raise StreamFailed(
            f"{table.qualified} has no key: a row that changes while the source is read would be counted twice",
            hint="Let the connector take the snapshot, or set key_columns.",
        )
    if subject.condition:
        raise StreamFailed(
            f"{table.qualified} has the rows of several topics, and would lose those of the others",
            hint="Use `ch_sink repair`, which leaves them alone.",
        )
    if table.engine.family is Family.COALESCING:
        raise StreamFailed(f"{table.qualified}: {table.engine.name} is not served", hint="Use another engine.")
    refill.successor.expect_possible()


@contextmanager
def successor_table(successor: Successor, say: Say) -> Iterator[TargetTable]:
    """The new table, empty. If the context fails, it is dropped."""
    successor.clear(say)
    try:
        yield successor.create()
    except BaseException:
        with suppress(ChSinkError):  # the error that ended the run is the one to show; the next run drops the table
            successor.drop()
        raise


@contextmanager
def filler(refill: Refill, say: Say) -> Iterator[tuple[SourceReader, Filling]]:
    """The source, open, and how it is read. Raises ConfigError, SourceError, StreamFailed."""
    subject = refill.subject
    if subject.source is None:
        raise ConfigError(
            "the configuration has no section source", hint="Add source.url, source.username and source.password."
        )
    with closing(subject.source()) as reader:
        made = filling(
            subject.table, subject.columns, subject.key, subject.schema, subject.settings.policy, reader, say
        )
        yield reader, made


def loaded(
    refill: Refill, table: TargetTable, reader: SourceReader, made: Filling, version: int, say: Say
) -> tuple[int, int]:
    """Load all rows; returns their number and the source's position after that. Raises ChSinkError."""
    say("reading the source")
    began = time.monotonic()
    rows = made.load(refill.subject.client, table, reader, version, say)
    expect_unique(refill.subject.client, table, refill.subject.key, rows)
    say(f"{counted(rows, 'row')} read in {time.monotonic() - began:.0f} seconds")
    return rows, reader.position()


def floors(
    refill: Refill, topic: TopicState, at: Mapping[int, int], position: int, epoch: int
) -> tuple[TableRefilled, ...]:
    """What the ledger has to know of rows that show every change below this position of the source; 0 for none."""
    if refill.subject.settings.policy.versions.strategy == "insertion_order":
        position = 0
    until = int(time.time() * 1000) + _CLOCKS
    return tuple(TableRefilled(topic.topic_id, p, offset, position, epoch, until) for p, offset in sorted(at.items()))


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
