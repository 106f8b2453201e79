"""What a topic can tell of a table: all of its rows, or only those that have changed since it was filled otherwise."""

from ch_sink.model.topic import TopicState
from ch_sink.order import State
from ch_sink.ports import Ledger, TableRefilled
from ch_sink.trust.differences import Differences
from ch_sink.trust.fold import Fold

__all__ = ["begin_at_load", "is_incomplete", "loads_of", "without_history"]


def begin_at_load(fold: Fold, ledger: Ledger, topic: TopicState) -> int:
    """Begin where the topic begins, or where the table was filled from the source; returns the sum of the offsets.

    What the topic holds below that is in the rows that were loaded, or came too late for them: the stream drops it.
    """
    loads = loads_of(ledger, topic.topic_id)
    at = {p: max([low, *(load.offset for load in loads if load.partition == p)]) for p, low in topic.low.items()}
    texts = {p: ledger.state_at(topic.topic_id, p, at[p]) for p in at} if loads else {}
    fold.begin(at, {p: (at[p], State.from_json(text)) for p, text in texts.items() if text}, loads)
    return sum(at.values())


def is_incomplete(ledger: Ledger, topic: TopicState) -> bool:
    """Whether the table may rightly have rows of which the topic holds no event, or none since they were loaded."""
    return any(topic.low.values()) or bool(loads_of(ledger, topic.topic_id))


def without_history(differences: Differences, found: int, *, incomplete: bool) -> int:
    """Drop rows of the table of which an incomplete topic says nothing: they are no difference; returns how many."""
    return differences.drop(found, "kind = 'extra' AND source_version = ''") if incomplete else 0


def loads_of(ledger: Ledger, topic_id: str) -> list[TableRefilled]:
    """The fillings from the source, by `bootstrap` and `resync`; not those from the topic itself."""
    return [load for load in ledger.facts(TableRefilled) if load.topic_id == topic_id and load.until]
