"""How much a topic shows of its table: all rows, or only those changed since the table was filled another way."""

from collections.abc import Sequence
from itertools import pairwise

from ch_sink.errors import StreamFailed
from ch_sink.model.change import Op
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.ports import Ledger, TableRefilled, TopicFacts, TruncateFloor
from ch_sink.stream.batch_plan import expect_end_still, other_topic
from ch_sink.stream.tasks import RangeTask
from ch_sink.trust.differences import Differences
from ch_sink.trust.fold import Fold
from ch_sink.trust.refill import NEW_SNAPSHOT
from ch_sink.trust.subject import Subject

_PROBE = 200
"""Offsets in which one event is looked for."""


def expect_one_order(ledger: Ledger, topic: TopicState) -> None:
    """Raises StreamFailed if the stream has read a topic's changes in an order that the topic does not show any more.

    Keys move to partitions that are added. If the Kafka offset orders their changes, the stream has read the former
    partitions first. If positions have stepped back, an added partition does not show whether that was before.
    """
    known = facts_of(ledger, topic.topic_id)
    if len({facts.partitions for facts in known}) < 2:
        return
    states = [State.from_json(total.state) for total in ledger.totals() if total.topic_id == topic.topic_id]
    why = ""
    if not {state.strategy for state in states} <= {"", "source_position"}:
        why = "the Kafka offset orders its changes"
    elif _stepped_back([facts.epoch for facts in known], max([state.epoch for state in states], default=0)):
        why = "the positions of its changes have stepped back"
    if why:
        raise StreamFailed(
            f"topic {topic.topic} got more partitions, and {why}: which of two changes of a key in different "
            "partitions came first, the topic no longer shows",
            hint="Compare with the database: --against source.",
        )


def _stepped_back(epochs: Sequence[int], now: int) -> bool:
    """Whether epochs rose otherwise than by one each time that partitions were added.

    ``epochs``: of the facts, oldest first; ``now``: the highest one since.
    """
    return now > epochs[-1] or any(after - before > 1 for before, after in pairwise(epochs))


def begin_at_load(fold: Fold, ledger: Ledger, topic: TopicState) -> int:
    """Begin where the topic begins, or where the table was filled from the source; returns the sum of the offsets.

    Raises StreamFailed.

    What the topic holds below that is in the rows that were loaded, or came too late for them: the stream drops it.
    """
    expect_one_order(ledger, topic)
    loads = loads_of(ledger, topic.topic_id)
    at = {p: max([low, *(load.offset for load in loads if load.partition == p)]) for p, low in topic.low.items()}
    texts = ledger.states_at(topic.topic_id, at) if loads else {}
    states = {p: (at[p], State.from_json(text)) for p, text in texts.items() if text}
    fold.begin(at, states, (*base_of(ledger, topic), *floors_of(ledger, topic, fold.truncates), *loads))
    return sum(at.values())


def floors_of(ledger: Ledger, topic: TopicState, truncates: bool) -> tuple[TruncateFloor, ...]:
    """The truncates that the stream has applied and that a fold does not apply itself.

    The file may no longer apply truncates, or the topic may have lost them while another partition still holds the
    rows that they deleted. Raises StreamFailed if the fold may give changes other epochs than the stream did, because
    floors do not compare with those.

    Args:
        truncates: the fold applies the truncates that the topic holds.
    """
    if truncates and not any(topic.low.values()):
        return ()
    epochs = {facts.epoch for facts in facts_of(ledger, topic.topic_id)}
    if not epochs:
        return ()
    floors = tuple(floor for floor in ledger.facts(TruncateFloor) if floor.epoch or floor.commit)
    if len(epochs) < 2 and all(floor.epoch <= min(epochs) for floor in floors):
        return floors
    if floors and not truncates:
        raise StreamFailed(
            f"the stream applied a truncate of topic {topic.topic} that the file now ignores, and has since read the "
            "topic in several epochs",
            hint="Compare with the database: --against source.",
        )
    return ()


def facts_of(ledger: Ledger, topic_id: str) -> list[TopicFacts]:
    """Notes about the topic: where the stream began it, and each time it got partitions."""
    return [facts for facts in ledger.facts(TopicFacts) if facts.topic_id == topic_id]


def base_of(ledger: Ledger, topic: TopicState) -> tuple[TopicFacts, ...]:
    """The epoch in which the stream began the topic: versions of a fold from there on are those that it gave."""
    epochs = [facts.epoch for facts in facts_of(ledger, topic.topic_id)]
    return (TopicFacts(topic.topic_id, len(topic.low), min(epochs)),) if epochs else ()


def is_incomplete(ledger: Ledger, topic: TopicState) -> bool:
    """Whether the table may rightly have rows of which the topic holds no event, or none since they were loaded."""
    return any(topic.low.values()) or bool(loads_of(ledger, topic.topic_id)) or began_on_rows(ledger, topic)


def began_on_rows(ledger: Ledger, topic: TopicState) -> bool:
    """Whether the table had rows before the stream read anything: taken over, filled by hand, or of a lost ledger."""
    return any(facts.on_rows for facts in facts_of(ledger, topic.topic_id))


def unjudged(subject: Subject, topic: TopicState) -> str:
    """The condition on differences of which an incomplete topic says nothing; empty if the topic has everything.

    Of a row with a key the last event says all. Of rows without one, events say how the number of equal rows changes,
    and not from which number: the table may rightly have more of them. A topic that begins with a snapshot says from
    which number: with none.
    """
    ledger = subject.ledger
    if not is_incomplete(ledger, topic):
        return ""
    if subject.key:
        return "kind = 'extra' AND source_version = ''"
    if any(topic.low.values()):
        # The insert of a row may be there still, and its delete lost from another partition.
        return "1" if sum(high > 0 for high in topic.high.values()) > 1 else "kind = 'extra'"
    whole = not loads_of(ledger, topic.topic_id) and _begins_with_snapshot(subject, topic)
    return "" if whole else "kind = 'extra'"


def expect_its_end(subject: Subject, topic: TopicState) -> None:
    """Raises DataLoss if the topic has lost records that the stream has read."""
    applied = subject.reached(topic.topic_id).applied
    expect_end_still(topic, applied, lambda: subject.topic.state(topic.topic))


def expect_whole(subject: Subject, topic: TopicState) -> None:
    """Raises StreamFailed if the topic does not hold, or no longer shows, all rows of the table."""
    expect_its_end(subject, topic)
    hint = "Name the database in the section source, and use --against source." if subject.key else NEW_SNAPSHOT
    expect_one_order(subject.ledger, topic)
    if any(topic.low.values()):
        raise StreamFailed(f"topic {topic.topic} no longer holds its first records", hint=hint)
    name = subject.table.qualified
    lacks = ""
    if other_topic(subject.ledger, topic.topic_id):
        lacks = f"topic {topic.topic} was recreated and does not begin with a snapshot: it may lack rows of {name}"
    elif began_on_rows(subject.ledger, topic):
        lacks = (
            f"{name} had rows before the stream read topic {topic.topic}, which does not begin with a snapshot: it may "
            "lack rows of the table"
        )
    if lacks and not _begins_with_snapshot(subject, topic):
        raise StreamFailed(lacks, hint=hint)
    if loads_of(subject.ledger, topic.topic_id):
        raise StreamFailed(f"{name} was filled from the database: topic {topic.topic} may lack rows of it", hint=hint)


def _begins_with_snapshot(subject: Subject, topic: TopicState) -> bool:
    """Whether the first event of a partition is a row of a snapshot."""
    decoder, settings = subject.decoder(subject.table, False), subject.settings
    for p, low in topic.low.items():
        for at in range(low, topic.high[p], _PROBE):
            end = min(at + _PROBE, topic.high[p])
            task = RangeTask(settings.name, topic.topic, topic.topic_id, p, subject.table, at, end, State())
            batches = [
                decoder.decode(chunk.records, decoder.learn(chunk.records, None, subject.topic.history(p)))
                for chunk in subject.topic.chunks(task, at)
                if len(chunk.records)
            ]
            if events := [batch for batch in batches if len(batch)]:
                if events[0].op[0] == Op.READ:
                    return True
                break
    return False


def without_history(differences: Differences, found: int, condition: str) -> int:
    """Drop differences that the topic cannot judge, by `unjudged`; returns how many rows these are.

    A delete in the topic of a row that the table does not have, either, is none.
    """
    if not condition:
        return 0
    rows = differences.drop(found, f"({condition}) AND (table_times > 0 OR kind = 'missing')")
    differences.drop(found, condition)
    return rows


def loads_of(ledger: Ledger, topic_id: str) -> list[TableRefilled]:
    """The fillings from the source; not those from the topic itself."""
    return [load for load in ledger.facts(TableRefilled) if load.topic_id == topic_id and load.until]
