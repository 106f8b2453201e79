"""The exchange that ends a resync, and what the ledger has to learn of it.

The ledger must not know of a new table that did not come, nor may the stream go on with one of which the ledger does
not know. So what it has to learn is noted in the new table's comment before the exchange, and the stream refuses a
table with such a note until the ledger knows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ch_sink.model.topic import TopicState
from ch_sink.ports import FinishedRange, TableRefilled
from ch_sink.stream.reading_again import is_entered
from ch_sink.table.fill_note import marked
from ch_sink.trust.first_load import noted_result
from ch_sink.trust.refill import Refill, Say

__all__ = ["Exchange"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """The exchange of one stream's tables. The stream is held."""

    refill: Refill
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
        ledger.record(*self.facts)
        ledger.results(self.results)
        for partition, offsets in self.resolved.items():
            self.refill.pending.resolve(self.facts[0].topic_id, partition, offsets)

    @classmethod
    def finish(cls, refill: Refill, topic: TopicState, say: Say) -> None:
        """Let the ledger know of an exchange after which a run was killed. Raises ChSinkError."""
        subject, successor = refill.subject, refill.successor
        comment = successor.comment()
        noted = marked(comment)
        if noted is None or "resolved" not in noted:
            return
        facts = [TableRefilled(**fact) for fact in noted["refilled"]]
        results = [noted_result(one) for one in noted["results"]]
        resolved = {int(p): offsets for p, offsets in noted["resolved"].items()}
        if not is_entered(comment, subject.ledger, topic.topic_id):
            say(f"{subject.table.qualified} was exchanged by a run that was killed before the ledger knew")
            with refill.held(topic.topic_id, say):
                cls(refill, facts, results, resolved)._enter()
        successor.unmark(subject.table.qualified, str(noted["comment"]))
