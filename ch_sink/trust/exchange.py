"""The exchange that ends a resync, and what the ledger has to learn of it.

The ledger must not know of a new table that did not come, nor may the stream go on with one of which the ledger does
not know. So what it has to learn is noted in the new table's comment before the exchange, and the stream refuses a
table with such a note until the ledger knows.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.ports import FinishedRange, TableRefilled, TopicFacts
from ch_sink.table.fill_note import is_entered, marked
from ch_sink.trust.refill import Refill, Say

__all__ = ["Exchange", "results_at"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """The exchange of one stream's tables. The stream is held."""

    refill: Refill
    topic: TopicFacts | None
    """What the ledger has to know of a topic of which the stream has read nothing."""
    facts: Sequence[TableRefilled]
    results: Sequence[FinishedRange]
    """Where the stream goes on if that is behind what it has applied."""
    resolved: Mapping[int, Sequence[int]]
    """Partition → offsets of waiting changes that the new table has."""

    def carry_out(self, say: Say) -> None:
        """Exchange the tables and let the ledger know. Raises ChSinkError."""
        successor, table = self.refill.successor, self.refill.subject.table
        comment = successor.comment()
        successor.note(
            {
                "topic": asdict(self.topic) if self.topic is not None else None,
                "refilled": [asdict(fact) for fact in self.facts],
                "results": [asdict(result) for result in self.results],
                "resolved": {str(p): list(offsets) for p, offsets in self.resolved.items()},
                "comment": comment,
            }
        )
        successor.take_place(say)
        self._enter()
        successor.unmark(table.qualified, comment)

    def _enter(self) -> None:
        ledger = self.refill.subject.ledger
        ledger.record(*([self.topic] if self.topic is not None else []), *self.facts)
        ledger.results(self.results)
        for partition, offsets in self.resolved.items():
            self.refill.pending.resolve(self.facts[0].topic_id, partition, offsets)

    @classmethod
    def finish(cls, refill: Refill, topic: TopicState, say: Say) -> None:
        """Let the ledger know of an exchange after which a run was killed. Raises ChSinkError."""
        subject, successor = refill.subject, refill.successor
        comment = successor.comment()
        noted = marked(comment)
        if noted is None or "results" not in noted:
            return
        if not is_entered(comment, subject.ledger):
            say(f"{subject.table.qualified} was exchanged by a run that was killed before the ledger knew")
            with refill.held(topic.topic_id, say):
                cls._of(refill, noted)._enter()
        successor.unmark(subject.table.qualified, str(noted["comment"]))

    @classmethod
    def _of(cls, refill: Refill, noted: Mapping[str, Any]) -> "Exchange":
        return cls(
            refill,
            TopicFacts(**noted["topic"]) if noted["topic"] is not None else None,
            [TableRefilled(**fact) for fact in noted["refilled"]],
            [FinishedRange(**{**one, "cuts": tuple(one["cuts"])}) for one in noted["results"]],
            {int(p): offsets for p, offsets in noted["resolved"].items()},
        )


def results_at(topic: TopicState, states: Mapping[int, tuple[int, State]]) -> list[FinishedRange]:
    """Empty results that let the stream go on at these offsets, in these states."""
    now = time.time()
    return [
        FinishedRange(topic.topic, topic.topic_id, p, offset, offset, state=state.to_json(), started=now, finished=now)
        for p, (offset, state) in sorted(states.items())
    ]
