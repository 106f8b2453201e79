"""The procedure of ``replay``: a range of offsets once more, into the stream's table or into another one.

Into its own table a replay changes nothing that is right: rows get the versions that they had. Where an engine keeps
no trace of deleted rows, a range that ends early would bring rows back that were deleted after it; where versions are
times, it would bring back what a later change of the same time has replaced. There the replay goes on to the offset
that the stream has applied, and the stream has to stand still.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ch_sink.clickhouse import detect
from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.merge import version_column
from ch_sink.model.counted import counted
from ch_sink.model.topic import TopicState
from ch_sink.order import State
from ch_sink.pipeline.target import Target
from ch_sink.ports import FinishedRange, Handover, RowsRemoved, TableRefilled, TopicFacts
from ch_sink.sources import source_for
from ch_sink.stream.reading_again import expect_entered
from ch_sink.stream.rollback import repairs_above
from ch_sink.table.model import Family, TargetTable, forgets_deletes
from ch_sink.trust.erased_offsets import WithoutErased
from ch_sink.trust.fold import Fold
from ch_sink.trust.history import facts_of, floors_of, loads_of
from ch_sink.trust.removal import mark_of, place_of
from ch_sink.trust.repaired_versions import counts
from ch_sink.trust.subject import Subject
from ch_sink.trust.successor import Successor
from ch_sink.trust.topic import TopicReader
from ch_sink.types.sql import quote

__all__ = ["Replayed", "replayed"]

_HISTORY = 10_000
"""Results of the ledger that are searched for a state to begin with."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was read again."""

    stream: str
    table: str
    ranges: dict[int, tuple[int, int]]
    """Partition → the offsets [start, end) that were read. The start may lie before the wanted one."""
    dead_letters: int
    waiting: int = 0
    """Changes that are not stored, since they wait for the values of a row under its old key."""

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "table": self.table,
            "partitions": [{"partition": p, "start": a, "end": b} for p, (a, b) in sorted(self.ranges.items())],
            "dead_letters": self.dead_letters,
            "waiting": self.waiting,
        }


def replayed(
    subject: Subject,
    first: Mapping[int, int],
    end: Mapping[int, int],
    into: str = "",
    say: Callable[[str], None] = lambda _: None,
    handover: Callable[[TargetTable], Handover] | None = None,
) -> Replayed:
    """Read the offsets [first, end) of each partition again. Raises ChSinkError.

    Args:
        into: name of another table.
        handover: gives what the stream has kept of rows that changed their key, for a table. The first half of such a
            change may lie before the range, or in another partition.
    """
    table = subject.table
    if into:
        table = detect(subject.client, subject.table.database, into, subject.settings.policy)
    own = table.qualified == subject.table.qualified
    topic = subject.topic.state(subject.settings.topic)
    expect_entered(subject.table, subject.ledger, topic.topic_id)
    applied = subject.reached(topic.topic_id).applied
    if own:
        _expect_repeatable(table)
    forgets = forgets_deletes(table)
    # Of changes of one time the one that is inserted last stays: it has to be the newest again.
    stands = forgets or (version_column(table) is not None and not counts(table))
    # Where marks of deleted rows are gone, a range that ends before the delete would bring the row back as well.
    removed = [r for r in subject.ledger.facts(RowsRemoved) if r.topic_id == topic.topic_id]
    loads = loads_of(subject.ledger, topic.topic_id) if own else []
    starts = _starts(
        subject, topic, {p: max(offset, topic.low[p]) for p, offset in first.items() if p in topic.low}, loads
    )
    from_first = own and all(at == topic.low[p] for p, (at, _) in starts.items())
    if from_first and len({state.epoch for _, state in starts.values()}) > 1:
        # Partitions were added: from the first offsets on, one epoch will do.
        began = _begun(facts_of(subject.ledger, topic.topic_id))
        starts = {p: (at, began) for p, (at, _) in starts.items()}
    # So would one that ends before a truncate, of rows that were never stored since both were read at once.
    epoch = min((state.epoch for _, state in starts.values()), default=0)
    floors = floors_of(subject.ledger, topic, epoch) if own else ()
    further = stands or bool(removed) or floors is None
    if own:
        # What the stream has not applied yet is its own to apply.
        end = {p: applied.get(p, 0) if further else min(offset, applied.get(p, 0)) for p, offset in end.items()}
    ranges = {p: (at, end[p]) for p, (at, _) in starts.items() if at < min(end.get(p, 0), topic.high[p])}
    if own and len({starts[p][1].epoch for p in ranges}) > 1:
        raise StreamFailed(
            f"{table.qualified}: the partitions were in different epochs at the offsets where reading would begin, so "
            "that old changes of one would win over newer ones",
            hint="Replay from the first offset (--from 0), or into another table with --into.",
        )
    if own:
        _expect_above_repairs(subject, topic, ranges)
    if own and not forgets:
        _expect_one_strategy(subject, topic, ranges)
    topic_reader = WithoutErased.of(subject.topic, removed) if own else subject.topic
    if own and (removed or floors is None):
        _mark_removed(subject, topic_reader, starts, ranges, topic, say)
    behind = handover(table) if handover is not None else None
    fold = Fold(subject.client, table, subject.settings, topic_reader, subject.decoder, behind)
    if own and stands:
        subject.ledger.claim(f"replay-{uuid.uuid4().hex[:8]}")
    try:
        fold.begin({p: a for p, (a, _) in ranges.items()}, {p: starts[p] for p in ranges}, (*loads, *(floors or ())))
        say(f"reading {counted(sum(b - a for a, b in ranges.values()), 'offset')} again")
        fold.to({p: min(b, topic.high[p]) for p, (_, b) in ranges.items()})
        waiting = sum(map(len, fold.waiting().values()))
    finally:
        fold.close()
        if own and stands:
            subject.ledger.release()
    name, letters = table.qualified.replace("`", ""), sum(fold.letters.kinds.values())
    return Replayed(subject.settings.name, name, ranges, letters, waiting)


def _mark_removed(
    subject: Subject,
    reader: TopicReader,
    starts: Mapping[int, tuple[int, State]],
    ranges: Mapping[int, tuple[int, int]],
    topic: TopicState,
    say: Callable[[str], None],
) -> None:
    """Mark the purged rows that the replay would bring back until it comes to their deletes, were it killed before.

    The range is read into a table aside, whose marks are taken over for rows of which the table has nothing.
    """
    table, mark = subject.table, mark_of(subject.table)
    if not mark:
        return
    aside = Successor(subject.client, table, subject.settings.policy)
    aside.clear(say)
    fold = Fold(subject.client, aside.create(), subject.settings, reader, subject.decoder)
    try:
        fold.begin({p: a for p, (a, _) in ranges.items()}, {p: starts[p] for p in ranges})
        say("looking for rows that were purged")
        fold.to({p: min(b, topic.high[p]) for p, (_, b) in ranges.items()})
        names = ", ".join(quote(c.name) for c in table.columns if c.stored)
        subject.client.command(
            f"INSERT INTO {table.qualified} ({names}) SELECT {names} FROM {aside.qualified} "
            f"WHERE {mark} AND {place_of(table)} NOT IN (SELECT {place_of(table)} FROM {table.qualified})",
            settings={"insert_deduplicate": 0, "max_partitions_per_insert_block": 0},
            doing=f"mark purged rows of {table.qualified}",
        )
    finally:
        fold.close()
        with suppress(ChSinkError):  # the next run drops it
            aside.drop()


def _expect_repeatable(table: TargetTable) -> None:
    if table.engine.family is Family.MERGE_TREE:
        raise StreamFailed(
            f"{table.qualified} keeps every change as a row: a replay would store them a second time",
            hint="Replay into another table, with --into.",
        )


def _expect_above_repairs(subject: Subject, topic: TopicState, ranges: Mapping[int, tuple[int, int]]) -> None:
    starts = {p: start for p, (start, _) in ranges.items()}
    for fact in repairs_above(subject.ledger, topic.topic_id, starts):
        if fact.outranked:
            raise StreamFailed(
                f"{subject.table.qualified} was repaired when offset {fact.offset} of partition "
                f"{fact.partition} was reached: changes below it alone would undo that",
                hint="Replay from there on (--from), or into another table with --into.",
            )


def _expect_one_strategy(
    subject: Subject,
    topic: TopicState,
    ranges: Mapping[int, tuple[int, int]],
) -> None:
    """Raises StreamFailed if changes of the ranges, or later ones, got versions by another strategy than today's."""
    states = [State.from_json(r.state) for r in subject.ledger.history(_HISTORY) if _behind(r, topic, ranges)]
    connectors = {state.profile.connector for state in states} - {""}
    target = Target.of(subject.table, subject.settings.policy)
    now = {target.strategy(source_for(connector)) for connector in connectors}
    if before := {state.strategy for state in states} - {"", *now}:
        raise StreamFailed(
            f"{subject.table.qualified}: changes had versions by {before.pop()} when they were read, and would get "
            f"them by {', '.join(now)} now",
            hint="Replay changes that were read since then (--from), or into another table with --into.",
        )


def _behind(result: FinishedRange, topic: TopicState, ranges: Mapping[int, tuple[int, int]]) -> bool:
    reads = ranges.get(result.partition)
    return result.topic_id == topic.topic_id and reads is not None and result.end > reads[0] and bool(result.state)


def _starts(
    subject: Subject, topic: TopicState, first: Mapping[int, int], loads: Sequence[TableRefilled]
) -> dict[int, tuple[int, State]]:
    """Where reading begins, and the state there: the last recorded one that is not after the wanted offset.

    ``loads``: fillings from the source. What lies below them is not read: they are right, and the table has no trace of
    rows that were deleted before.
    """
    known: dict[int, tuple[int, str]] = {}
    for result in subject.ledger.history(_HISTORY):
        place = known.get(result.partition, (-1, ""))
        wanted = topic.low.get(result.partition, 0) <= result.end <= first.get(result.partition, -1)
        if result.topic_id == topic.topic_id and wanted and result.state and result.end > place[0]:
            known[result.partition] = (result.end, result.state)
    for load in loads:
        reached = max(known.get(load.partition, (-1, ""))[0], topic.low.get(load.partition, 0) - 1)
        if load.offset > reached:  # else the topic no longer holds what lies there
            text = subject.ledger.states_at(topic.topic_id, {load.partition: load.offset}).get(load.partition, "")
            known[load.partition] = load.offset, text
    facts = facts_of(subject.ledger, topic.topic_id)
    began = {p: _begun(facts, p) for p in first}
    found = {p: (known[p][0], State.from_json(known[p][1])) for p in first if p in known}
    # Where a partition begins, what is recorded may be of before its first batch.
    found = {p: (at, state.raised_to(began[p].epoch)) for p, (at, state) in found.items()}
    return {p: found.get(p, (topic.low[p], began[p])) for p in first}


def _begun(known: Sequence[TopicFacts], partition: int = 0) -> State:
    """The state with which the stream began a partition of the topic."""
    return State().raised_to(min((facts.epoch for facts in known if facts.partitions > partition), default=0))
