"""The procedure of ``verify``: fold the topic to what the stream has applied, compare, and judge what differs.

    L = offsets that the stream has applied ─▶ fold to L ─▶ compare ─▶ H = offsets that it may have touched by now
      ─▶ fold to H ─▶ a key whose source row has changed between L and H is not judged; it is compared again later

Nothing is locked and nothing is stopped. The table holds everything below L, and nothing from H on; a key that differs,
and has no event between both, differs indeed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ch_sink.errors import StreamFailed
from ch_sink.model.address import counted
from ch_sink.pipeline.target import Target
from ch_sink.table.fill_note import expect_entered
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.causes import causes
from ch_sink.trust.condition import expect_condition
from ch_sink.trust.differences import Differences
from ch_sink.trust.fold import Fold
from ch_sink.trust.history import begin_at_load, is_incomplete, unjudged, without_history
from ch_sink.trust.repaired_versions import last_versions
from ch_sink.trust.report import Report
from ch_sink.trust.rollups import RolledUp, rolled_up
from ch_sink.trust.shadow import Shadow, shadow_of, shadow_tables, staying
from ch_sink.trust.sides import Side
from ch_sink.trust.source_rows import read_source
from ch_sink.trust.subject import Options, Subject, chosen_columns, states_at
from ch_sink.trust.topic import offsets_behind
from ch_sink.types.build import default_sql
from ch_sink.types.column import Column
from ch_sink.types.sql import columns_in, literal, quote

__all__ = ["FOUND", "Verified", "verified"]

FOUND = 10_000
"""Step of the keys that differ."""
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome, while the shadow still exists."""

    report: Report
    differences: Differences
    source: Side
    """Its table has the columns only whose values are known."""
    target: Side
    topic_id: str
    applied: dict[int, int]
    """Offsets that the stream had applied when the comparison began, 0 for partitions that it has not begun."""
    shadow: Shadow


@contextmanager
def verified(subject: Subject, options: Options, say: Callable[[str], None] = lambda _: None) -> Iterator[Verified]:
    """Compare a table with its topic; the shadow and what was found exist until the context ends.

    Raises StreamFailed if the comparison is impossible, and ChSinkError of Kafka and ClickHouse.
    """
    began = time.monotonic()
    subject = replace(subject, client=staying(subject.client, subject.table))
    expect_condition(subject, options.condition)
    # Without a key equal rows are counted, whatever they were computed from.
    inputs = subject.inputs if subject.key else ()
    shape = shadow_of(subject.table, subject.database, subject.key, (*subject.columns, *inputs))
    with ExitStack() as open_, shadow_tables(subject.client, shape) as shadow:
        topic = subject.topic.state(subject.settings.topic)
        at = subject.reached(topic.topic_id)
        expect_entered(subject.table, subject.ledger)
        if not at.applied:
            raise StreamFailed(
                f"stream {subject.settings.name!r} has read nothing of topic {topic.topic} yet",
                hint="Run it first: `ch_sink run CONFIG`.",
            )
        applied = dict.fromkeys(topic.low, 0) | at.applied
        # A whole topic has the values itself, and those that the stream keeps may be of a row that was wrong.
        begun = options.against == "source" or is_incomplete(subject.ledger, topic)
        kept = subject.kept(shadow.table) if begun else None
        fold = Fold(subject.client, shadow.table, subject.settings, subject.topic, subject.decoder, kept)
        open_.callback(fold.close)
        chosen = chosen_columns(subject, options)
        compared, passes, base = chosen, 0, 0
        named = _named(subject, options, shape)
        known, lacking = shape.columns, tuple[str, ...]()
        if options.against == "source":
            states = states_at(subject, topic.topic_id, applied)
            fold.begin(at.applied, states)
            limits = last_versions(Target.of(subject.table, subject.settings.policy), subject.settings.topic, states)
            if subject.key:  # above the last change, which may have been lost
                base = max(limits[0] + 1, 0) if limits else 0
            elif limits and len(states) == len(applied):  # versions tell what was touched since, in any partition
                base = max(limits[0], 0)
            more = tuple(column for column in named if column not in compared)
            read = read_source(subject, options, shadow.table, (*compared, *more, *inputs), base, say)
            known, passes, lacking = read.columns, read.passes, () if options.columns else read.lacking
            _expect_read(named, known)
            compared = tuple(column for column in known if column in compared)
        else:
            began_at = begin_at_load(fold, subject.ledger, topic)
            say(f"folding {counted(sum(at.applied.values()) - began_at, 'offset')} of {topic.topic}")
        fold.to(at.applied)
        beyond = ""
        if options.against == "topic":
            beyond = unjudged(subject.ledger, topic, subject.key, subject.client, shadow.table)
        if beyond:
            _expect_whole(fold.letters.of_kind("unresolved"))
        wanted = " AND ".join(f"({text})" for text in (subject.condition, _within(subject, options)) if text)
        names = {column.name for column in known} | shape.system_columns
        there = replace(shadow.table, columns=tuple(column for column in shape.columns if column.name in names))
        source, target = (Side(table, subject.key, compared, wanted) for table in (there, subject.table))
        differences = Differences(subject.client, shadow.differences, source, target, options.share, options.condition)
        say("comparing checksums")
        totals = differences.totals()
        found = differences.find(0, totals)
        touched = lag = 0
        if options.against == "source" and found:
            lag = _wait_for_source(subject, options, fold, passes, topic.topic_id)
            found = differences.find_among(20, 0)
            if not subject.key:
                touched = _drop_touched(differences, 20, base)
                found -= touched
        step = 20 if passes else 0
        changing, behind = _judge(subject, options, fold, differences, found, topic.topic_id, step)
        unknown = without_history(differences, FOUND, beyond)
        if options.against == "topic" and subject.unresolved is not None and differences.count(FOUND):
            # A compacted topic begins with offset 0, whatever it has lost.
            waiting = {(p, offset) for p, offsets in fold.waiting().items() for offset in offsets}
            unresolved = fold.letters.of_kind("unresolved") | waiting
            _expect_whole(unresolved and unresolved - subject.unresolved(topic.topic_id))
        if _ignores_deletes(subject):
            differences.drop(FOUND, "kind = 'extra' AND source_version != ''")
        report = Report.of(
            differences,
            FOUND,
            options.examples,
            stream=subject.settings.name,
            table=subject.table,
            against=options.against,
            rows=totals.table_rows,
        )
        report = replace(
            report,
            causes=causes(report.examples, cache(lambda name: _default(subject, differences, name))),
            changing=touched + changing,
            behind=behind,
            lag=lag,
            unknown=unknown,
            dead_letters=sum(fold.letters.kinds.values()),
            partial=bool(options.condition or options.bounds),
            share=options.share,
            seconds=time.monotonic() - began,
            position=", ".join(f"{p}: {offset}" for p, offset in sorted(fold.at.items())),
            left_out=tuple(c.name for c in chosen if c not in compared),
            lacking=lacking,
        )
        if options.bounds is None or options.bounds[0] is None:  # with the first part of a table
            report = replace(report, rollups=_rolled_up(subject, options, report, there))
        shadow.expect_own(subject.client)
        yield Verified(report, differences, source, target, topic.topic_id, applied, shadow)


def _rolled_up(subject: Subject, options: Options, report: Report, source: TargetTable) -> tuple[RolledUp, ...]:
    """The stream's rollups against the source's rows; against the table's where those are equal, or are not known."""
    known = {column.name for column in source.columns}
    whole = not (report.partial or report.share != 1 or report.changing or report.unknown)
    of = source if report.rows_differ and whole else subject.table
    if any(not known.issuperset(rollup.used) for rollup in subject.rollups):
        of = subject.table
    return rolled_up(subject.client, subject.rollups, of, subject.key, options.examples)


def _wait_for_source(subject: Subject, options: Options, fold: Fold, passes: int, topic_id: str) -> int:
    """Go on until the stream has passed the position at which the source was read.

    Returns how many offsets of the topic it lacks then.

    An event of that position or a later one proves it. A table without such events gives no proof; then the time that
    the connector has had must do.

    Rows without a key are folded to the end of the topic, however far the stream comes: it does not come further while
    a repair stands by, and what it has not read would be counted twice.
    """
    deadline = time.monotonic() + options.patience
    fold.to(_known(subject, topic_id))
    while fold.commit() < passes and time.monotonic() < deadline:
        subject.check()
        time.sleep(0.5)
        fold.to(_known(subject, topic_id))
    high = subject.topic.state(subject.settings.topic).high
    _wait(subject, topic_id, high, options.patience)
    fold.to(_known(subject, topic_id))
    return offsets_behind(subject.reached(topic_id).applied, high)


def _known(subject: Subject, topic_id: str) -> Mapping[int, int]:
    """The offsets below which changes are known that the source's rows may show."""
    return subject.reached(topic_id).applied if subject.key else subject.topic.state(subject.settings.topic).high


def _judge(
    subject: Subject,
    options: Options,
    fold: Fold,
    differences: Differences,
    found: int,
    topic_id: str,
    step: int,
) -> tuple[int, bool]:
    """Note the keys that really differ under FOUND.

    Returns how many could not be judged, and whether that is because the stream does not go on.
    """
    for _ in range(_ROUNDS):
        if not found:
            break
        at = subject.reached(topic_id)
        fold.to(at.touched)
        kept, left = step + 2, step + 4
        differences.unchanged(kept, step)
        differences.move(kept, FOUND)
        changed = differences.changed(left, step, kept)
        if not subject.key and options.against == "source":
            return changed, False
        if not changed or not _wait(subject, topic_id, at.touched, options.patience):
            return changed, bool(changed)
        fold.to(subject.reached(topic_id).applied)
        step += 10
        found = differences.find_among(step, left)
    return found, False


def _drop_touched(differences: Differences, step: int, version: int) -> int:
    """Rows without a key that events have touched since the stream's position before the reading; returns how many.

    Whether the source's rows held such an event already is not known, so they cannot be judged.
    """
    return differences.drop(step, f"toUInt256OrZero(source_version) > toUInt256({literal(str(version))})")


def _wait(subject: Subject, topic_id: str, until: dict[int, int], patience: float) -> bool:
    """Wait until the stream has applied everything below these offsets; returns whether it has."""
    deadline = time.monotonic() + patience
    while True:
        at = subject.reached(topic_id).applied
        if all(at.get(partition, 0) >= offset for partition, offset in until.items()):
            return True
        if time.monotonic() > deadline:
            return False
        subject.check()
        time.sleep(0.2)


def _named(subject: Subject, options: Options, shape: TargetTable) -> tuple[Column, ...]:
    """The columns that the condition names. Raises StreamFailed if the stream does not fill one of them."""
    names = columns_in(options.condition, {column.name for column in subject.table.columns})
    if unknown := sorted(names - {column.name for column in shape.columns}):
        raise StreamFailed(
            f"--where names column {unknown[0]!r} of {subject.table.qualified}, which the stream does not fill",
            hint=f"Name others: {', '.join(c.name for c in subject.columns)}.",
        )
    return tuple(column for column in subject.columns if column.name in names)


def _expect_read(named: Sequence[Column], read: Sequence[Column]) -> None:
    """Raises StreamFailed if the condition cannot be told of the source's rows."""
    if lacking := [column.name for column in named if column not in read]:
        raise StreamFailed(
            f"--where names column {lacking[0]!r}, which cannot be read from the source as the connector sends it",
            hint="Name other columns, or compare --against topic.",
        )


def _default(subject: Subject, differences: Differences, name: str) -> Any:
    """A column's default as the events declare it, as examples show values; None if they declare none."""
    column, declared = subject.table.column(name), subject.declared
    field = declared.field(name) if declared is not None else None
    expression = default_sql(field.type, column.type) if field is not None and column is not None else None
    return differences.shown(column, expression) if column is not None and expression is not None else None


def _within(subject: Subject, options: Options) -> str:
    low, end = options.bounds or (None, None)
    name = quote(subject.key[0]) if options.bounds is not None else ""
    limits = [f"{name} >= {low}"] if low is not None else []
    return " AND ".join([*limits, *([f"{name} < {end}"] if end is not None else [])])


def _ignores_deletes(subject: Subject) -> bool:
    """Whether rows that the source deleted stay in the table, as configured."""
    engine = subject.table.engine
    marked = engine.is_deleted_column or engine.sign_column or engine.family is Family.MERGE_TREE
    return subject.settings.policy.changes.deletes == "ignore" and not marked


def _expect_whole(unresolved: Set[tuple[int, int]]) -> None:
    """Raises StreamFailed if there are records whose values the topic does not hold, and the stream did know."""
    if unresolved:
        raise StreamFailed(
            f"the topic no longer holds the values that {counted(len(unresolved), 'record')} of it leave out",
            hint="Compare with the database instead: `ch_sink verify CONFIG --against source`.",
        )
