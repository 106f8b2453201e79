"""The procedure of ``bootstrap``: the first load of an empty table from its source, without a connector's snapshot.

    O = end of the topic ─▶ L = position of the source ─▶ rows of the source ─▶ changes from O on
      ─▶ the names are exchanged ─▶ the ledger says that the stream goes on behind those changes

What the topic holds below O is not read. A change from O on that has a position below L is dropped: the rows show it.
"""

import time
from dataclasses import dataclass
from typing import Any

from ch_sink.errors import StreamFailed
from ch_sink.model.counted import counted
from ch_sink.model.topic import TopicState
from ch_sink.trust.first_load import FirstLoad, Placed, results_at
from ch_sink.trust.fold import Fold
from ch_sink.trust.refill import (
    Refill,
    Say,
    Start,
    expect_good_records,
    expect_keyed,
    expect_refillable,
    filler,
    new_table,
)

__all__ = ["Bootstrapped", "bootstrapped"]


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
    expect_keyed(refill)
    expect_refillable(refill)
    topic = subject.topic.state(subject.settings.topic)
    name, first = subject.table.qualified.replace("`", ""), FirstLoad(refill, topic, "bootstrapped")

    def done(placed: Placed) -> Bootstrapped:
        return Bootstrapped(refill.stream, name, True, placed.rows, placed.start)

    if (left := first.left(say, apply=apply)) is not None:
        return done(left)
    first.expect_empty()
    if not apply:
        with filler(refill, say) as (reader, made):
            return Bootstrapped(refill.stream, name, False, made.count(reader, subject.key), dict(topic.high))
    with new_table(refill, say) as new:
        known = first.epoch()
        loaded = new.load(topic, lambda: Start(topic.high, epoch=known.epoch, facts=(known,)), say)
        _follow(refill, new.fold, topic)
        expect_good_records(new.fold, {})
        results = results_at(topic, new.fold.states())
        placed = first.put_in_place((known, *loaded.floors), results, loaded.rows, say)
    refill.successor.dropped(say)
    return done(placed)


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
