"""The end of a first load: the new table takes the place of the empty one, and the ledger learns where to go on.

What the ledger has to learn is noted in the new table's comment before the exchange, so that a run which is killed
between both is ended by the next one.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ch_sink.errors import StreamFailed
from ch_sink.model.topic import TopicState
from ch_sink.order import State
from ch_sink.ports import FinishedRange, RangeIntent, TableRefilled, TopicFacts
from ch_sink.stream.reading_again import expect_entered
from ch_sink.table.fill_note import marked
from ch_sink.trust.refill import Refill, Say

__all__ = ["Facts", "FirstLoad", "Placed", "noted_result", "results_at"]

Facts = tuple[TopicFacts, *tuple[TableRefilled, ...]]


@dataclass(frozen=True, slots=True)
class Placed:
    """A table that has taken the place of the empty one."""

    rows: int
    start: dict[int, int]
    """Partition → the offset at which the stream goes on."""


@dataclass(frozen=True, slots=True)
class FirstLoad:
    """The first load of one stream's table."""

    refill: Refill
    topic: TopicState
    doing: str
    """What cannot be done to a table that is not empty."""

    def expect_empty(self) -> None:
        """Raises StreamFailed if the table has rows, or its stream has begun."""
        subject, stream = self.refill.subject, self.refill.stream
        table = subject.table.qualified
        known = subject.reached(self.topic.topic_id).applied
        if (has_rows := self._has_rows()) or known:
            why = "it has rows" if has_rows else f"stream {stream!r} has begun to fill it"
            raise StreamFailed(
                f"{table} cannot be {self.doing}: {why}",
                hint="Fill it anew by `ch_sink resync CONFIG --apply`."
                if known
                else "Empty it first, or let the stream begin and then use `ch_sink resync CONFIG --apply`.",
            )

    def epoch(self) -> TopicFacts:
        """The topic with an epoch of its own, above all that the ledger knows."""
        ledger = self.refill.subject.ledger
        epochs = [State.from_json(t.state).epoch for t in ledger.totals()] + [t.epoch for t in ledger.facts(TopicFacts)]
        return TopicFacts(self.topic.topic_id, len(self.topic.high), max(epochs, default=-1) + 1)

    def put_in_place(self, facts: Facts, results: Sequence[FinishedRange], rows: int, say: Say) -> Placed:
        """Exchange both tables while the stream is held, and tell the ledger. Raises ChSinkError."""
        refill, subject = self.refill, self.refill.subject
        comment, top = self._own_comment(), refill.top()
        facts = (facts[0], *(replace(fact, top=top) for fact in facts[1:]))
        refill.successor.note(
            {
                "topic": asdict(facts[0]),
                "refilled": [asdict(fact) for fact in facts[1:]],
                "results": [asdict(result) for result in results],
                "comment": comment,
                "rows": rows,
            }
        )
        with refill.held(self.topic.topic_id, say):
            self.expect_empty()
            refill.successor.take_place(say)
            self._enter(facts, results)
        refill.successor.unmark(subject.table.qualified, comment)
        return _placed(results, rows)

    def _has_rows(self) -> bool:
        table = self.refill.subject.table
        found = self.refill.subject.client.rows(
            f"SELECT 1 AS one FROM {table.qualified} LIMIT 1", of=table, doing=f"look into {table.qualified}"
        )
        return bool(found)

    def left(self, say: Say, *, apply: bool) -> Placed | None:
        """What an earlier run has filled before it was killed, ended now; None if there is no such run.

        Raises StreamFailed if there is one, without ``apply``.
        """
        subject = self.refill.subject
        if not apply:
            expect_entered(subject.table, subject.ledger, self.topic.topic_id)
            return None
        placed = self._finished(say)
        if placed is None:
            self._drop_former(say)
        return placed

    def _drop_former(self, say: Say) -> None:
        """Drop what a run left that was killed behind its end, if the stream has begun since."""
        if self.refill.subject.reached(self.topic.topic_id).applied:
            self.refill.successor.clear(say)

    def _finished(self, say: Say) -> Placed | None:
        """Do what a run has left to do that was killed before the ledger knew; None if there is no such run."""
        refill, subject = self.refill, self.refill.subject
        noted = marked(refill.successor.comment())
        if noted is None or "results" not in noted or "resolved" in noted:
            return None
        name = subject.table.qualified.replace("`", "")
        known = subject.reached(self.topic.topic_id).applied
        if noted["rows"] and not known and not self._has_rows():
            say(f"{name} was filled by a run that was killed before the ledger knew, and is empty now")
            refill.successor.unmark(subject.table.qualified, str(noted["comment"]))
            return None
        say(f"{name} was filled by a run that was killed before the ledger knew")
        facts: Facts = (TopicFacts(**noted["topic"]), *(TableRefilled(**fact) for fact in noted["refilled"]))
        results = [noted_result(one) for one in noted["results"]]
        if facts[0].topic_id != self.topic.topic_id:
            raise StreamFailed(
                f"topic {self.topic.topic} was recreated since {name} was filled",
                hint="Empty the table and begin again.",
            )
        if not known:
            with refill.held(self.topic.topic_id, say):
                self._enter(facts, results)
        refill.successor.unmark(subject.table.qualified, str(noted["comment"]))
        refill.successor.clear(say)
        return _placed(results, int(noted["rows"]))

    def _enter(self, facts: Facts, results: Sequence[FinishedRange]) -> None:
        """Let the ledger know what was read, where the stream goes on, and of the floor. The stream is held."""
        ledger = self.refill.subject.ledger
        ledger.record(*facts)
        read = [RangeIntent(r.topic, r.topic_id, r.partition, r.start, r.end) for r in results if r.end > r.start]
        if read:
            ledger.intents(read)
        ledger.results(results)

    def _own_comment(self) -> str:
        comment = self.refill.successor.comment()
        noted = marked(comment)
        return str(noted["comment"]) if noted is not None and "comment" in noted else comment


def results_at(topic: TopicState, states: Mapping[int, tuple[int, State]]) -> list[FinishedRange]:
    """Empty results that let the stream go on at these offsets, in these states."""
    now = time.time()
    return [
        FinishedRange(topic.topic, topic.topic_id, p, offset, offset, state=state.to_json(), started=now, finished=now)
        for p, (offset, state) in sorted(states.items())
    ]


def noted_result(noted: Mapping[str, Any]) -> FinishedRange:
    """A result from what was noted of it."""
    return FinishedRange(**{**noted, "cuts": tuple(noted["cuts"])})


def _placed(results: Sequence[FinishedRange], rows: int) -> Placed:
    return Placed(rows, {r.partition: r.end for r in results})
