"""The procedure of ``resync``: the table filled from its source or its topic while the stream continues.

    O = offsets that the stream has applied ─▶ rows of the source ─▶ changes from O on, behind the stream
      ─▶ the stream is paused ─▶ the last changes ─▶ the names are exchanged ─▶ the stream goes on

Until the exchange nothing of the table is touched, so a run that fails or is killed leaves it as it was.

If the stream has read nothing yet, O is the end of the topic, and the position L of the source is read behind it: what
the topic holds below O is not read, and a change from O on that has a position below L is dropped, as the rows show it.
"""

import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ch_sink.errors import StreamFailed
from ch_sink.model.counts import counted
from ch_sink.model.values import TopicState
from ch_sink.order import State
from ch_sink.pipeline.target import Target
from ch_sink.ports import Fact, Ledger, RowsEdited, TableRefilled, TopicFacts
from ch_sink.stream.rollback import expect_entered
from ch_sink.stream.standing import works
from ch_sink.table.evolve import adding_by_hand, unfilled
from ch_sink.table.model import TargetTable
from ch_sink.trust.fold import Fold
from ch_sink.trust.history import base_of, expect_its_end, expect_whole, floors_of
from ch_sink.trust.load import count_rows
from ch_sink.trust.refill import (
    Moved,
    NewTable,
    Refill,
    Say,
    Start,
    compared,
    expect_keyed,
    expect_refillable,
    filler,
    new_run,
    new_table,
    of_table,
    other_table,
)
from ch_sink.trust.repair_sql import last_versions
from ch_sink.trust.shape import Shape, differences_of_shape
from ch_sink.trust.sides import TIMES, Side
from ch_sink.trust.source_rows import several_connectors
from ch_sink.trust.swap import Exchange, Way, exchanged, expect_unread, is_read, placed
from ch_sink.trust.topic import WithoutErased, offsets_behind

_NEAR = 2_000
"""Offsets behind the stream at which it is paused."""
_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class Resynced:
    """The result of a resync, or its plan."""

    stream: str
    table: str
    applied: bool
    before: int
    """Rows that readers saw before."""
    rows: int
    """Rows that they see afterwards; without ``applied`` those of the source, or the topic's offsets."""
    paused: float = 0.0
    """Seconds that the stream stood still."""
    start: dict[int, int] = field(default_factory=dict)
    """Partition → the offset at which the stream goes on, if it had read nothing before."""
    size: int = 0
    """Bytes on disk that the table has, which is about what the new one needs; 0 if that is not known."""
    shape: tuple[str, ...] = ()
    """The differences of the new table from the stream's."""
    moved: "Moved | None" = None
    """The differences of its rows from those of the former table, shortly before the exchange."""
    lacking: int = 0
    """Changes that another table lacks, since they cannot be applied or wait for values."""

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "table": self.table,
            "applied": self.applied,
            "rows_before": self.before,
            "rows": self.rows,
            "paused_seconds": round(self.paused, 3),
            "start": {str(p): offset for p, offset in sorted(self.start.items())},
            "bytes": self.size,
            "shape": list(self.shape),
            "compared": asdict(self.moved) if self.moved is not None else None,
            "lacking": self.lacking,
        }


def resynced(
    refill: Refill,
    *,
    apply: bool,
    against: Literal["source", "topic"] = "source",
    into: str = "",
    say: Say = lambda _: None,
) -> Resynced:
    """Replace the table by a newly filled one. Raises ChSinkError; then the table is unchanged.

    Args:
        against: where the rows come from.
        into: name of an empty table that is filled instead; nothing is exchanged.
    """
    subject = refill.subject
    if against == "source":
        expect_keyed(refill)
    if not into:
        expect_refillable(refill)
    topic = subject.topic.state(subject.settings.topic)
    if against == "source" and (several := several_connectors(subject, topic.topic_id)):
        say(several)
    if apply and not into:
        Exchange.finish(refill, topic, say)
    else:
        expect_entered(subject.table, subject.ledger)
    known = None if is_read(subject, topic.topic_id) else _begun_now(subject.ledger, topic)
    if known is not None and not into:
        expect_unread(refill, topic.topic_id)
    if against == "topic":
        expect_whole(subject, topic)
        removed = [one for one in subject.ledger.facts(RowsEdited) if one.topic_id == topic.topic_id]
        refill = replace(refill, subject=replace(subject, topic=WithoutErased.of(subject.topic, removed)))
    if into:
        return _into(refill, into, Way(topic, against, known), apply=apply, say=say)
    shape = refill.shape()
    if shape is not None:
        _expect_no_job_of_other_columns(refill, shape)
        if against == "topic":
            _expect_filled(refill, shape)
    name, before = subject.table.qualified.replace("`", ""), _live(refill, subject.table)
    if not apply:
        wanted = refill if shape is None else refill.of(shape.table)
        rows, changes = _to_read(wanted, topic, against, say), shape.changes if shape else ()
        return Resynced(refill.stream, name, False, before, rows, size=refill.successor.size(), shape=changes)
    with new_table(refill, shape, say, begun=known is None) as new:
        way = Way(topic, against, known, shape)
        passes, facts = _filled(new, way, say)
        if known is None:
            _follow(refill, new.fold, topic, passes, say)
        else:
            _follow_alone(refill, new.fold, topic)
        moved = compared(refill, new)
        say(f"compared with the former rows: {moved}")
        if known is None:
            _catch_up(refill, new.fold, topic)
        paused = exchanged(refill, new, way, facts, moved, say)
        start = dict(new.fold.at) if known else {}
    refill.successor.dropped(say)
    rows, changes = _live(new.refill, placed(new.table, subject.table)), shape.changes if shape else ()
    return Resynced(refill.stream, name, True, before, rows, paused, start, shape=changes, moved=moved)


def _begun_now(ledger: Ledger, topic: TopicState) -> TopicFacts:
    """The topic with an epoch of its own, above all that the ledger knows."""
    epochs = [State.from_json(t.state).epoch for t in ledger.totals()] + [t.epoch for t in ledger.facts(TopicFacts)]
    return TopicFacts(topic.topic_id, len(topic.high), max(epochs, default=-1) + 1)


def _to_read(refill: Refill, topic: TopicState, against: str, say: Say) -> int:
    if against == "topic":
        return sum(topic.high.values())
    with filler(refill, say) as (reader, columns):
        return count_rows(reader, columns, refill.subject.key, refill.subject.check)


def _into(refill: Refill, into: str, way: Way, *, apply: bool, say: Say) -> Resynced:
    """Fill another table, which is the user's, as the stream would have filled it."""
    live = refill.subject.table
    other = of_table(refill, into)
    table = other.subject.table
    name = table.qualified.replace("`", "")
    if not apply:
        rows, shape = _to_read(other, way.topic, way.against, say), differences_of_shape(table, live)
        return Resynced(refill.stream, name, False, 0, rows, size=refill.successor.size(), shape=shape)
    with other_table(other, None if way.known else other.subject.kept(table), say) as new:
        passes, _ = _filled(new, way, say)
        if way.known is None:
            _follow(other, new.fold, way.topic, passes, say)
        else:
            _follow_alone(other, new.fold, way.topic)
        if bad := sum(new.fold.letters.kinds.values()):
            say(f"{counted(bad, 'record')} of the topic cannot be applied")
        if waiting := sum(map(len, new.fold.waiting().values())):
            say(f"{counted(waiting, 'change')} not stored: they wait for values of other partitions")
    return Resynced(refill.stream, name, True, 0, _live(other, table), lacking=bad + waiting)


def _filled(new: NewTable, way: Way, say: Say) -> tuple[int, dict[int, TableRefilled]]:
    """Fill the new table as of the fold's beginning.

    Returns the source's position after its rows were read, and for each partition what the ledger has to know.
    """
    topic, known = way.topic, way.known
    if way.against == "topic":
        ledger = new.refill.subject.ledger
        facts: list[Fact] = [known] if known is not None else []
        if known is None:
            facts += [*base_of(ledger, topic), *floors_of(ledger, topic, new.fold.truncates)]
        new.fold.begin(topic.low, facts=facts)
        run = new_run()
        return 0, {p: TableRefilled(topic.topic_id, p, 0, run=run) for p in topic.low}

    def start() -> Start:
        if known is not None:
            # What the topic holds up to now is not read: the rows show it.
            return Start(topic.high, epoch=known.epoch, facts=(known,))
        states = _starts(new.refill, topic)
        at = {p: offset for p, (offset, _) in states.items()}
        # The source has gone past all positions that were read; offsets of a partition that is not begun are lower.
        settings = new.refill.subject.settings
        by_offset = any(state.strategy not in ("", "source_position") for _, state in states.values())
        begun = {p: (offset, state) for p, (offset, state) in states.items() if offset > 0 or by_offset}
        limits = last_versions(Target.of(new.table, settings.policy), settings.topic, begun)
        epoch = min((state.epoch for _, state in states.values()), default=0)
        return Start(at, states, epoch, version=max(limits[0], 0) if limits else 0)

    passes, floors = new.load(topic, start, say)
    return passes, {fact.partition: fact for fact in floors}


def _starts(refill: Refill, topic: TopicState) -> dict[int, tuple[int, State]]:
    """Partition → the offset from which changes are applied to the rows of the source, and the state there.

    That is what the stream has applied. Changes that wait for another partition are not in it, and neither are they
    below the offset.
    """
    ledger, topic_id = refill.subject.ledger, topic.topic_id
    applied = refill.subject.reached(topic_id).applied
    expect_its_end(refill.subject, topic)
    waiting = refill.waiting(topic_id, applied)
    out = {}
    for p, low in topic.low.items():
        at = min([applied.get(p, 0), *waiting.get(p, ())])
        known = ledger.state_before(topic_id, p, at)
        at, text = known if known is not None else (low, "")
        # Where records were lost before they were read, the rows of the source make up for them.
        out[p] = (at if at >= low else topic.high[p], State.from_json(text))
    return out


def _follow(refill: Refill, fold: Fold, topic: TopicState, passes: int, say: Say) -> None:
    """Follow the stream until it has passed what the source had when its rows were read, and is near."""
    deadline = time.monotonic() + refill.patience
    _catch_up(refill, fold, topic)
    say("waiting for changes that the source had when it was read")
    while fold.commit() < passes and time.monotonic() < deadline:
        refill.subject.check()
        time.sleep(0.3)
        fold.to(_goal(refill, topic))
    high = refill.subject.topic.state(topic.topic).high
    deadline = time.monotonic() + refill.patience
    while any(fold.at.get(p, 0) < end for p, end in high.items()) and time.monotonic() < deadline:
        refill.subject.check()
        fold.to(_goal(refill, topic))
        time.sleep(0.2)
    if left := offsets_behind(fold.at, high):
        raise StreamFailed(
            f"stream {refill.stream!r} is {counted(left, 'offset')} behind the topic as it was when the "
            "source was read",
            hint="Try again when it has caught up, or give it more time with --patience.",
        )
    _catch_up(refill, fold, topic)


def _follow_alone(refill: Refill, fold: Fold, topic: TopicState) -> None:
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
        refill.subject.check()
        time.sleep(0.3)


def _catch_up(refill: Refill, fold: Fold, topic: TopicState) -> None:
    for _ in range(_ROUNDS):
        goal = _goal(refill, topic)
        left = offsets_behind(fold.at, goal)
        fold.to(goal)
        if left <= _NEAR:
            return


def _goal(refill: Refill, topic: TopicState) -> dict[int, int]:
    """The offsets up to which the new table may go: the stream's, or the topic's end if no job works on the stream."""
    if works(refill.subject.states, refill.stream):
        return refill.subject.reached(topic.topic_id).applied
    return refill.subject.topic.state(topic.topic).high


def _expect_no_job_of_other_columns(refill: Refill, shape: Shape) -> None:
    """Raises StreamFailed if a job runs the stream that would go on to fill the columns of its former file."""
    if shape.has_other_columns(refill.subject.table) and works(refill.subject.states, refill.stream):
        raise StreamFailed(
            f"{'; '.join(shape.changes)}: a job runs {refill.stream!r} that has read its file before",
            hint="Stop the job, run `ch_sink resync CONFIG --apply`, and start it again.",
        )


def _expect_filled(refill: Refill, shape: Shape) -> None:
    """Raises StreamFailed for a new column whose value in rows from before it the topic does not state."""
    subject = refill.subject
    lacking = unfilled(subject.table, subject.schema, shape.wanted.spec) if subject.schema is not None else {}
    if unknown := {name: kind for name, kind in lacking.items() if shape.table.column(name) is not None}:
        by_hand = "; ".join(adding_by_hand(subject.table, unknown))
        raise StreamFailed(
            f"topic {subject.settings.topic} does not state what rows of {subject.table.qualified} have in the new "
            f"column {', '.join(map(repr, unknown))} that were there before it",
            hint=f"Add it with the value that the source gave to them: {by_hand}; or use --against source.",
        )


def _live(refill: Refill, table: TargetTable) -> int:
    """How many rows readers see."""
    live = Side(table, refill.subject.key, refill.subject.columns).live()
    found = refill.subject.client.rows(
        f"SELECT sum(greatest({TIMES}, 0)) AS n FROM ({live})", of=table, doing=f"count {table.qualified}"
    )
    return int(found[0]["n"])
