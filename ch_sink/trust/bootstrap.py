"""The procedure of ``bootstrap``: the first load of an empty table from its source, without a connector's snapshot.

    O = end of the topic ─▶ L = position of the source ─▶ rows of the source ─▶ changes from O on
      ─▶ the names are exchanged ─▶ the ledger says that the stream goes on behind those changes

What the topic holds below O is not read. A change from O on that has a position below L is dropped: the rows show it.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ch_sink.errors import StreamFailed
from ch_sink.model.counted import counted
from ch_sink.model.topic import TopicState
from ch_sink.order import State
from ch_sink.ports import TableRefilled, TopicFacts
from ch_sink.trust.fold import Fold
from ch_sink.trust.hold import held
from ch_sink.trust.refill import (
    Refill,
    Say,
    expect_good_records,
    expect_refillable,
    filler,
    floors,
    loaded,
    successor_table,
)
from ch_sink.trust.resync import results_at
from ch_sink.trust.successor import marked

__all__ = ["Bootstrapped", "bootstrapped"]


_Facts = tuple[TopicFacts, *tuple[TableRefilled, ...]]


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """What a bootstrap did, or would do."""

    stream: str
    table: str
    applied: bool
    rows: int
    """Rows of the source."""
    start: dict[int, int]
    """Partition → the offset at which the stream goes on."""

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "table": self.table,
            "applied": self.applied,
            "rows": self.rows,
            "start": {str(p): offset for p, offset in sorted(self.start.items())},
        }


def bootstrapped(refill: Refill, *, apply: bool, say: Say = lambda _: None) -> Bootstrapped:
    """Fill an empty table from the source. Raises ChSinkError; then the table is empty as it was."""
    subject = refill.subject
    expect_refillable(refill)
    topic = subject.topic.state(subject.settings.topic)
    name = subject.table.qualified.replace("`", "")
    if (noted := marked(refill.successor.comment())) is not None and "start" in noted:
        say(f"{name} was filled by a run that was killed before the ledger knew")
        return _finished(refill, topic, noted, name, say)
    _expect_empty(refill, topic)
    if not apply:
        with filler(refill, say) as (reader, made):
            return Bootstrapped(refill.stream, name, False, made.count(reader, subject.key), dict(topic.high))
    with successor_table(refill.successor, say) as table:
        fold = Fold(subject.client, table, subject.settings, subject.topic, subject.decoder)
        try:
            with filler(refill, say) as (reader, made):
                position = reader.settled(refill.settle)
                if not position:
                    say("transactions of the source go on; changes of theirs are applied once more")
                facts = _facts(refill, topic, position)
                fold.begin(topic.high, None, facts)
                rows, _ = loaded(refill, table, reader, made, 0, say)
            _follow(refill, fold, topic)
            expect_good_records(fold, {})
            states = fold.states()
        finally:
            fold.close()
        refill.successor.note(_noted(facts, states, refill.successor.comment(), rows))
        with held(subject.ledger, refill.states, refill.stream, topic.topic_id, say):
            _expect_empty(refill, topic)
            refill.successor.take_place(say)
            _enter(refill, topic, facts, states)
    refill.successor.unmark(subject.table.qualified, _own_comment(refill))
    refill.successor.dropped(say)
    return Bootstrapped(refill.stream, name, True, rows, {p: offset for p, (offset, _) in states.items()})


def _expect_empty(refill: Refill, topic: TopicState) -> None:
    subject = refill.subject
    table = subject.table.qualified
    found = subject.client.rows(f"SELECT 1 AS one FROM {table} LIMIT 1", doing=f"look into {table}")
    known = subject.reached(topic.topic_id).applied
    if found or known:
        why = "it has rows" if found else f"stream {refill.stream!r} has begun to fill it"
        raise StreamFailed(
            f"{table} cannot be bootstrapped: {why}",
            hint="Fill it anew by `ch_sink resync CONFIG --apply`."
            if known
            else "Empty it first, or let the stream begin and then use `ch_sink resync CONFIG --apply`.",
        )


def _facts(refill: Refill, topic: TopicState, position: int) -> _Facts:
    """What the ledger has to know of the topic: an epoch of its own, and the floor."""
    ledger = refill.subject.ledger
    epochs = [State.from_json(t.state).epoch for t in ledger.totals()] + [t.epoch for t in ledger.facts(TopicFacts)]
    epoch = max(epochs, default=-1) + 1
    begun = floors(refill, topic, topic.high, position, epoch)
    return (TopicFacts(topic.topic_id, len(topic.high), epoch), *begun)


def _follow(refill: Refill, fold: Fold, topic: TopicState) -> None:
    """Apply what the topic got meanwhile, to a place where no change waits for another partition."""
    deadline = time.monotonic() + refill.patience
    while True:
        fold.to(refill.subject.topic.state(topic.topic).high)
        waiting = sum(map(len, fold.waiting().values()))
        if not waiting:
            return
        if time.monotonic() > deadline:
            raise StreamFailed(
                f"{counted(waiting, 'change')} of {topic.topic} wait for values of other partitions",
                hint="Try again.",
            )
        time.sleep(0.3)


def _noted(facts: _Facts, states: Mapping[int, tuple[int, State]], comment: str, rows: int) -> dict[str, Any]:
    """What the next run needs if this one is killed between the exchange and the ledger."""
    return {
        "start": {str(p): [offset, state.to_json()] for p, (offset, state) in states.items()},
        "topic": asdict(facts[0]),
        "refilled": [asdict(fact) for fact in facts[1:]],
        "comment": comment,
        "rows": rows,
    }


def _finished(refill: Refill, topic: TopicState, noted: Mapping[str, Any], name: str, say: Say) -> Bootstrapped:
    """What a killed run left to do."""
    facts: _Facts = (TopicFacts(**noted["topic"]), *(TableRefilled(**fact) for fact in noted["refilled"]))
    states = {int(p): (int(offset), State.from_json(text)) for p, (offset, text) in noted["start"].items()}
    subject = refill.subject
    if facts[0].topic_id != topic.topic_id:
        raise StreamFailed(
            f"topic {topic.topic} was recreated since {name} was filled", hint="Empty the table and begin again."
        )
    if not subject.reached(topic.topic_id).applied:
        with held(subject.ledger, refill.states, refill.stream, topic.topic_id, say):
            _enter(refill, topic, facts, states)
    refill.successor.unmark(subject.table.qualified, str(noted["comment"]))
    refill.successor.clear(say)
    return Bootstrapped(refill.stream, name, True, int(noted["rows"]), {p: at for p, (at, _) in states.items()})


def _enter(
    refill: Refill,
    topic: TopicState,
    facts: _Facts,
    states: Mapping[int, tuple[int, State]],
) -> None:
    """Let the ledger know where the stream goes on, and of the floor. The stream is held."""
    ledger = refill.subject.ledger
    ledger.record(*facts)
    ledger.results(results_at(topic, states))


def _own_comment(refill: Refill) -> str:
    noted = marked(refill.successor.comment())
    return str(noted["comment"]) if noted is not None and "comment" in noted else refill.successor.comment()
