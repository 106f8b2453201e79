"""The exchange that ends a resync: the stream is held still, and the ledger learns of the new table.

The ledger must not know of a new table that did not come, nor may the stream go on with one of which the ledger does
not know. So what it has to learn is noted in the new table's comment before the exchange, and the stream refuses a
table with such a note until the ledger knows.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ch_sink.clickhouse import detect, has_rows, without_foreign
from ch_sink.errors import StreamFailed
from ch_sink.model.counts import Counts
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.ports import FinishedRange, TableRefilled, TopicFacts
from ch_sink.stream.claims import types_of
from ch_sink.stream.rollback import is_entered, marked
from ch_sink.table.ddl import views_of
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.fold import Fold
from ch_sink.trust.refill import Moved, NewTable, Refill, Say, expect_good_records, expect_related, keep_letters
from ch_sink.trust.rollups import refilled
from ch_sink.trust.shape import Shape
from ch_sink.trust.subject import Subject


@dataclass(frozen=True, slots=True)
class Exchange:
    """The exchange of one stream's tables. The stream is held."""

    refill: Refill
    topic: TopicFacts | None
    """Facts to record about a topic of which the stream has read nothing."""
    facts: Sequence[TableRefilled]
    results: Sequence[FinishedRange]
    """The offsets at which the stream goes on, if behind those that it has applied."""
    resolved: Mapping[int, Sequence[int]]
    """Partition → offsets of waiting changes that the new table has."""
    after: Sequence[str] = ()
    """Statements that follow: a table of another shape needs another view."""

    def carry_out(self, say: Say) -> None:
        """Exchange the tables and let the ledger know. Raises ChSinkError."""
        successor, subject = self.refill.successor, self.refill.subject
        comment = successor.comment()
        successor.note(
            {
                "stream": subject.settings.name,
                "topic": asdict(self.topic) if self.topic is not None else None,
                "refilled": [asdict(fact) for fact in self.facts],
                "results": [asdict(result) for result in self.results],
                "resolved": {str(p): list(offsets) for p, offsets in self.resolved.items()},
                "comment": comment,
                "after": list(self.after),
            }
        )
        # A process that was frozen since must not put its table in the place of one that has gone on.
        subject.still_alone()
        subject.ledger.check_claim()
        successor.take_place(say)
        successor.show(self.after)
        self._enter()
        successor.unmark(subject.table.qualified, comment)

    def _enter(self) -> None:
        subject = self.refill.subject
        ledger, policy = subject.ledger, subject.settings.policy
        filled = detect(subject.client, subject.table.database, subject.table.name, policy)
        ledger.restate(subject.settings.terms(filled.uuid, types_of(filled, policy)))
        ledger.record(*([self.topic] if self.topic is not None else []), *self.facts)
        ledger.results(self.results)
        topic_id = self.facts[0].topic_id
        for partition, offsets in self.resolved.items():
            self.refill.pending.resolve(topic_id, partition, offsets)
        # The values for which changes of a former topic wait cannot come, and the new table shows those changes.
        for former, partition in self.refill.pending.places():
            if former != topic_id:
                waiting = [record.offset for record in self.refill.pending.open(former, partition)]
                self.refill.pending.resolve(former, partition, waiting)

    @classmethod
    def finish(cls, refill: Refill, topic: TopicState, say: Say) -> None:
        """Let the ledger know of an exchange after which a run was killed. Raises ChSinkError."""
        subject, successor = refill.subject, refill.successor
        comment = successor.comment()
        noted = marked(comment)
        if noted is None or "results" not in noted:
            return
        if not is_entered(comment, subject.ledger):
            say(f"{subject.table.qualified} was exchanged by a run that was killed before it was recorded")
            with subject.held("resync", say):
                ended = cls._of(refill, noted)
                successor.show(ended.after)
                ended._enter()
        successor.unmark(subject.table.qualified, str(noted["comment"]))

    @classmethod
    def _of(cls, refill: Refill, noted: Mapping[str, Any]) -> "Exchange":
        return cls(
            refill,
            TopicFacts(**noted["topic"]) if noted["topic"] is not None else None,
            [TableRefilled(**fact) for fact in noted["refilled"]],
            [FinishedRange(**{**one, "counts": Counts(), "steps": ()}) for one in noted["results"]],
            {int(p): offsets for p, offsets in noted["resolved"].items()},
            noted["after"],
        )


def results_at(topic: TopicState, states: Mapping[int, tuple[int, State]]) -> list[FinishedRange]:
    """Empty results that let the stream go on at these offsets, in these states."""
    now = time.time()
    return [
        FinishedRange(topic.topic, topic.topic_id, p, offset, offset, state=state.to_json(), started=now, finished=now)
        for p, (offset, state) in sorted(states.items())
    ]


@dataclass(frozen=True, slots=True)
class Way:
    """The origin of the rows of a new table."""

    topic: TopicState
    against: Literal["source", "topic"]
    known: TopicFacts | None
    """The facts to note about the topic if the stream has read nothing of it."""
    shape: Shape | None = None
    """Another shape of the new table."""


def is_read(subject: Subject, topic_id: str) -> bool:
    """Whether the stream has read the topic, and no other one since: after another one, it is read anew."""
    return subject.ledger.topic_ids()[:1] == [topic_id] and bool(subject.reached(topic_id).applied)


def expect_unread(refill: Refill, topic_id: str) -> None:
    """Raises StreamFailed if the stream has begun the topic, or the table has rows and the ledger knows of none."""
    subject = refill.subject
    table = subject.table.qualified
    if is_read(subject, topic_id):
        raise StreamFailed(
            f"stream {refill.stream!r} has begun to fill {table} in the meantime", hint="Run the command again."
        )
    if not subject.ledger.topic_ids() and has_rows(subject.client, subject.table):
        raise StreamFailed(
            f"{table} has rows, and stream {refill.stream!r} has read nothing of topic {refill.subject.settings.topic}",
            hint="Empty the table first, or run the stream first, then use `ch_sink resync CONFIG --apply`.",
        )


def placed(table: TargetTable, target: TargetTable) -> TargetTable:
    """The table under the target's name."""
    return replace(table, name=target.name)


def exchanged(
    refill: Refill, new: NewTable, way: Way, facts: Mapping[int, TableRefilled], moved: Moved, say: Say
) -> float:
    """Put the new table in place while the stream stands still; returns for how many seconds it did.

    ``moved``: how its rows differ from the former ones.
    """
    subject, fold, shape = refill.subject, new.fold, way.shape
    ledger, topic, topic_id = subject.ledger, way.topic, way.topic.topic_id
    with subject.held("resync", say):
        began = time.monotonic()
        applied: Mapping[int, int] = {}
        if way.known is not None:
            expect_unread(refill, topic_id)
            keep_letters(refill, fold)
        else:
            applied = subject.reached(topic_id).applied
            fold.to(applied)
            expect_good_records(refill, fold)
        if way.against == "source":
            expect_related(refill, moved)
        resolved = _no_longer_waiting(refill, fold, topic_id)
        _expect_same_shape(refill)
        top = new.top()
        known = tuple(replace(facts[p], offset=offset, top=top) for p, offset in sorted(fold.at.items()))
        # What a batch that is not finished has stored is not in the new table: a result ends its progress.
        begun = {intent.partition for intent in ledger.open_intents(topic_id)}
        ahead = {p: s for p, s in fold.states().items() if p in begun or s[0] > applied.get(p, -1 if way.known else 0)}
        made = placed(new.table, subject.table)
        changes = shape.after(made, subject.key) if shape else []
        if not shape and made.engine.family is Family.MERGE_TREE:  # key_columns may have changed
            changes = views_of(made, subject.key, refill.cluster)
        after, foreign = without_foreign(subject.client, changes)
        for name in foreign:
            say(f"view {name} is not one that ch_sink keeps and is left alone")
        sql = [statement.sql for statement in after]
        Exchange(refill, way.known, known, results_at(topic, ahead), resolved, sql).carry_out(say)
        refilled(replace(subject, table=made), say)
        return time.monotonic() - began


def _no_longer_waiting(refill: Refill, fold: Fold, topic_id: str) -> dict[int, list[int]]:
    """Partition → offsets of the stream's waiting changes that the new table has.

    Raises StreamFailed if the new table lacks changes for which the stream does not wait.
    """
    mine, own = fold.waiting(), refill.waiting(topic_id, fold.at)
    if any(set(offsets) - set(own.get(p, ())) for p, offsets in mine.items()):
        raise StreamFailed(
            f"changes of {refill.stream!r} wait for values of other partitions, or of a row that was purged by its key",
            hint="Let the stream catch up, then try again; after a purge by key use --against source.",
        )
    # Those of a batch that is not finished are behind what the new table has.
    return {p: sorted(o for o in {*offsets} - {*mine.get(p, ())} if o < fold.at[p]) for p, offsets in own.items()}


def _expect_same_shape(refill: Refill) -> None:
    """Raises StreamFailed if the table was altered since the new one was made like it."""
    table = refill.subject.table
    now = detect(refill.subject.client, table.database, table.name, refill.subject.settings.policy)
    if [(c.name, c.type) for c in now.columns] != [(c.name, c.type) for c in table.columns]:
        raise StreamFailed(f"{table.qualified} got other columns in the meantime", hint="Run the command again.")
