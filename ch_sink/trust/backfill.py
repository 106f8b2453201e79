"""The procedure of ``backfill``: the snapshot that a topic begins with, in bulk, into the stream's empty table.

    S = end of each partition's snapshot rows ─▶ waves: ranges are read in parallel, their rows shuffled by table
      partition and stored in large blocks ─▶ the names are exchanged ─▶ the ledger says that the stream goes on at S

Rows get the versions that the stream would have given them. Before each wave the new table's comment says where the
load is, so that a run which was killed goes on with the wave in which it was; its blocks have the tokens that they had.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from ch_sink.errors import ChSinkError, ConfigError, StreamFailed
from ch_sink.model.counted import counted
from ch_sink.model.topic import TopicState
from ch_sink.order import State
from ch_sink.order.version import POSITION_SHIFT
from ch_sink.pipeline.target import Target
from ch_sink.ports import TopicFacts
from ch_sink.stream.bulk import Load, NoSnapshotRow, Wave, WaveDone
from ch_sink.stream.fingerprint import fingerprint
from ch_sink.stream.tasks import RangeTask
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.backfill_plan import BackfillPlan, Progress, learned, next_wave, snapshot_ends
from ch_sink.trust.first_load import FirstLoad
from ch_sink.trust.fold import Fold
from ch_sink.trust.load import expect_unique
from ch_sink.trust.refill import Refill, Say, expect_refillable
from ch_sink.trust.subject import Subject

__all__ = ["WAVE", "Backfilled", "backfilled"]

WAVE = 4_000_000
"""Offsets of a wave: what a run that goes on reads again at the most."""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a backfill did, or would do."""

    stream: str
    table: str
    applied: bool
    rows: int
    """Rows that were stored; without ``applied``, how many offsets the snapshot has."""
    start: dict[int, int]
    """Partition → the offset at which the stream goes on."""
    blocks: int = 0
    dead_letters: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "table": self.table,
            "applied": self.applied,
            "rows": self.rows,
            "start": {str(p): offset for p, offset in sorted(self.start.items())},
            "blocks": self.blocks,
            "dead_letters": self.dead_letters,
        }


class _Again(Exception):
    def __init__(self, ends: Mapping[int, int], *, split: bool) -> None:
        super().__init__()
        self.ends, self.split = dict(ends), split


@dataclass(frozen=True, slots=True)
class _Backfill:
    """One run."""

    refill: Refill
    topic: TopicState
    load: Load
    wave: int
    say: Say
    progress: Callable[[int, int], None]

    def run(self, table: TargetTable, plan: BackfillPlan) -> None:
        """Read what is left, wave by wave. Raises _Again; ChSinkError."""
        note, unit = self.refill.successor.note, self.refill.subject.settings.chunk_offsets
        while plan.done < plan.total:
            plan.ranges = plan.ranges or next_wave(plan, self.wave, self.load.slots, unit)
            note(plan.noted())
            self.progress(plan.done, plan.total)
            done = self.load(Wave(plan.wave, plan.label, tuple(self._task(table, plan, *r) for r in plan.ranges)))
            self._expect_chained(plan, done)
            began = {p: one.state for p, one in plan.read.items()}
            for (p, _, end), piece in zip(plan.ranges, done.pieces, strict=True):
                plan.read[p].add(piece, end, began[p])
            plan.wave, plan.blocks, plan.ranges = plan.wave + 1, plan.blocks + done.blocks, []
        self.progress(plan.done, plan.total)

    def _task(self, table: TargetTable, plan: BackfillPlan, partition: int, first: int, end: int) -> RangeTask:
        settings = self.refill.subject.settings
        return RangeTask(
            self.refill.stream, self.topic.topic, self.topic.topic_id, partition, table, first, end,
            State.from_json(plan.read[partition].state),
            chunk_offsets=settings.chunk_offsets, chunk_bytes=settings.chunk_bytes,
        )  # fmt: skip

    def _expect_chained(self, plan: BackfillPlan, done: WaveDone) -> None:
        """Raise _Again if a range was read as it would not have been behind the one before it; StreamFailed."""
        tops: dict[int, tuple[int, State]] = {}
        for (p, _, _), piece in zip(plan.ranges, done.pieces, strict=True):
            if isinstance(piece.failure, NoSnapshotRow):
                raise _Again({**plan.ends, p: piece.failure.offset}, split=plan.split)
            if piece.failure is not None:
                raise piece.failure
            if piece.barrier is not None:
                lacking = ", ".join(repr(c.name) for c in piece.barrier.columns)
                raise StreamFailed(
                    f"{self.refill.subject.table.qualified} lacks the column {lacking}, or has it too narrow, which "
                    f"partition {p} shows from offset {piece.barrier.next_offset} on",
                    hint="Alter it by `ch_sink init CONFIG --apply`, or let the stream read it: `ch_sink run CONFIG`.",
                )
            before = State.from_json(plan.read[p].state)
            top, last = tops.get(p, (plan.read[p].top, before))
            # One range behind the other, with versions that rise: each has what it would have had in one go.
            rises = not piece.bottom or piece.bottom > top
            same = _known(piece.state) == _known(last) or last is before
            if plan.drops and _position(piece.bottom) == _position(top) != _position(plan.read[p].top):
                same = False  # its first record may have been sent twice
            if plan.split and (piece.steps or not rises or not same):
                raise _Again(plan.ends, split=False)
            tops[p] = max(top, piece.top), piece.state
        if done.rows != sum(piece.rows for piece in done.pieces):
            raise StreamFailed(
                f"{counted(sum(p.rows for p in done.pieces), 'row')} were read and {done.rows} stored",
                hint="Try again.",
            )


def backfilled(
    refill: Refill,
    load: Callable[[], Load],
    *,
    apply: bool,
    wave: int = WAVE,
    say: Say = lambda _: None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Backfilled:
    """Load the snapshot rows with which the topic begins. Raises ChSinkError; then the table is empty as it was.

    Args:
        load: called once something is to be read.
        wave: how many offsets are read and stored together.
        progress: gets how many offsets were read, and of how many.
    """
    subject, successor = refill.subject, refill.successor
    _expect_possible(refill)
    topic = subject.topic.state(subject.settings.topic)
    name, first = subject.table.qualified.replace("`", ""), FirstLoad(refill, topic, "backfilled")
    if (left := first.left(say, apply=apply)) is not None:
        return Backfilled(refill.stream, name, True, left.rows, left.start)
    first.expect_empty()
    ends = snapshot_ends(subject, topic)
    if ends == topic.low:
        raise StreamFailed(
            f"topic {topic.topic} does not begin with rows of a snapshot", hint="Run the stream: `ch_sink run CONFIG`."
        )
    if not apply:
        return Backfilled(refill.stream, name, False, sum(ends.values()) - sum(topic.low.values()), ends)
    run = _Backfill(refill, topic, load(), wave, say, progress)
    again = _Again(ends, split=_splits(Target.of(subject.table, subject.settings.policy)))
    while True:
        plan = _left(refill, topic, say)
        if plan is None:
            successor.clear(say)
            table = successor.create()
            plan = _planned(refill, topic, first.epoch(), again)
        else:
            table = successor.found()
        try:
            run.run(table, plan)
            _expect_right(refill, table, plan)
            facts = TopicFacts(topic.topic_id, len(topic.high), plan.epoch)
            rows = sum(one.rows for one in plan.read.values())
            placed = first.put_in_place((facts,), plan.results(topic, time.time()), rows, say)
        except _Again as other:
            again = other
            say(
                "the ranges are read anew: "
                + ("one after the other" if not other.split else "the snapshot ends before")
            )
            successor.drop()
        except BaseException as error:
            _dropped_or_kept(refill, plan, error, say)
            raise
        else:
            successor.dropped(say)
            letters = sum(one.dead_letters for one in plan.read.values())
            return Backfilled(refill.stream, name, True, placed.rows, placed.start, plan.blocks, letters)


def _expect_possible(refill: Refill) -> None:
    subject, table = refill.subject, refill.subject.table
    expect_refillable(refill)
    if subject.settings.start not in ("earliest", "ledger"):
        raise ConfigError(
            f"start: {subject.settings.start} leaves out the first records of the topic",
            hint="Backfill with `start: ledger`, which is the default.",
        )
    if not table.dedup_window:
        raise StreamFailed(
            f"{table.qualified} does not recognise blocks that are stored twice",
            hint="`ch_sink init CONFIG --apply` sets its deduplication window.",
        )


def _splits(target: Target) -> bool:
    """Whether versions show that ranges which were read at the same time are as if read in one go."""
    return target.system.version is not None and target.layout.kind == "wide"


def _position(version: int) -> int:
    """Epoch and commit position of a wide version."""
    return version >> POSITION_SHIFT


def _known(state: State) -> tuple[object, ...]:
    """What a range has learned that later ones would decode or order by."""
    return state.epoch, state.names, state.strategy, state.profile, tuple(state.sources)


def _planned(refill: Refill, topic: TopicState, facts: TopicFacts, again: _Again) -> BackfillPlan:
    subject = refill.subject
    with closing(Fold(subject.client, subject.table, subject.settings, subject.topic, subject.decoder)) as fold:
        fold.begin(topic.low, None, (facts,))
        states = {p: (at, learned(subject, topic, p, state)) for p, (at, state) in fold.states().items()}
    read = {p: Progress(at, state.to_json()) for p, (at, state) in states.items()}
    mark = _mark(subject)
    low, drops = dict(topic.low), again.split and subject.table.engine.family is Family.MERGE_TREE
    return BackfillPlan(
        uuid.uuid4().hex[:12], topic.topic_id, mark, facts.epoch, low, again.ends, again.split, time.time(), drops,
        read=read,
    )  # fmt: skip


def _mark(subject: Subject) -> str:
    """What decides, besides the records, which rows the load stores."""
    return fingerprint(subject.settings.policy, subject.table, subject.settings.source_table)


def _left(refill: Refill, topic: TopicState, say: Say) -> BackfillPlan | None:
    """The plan of a run that was killed, if this one can go on with it."""
    noted = refill.successor.left()
    plan = BackfillPlan.of(noted) if noted is not None else None
    if plan is None or plan.topic_id != topic.topic_id:
        return None
    subject = refill.subject
    if plan.fingerprint != _mark(subject):
        say("the configuration has changed since an earlier run: the load begins anew")
        return None
    say(f"going on with a load that was broken off, {counted(plan.done, 'offset')} of {plan.total} behind it")
    return plan


def _expect_right(refill: Refill, table: TargetTable, plan: BackfillPlan) -> None:
    """Raises StreamFailed if a key occurs twice where the stream would have looked the earlier row up."""
    subject, engine = refill.subject, table.engine
    rows, keeps = sum(one.rows for one in plan.read.values()), engine.family is Family.MERGE_TREE
    places = table.deciding_columns(subject.key) & {c.name for c in table.source_columns}
    decides = engine.family is Family.REPLACING and engine.version_column is not None and not places
    if not keeps and not decides:
        try:
            expect_unique(subject.client, table, subject.key, rows)
        except StreamFailed as error:
            raise StreamFailed(
                f"a key occurs twice in the snapshot, as after a snapshot that was begun again: {error}",
                hint="Run the stream instead, which looks the earlier row up: `ch_sink run CONFIG`.",
            ) from None
    if not decides:
        found = subject.client.rows(f"SELECT count() AS n FROM {table.qualified}", doing=f"count {table.qualified}")
        if int(found[0]["n"]) != rows:
            raise StreamFailed(
                f"{table.qualified} has {found[0]['n']} rows instead of {rows}",
                hint="Begin again, or run the stream instead: `ch_sink run CONFIG`.",
            )


def _dropped_or_kept(refill: Refill, plan: BackfillPlan, error: BaseException, say: Say) -> None:
    """Keep what was loaded if the load can go on, else drop it."""
    if not isinstance(error, Exception) or (isinstance(error, ChSinkError) and error.temporary):
        say(f"{counted(plan.done, 'offset')} of {plan.total} are in {refill.successor.qualified}: the next run goes on")
        return
    with suppress(ChSinkError):  # the error that ended the run is the one to show; the next run drops the table
        refill.successor.drop()
