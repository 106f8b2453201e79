"""The procedure of ``verify``: fold the topic to what the stream has applied, compare, and judge what differs.

    L = offsets that the stream has applied ─▶ fold to L ─▶ compare ─▶ H = offsets that it may have touched by now
      ─▶ fold to H ─▶ a key whose source row has changed between L and H is not judged; it is compared again later

Nothing is locked and nothing is stopped. The table holds everything below L, and nothing from H on; a key that differs,
and has no event between both, differs indeed.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from ch_sink.clickhouse import EVERY_TYPE, unfitting_view
from ch_sink.errors import StreamFailed
from ch_sink.model.counts import counted
from ch_sink.observe.logs import Step
from ch_sink.pipeline.target import Target
from ch_sink.stream.batch_plan import expect_same_topic
from ch_sink.stream.claims import expect_same_terms
from ch_sink.stream.rollback import expect_entered
from ch_sink.table.evolve import computed_here
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.differences import Differences
from ch_sink.trust.fold import Fold, MakeDecoder
from ch_sink.trust.history import begin_at_load, expect_its_end, is_incomplete, unjudged, without_history
from ch_sink.trust.repair_sql import last_versions
from ch_sink.trust.report import Report, causes
from ch_sink.trust.rollups import RolledUp, rolled_up
from ch_sink.trust.shadow import shadow_of, shadow_tables, staying
from ch_sink.trust.sides import KEY, Side
from ch_sink.trust.source_rows import read_source, several_connectors
from ch_sink.trust.subject import Options, Subject, chosen_columns, expect_condition, expect_witness, states_at
from ch_sink.trust.topic import offsets_behind
from ch_sink.types.build import default_sql
from ch_sink.types.column import Column
from ch_sink.types.sql import columns_in, literal, quote

FOUND = 10_000
"""Step of the keys that differ."""
_WAITING = "waiting for changes that have not arrived yet"
_ROUNDS = 5
_PAUSE = 0.2
"""Seconds between two looks at the stream."""
_UNPAIRED = 10_000
"""Most keys with wrong signs that are counted."""


@contextmanager
def verified(subject: Subject, options: Options, say: Callable[[str], None] = lambda _: None) -> "Iterator[Comparison]":
    """Compare a table with its topic; the shadow and what was found exist until the context ends.

    Raises StreamFailed if the comparison is impossible, and ChSinkError of Kafka and ClickHouse.
    """
    with closing(Comparison(subject, options, say)) as comparison:
        for _ in comparison.steps():
            subject.check()
            time.sleep(_PAUSE)
        yield comparison


class Comparison:
    """The comparison of one table, in steps between which others can go on; close it in the end."""

    def __init__(self, subject: Subject, options: Options, say: Callable[[str], None]) -> None:
        self.subject = replace(subject, client=staying(subject.client, subject.table))
        self.options, self.say = options, say
        self.from_source = options.against == "source"
        self.left_out: tuple[str, ...] = ()
        self.lacking: tuple[str, ...] = ()
        """Columns of the source that the table lacks."""
        self.passes = 0
        """The source's position after the reading."""
        self.base = 0
        """Version of the source's rows in the shadow."""
        self.touched = self.lag = 0
        self.report: Report
        """The result, after the last step."""
        self._open = ExitStack()

    def close(self) -> None:
        """Drop the shadow."""
        self._open.close()

    def steps(self) -> Iterator[None]:
        """Compare; yields wherever it has to wait for the stream. Raises as `verified` does."""
        began = time.monotonic()
        self._begin()
        columns = self._read_source() if self.from_source else self._begin_topic()
        self.fold.to(self.reached)
        if not self.from_source:
            expect_witness(self.subject, self.fold)
        self._differences(*columns)
        self.say("comparing checksums")
        totals = self.differences.totals()
        step = self.differences.new()
        found = self.differences.find(step, totals)
        if self.from_source and found:
            yield from self._wait_for_source()
            step, earlier = self.differences.new(), step
            found = self.differences.find_among(step, earlier)
            if not self.subject.key:
                self.touched = _drop_touched(self.differences, step, self.base)
                found -= self.touched
        changing, behind = yield from self._judge(step, found)
        report = replace(self._report(totals.table_rows), changing=self.touched + changing, behind=behind, lag=self.lag)
        report = replace(report, unpaired=(yield from self._unpaired()))
        if self.options.bounds is None or self.options.bounds[0] is None:  # with the first part of a table
            rollups = _rolled_up(self.subject, self.options, report, self.differences.source.table)
            report = replace(report, rollups=rollups)
        self.shadow.expect_own(self.subject.client)
        self.report = replace(report, seconds=time.monotonic() - began)

    def _unpaired(self) -> Generator[None, None, int]:
        """How many keys have wrong signs, also when looked at again: parts of one insert come one after the other."""
        if self.options.share != 1:
            return 0
        found = unpaired(self.subject, self.differences.target)
        for _ in range(_ROUNDS):
            if not found:
                break
            yield
            found &= unpaired(self.subject, self.differences.target)
        return len(found)

    def _begin(self) -> None:
        """Make the shadow, and a fold into it."""
        subject, options = self.subject, self.options
        expect_condition(subject, options.condition)
        self.shape = shadow_of(subject.table, subject.database, subject.key, subject.columns)
        self.shadow = self._open.enter_context(shadow_tables(subject.client, self.shape))
        self.topic = subject.topic.state(subject.settings.topic)
        self.reached = subject.reached(self.topic.topic_id).applied
        expect_entered(subject.table, subject.ledger)
        expect_same_topic(subject.ledger, self.topic)
        if not self.from_source:
            expect_its_end(subject, self.topic)
        settings = subject.settings
        expect_same_terms(settings.name, subject.ledger, subject.table, settings.policy, settings.source_table)
        if not self.reached:
            raise StreamFailed(
                f"stream {subject.settings.name!r} has read nothing of topic {self.topic.topic} yet",
                hint="Run it first: `ch_sink run CONFIG`.",
            )
        self.applied = dict.fromkeys(self.topic.low, 0) | self.reached
        """Offsets that the stream had applied when the comparison began, 0 for partitions that it has not begun."""
        # A whole topic has the values itself, and those that the stream keeps may be of a row that was wrong.
        begun = self.from_source or is_incomplete(subject.ledger, self.topic)
        kept = subject.kept(self.shadow.table) if begun else None
        self.fold = Fold(
            subject.client, self.shadow.table, subject.settings, subject.topic, _decoder(subject), kept, self.say
        )
        self._open.callback(self.fold.close)

    def _read_source(self) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
        """Fill the shadow with the source's rows; returns the columns that were read, and those to compare."""
        subject, options = self.subject, self.options
        chosen, named = chosen_columns(subject, options), _named(subject, options, self.shape)
        states = states_at(subject, self.topic.topic_id, self.applied)
        self.fold.begin(self.reached, states)
        limits = last_versions(Target.of(subject.table, subject.settings.policy), subject.settings.topic, states)
        if subject.key:  # above the last change, which may have been lost
            self.base = max(limits[0] + 1, 0) if limits else 0
        elif limits and len(states) == len(self.applied):
            # Versions tell what was touched since, in any partition.
            self.base = max(limits[0], 0)
        wanted = (*chosen, *(column for column in named if column not in chosen))
        read = read_source(subject, options, self.shadow.table, wanted, self.base, self.say)
        _expect_read(named, read.columns)
        self.passes = read.passes
        self.lacking = () if options.columns else read.lacking
        return read.columns, tuple(column for column in read.columns if column in chosen)

    def _begin_topic(self) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
        """Let the fold begin where the topic does; returns the columns that it fills, and those to compare."""
        chosen = chosen_columns(self.subject, self.options)
        _named(self.subject, self.options, self.shape)
        began_at = begin_at_load(self.fold, self.subject.ledger, self.topic)
        offsets = sum(self.reached.values()) - began_at
        self.say(Step(f"applying changes: {counted(offsets, 'offset')} of {self.topic.topic}", 0.0))
        return self.shape.columns, chosen

    def _differences(self, known: tuple[Column, ...], compared: tuple[Column, ...]) -> None:
        """Set up what is compared. Raises StreamFailed if the topic does not hold it."""
        subject, options = self.subject, self.options
        self.beyond = ""
        if not self.from_source:
            self.beyond = unjudged(subject, self.topic)
        if self.beyond:
            _expect_whole(self.fold.letters.of_kind("unresolved"))
        left_out = tuple(c.name for c in chosen_columns(subject, options) if c not in compared)
        self.left_out = left_out + (() if options.columns else computed_here(subject.table, subject.schema))
        wanted = " AND ".join(f"({text})" for text in (subject.condition, _within(subject, options)) if text)
        names = {column.name for column in known} | self.shape.system_columns
        columns = tuple(column for column in self.shape.columns if column.name in names)
        there = replace(self.shadow.table, columns=columns)
        source, target = (Side(table, subject.key, compared, wanted) for table in (there, subject.table))
        self.differences = Differences(
            subject.client, self.shadow.differences, source, target, options.share, options.condition
        )

    def _report(self, rows: int) -> Report:
        """The result, once no further row can be judged."""
        subject, options, differences = self.subject, self.options, self.differences
        unknown = without_history(differences, FOUND, self.beyond)
        if not self.from_source and differences.count(FOUND):
            # A compacted topic begins with offset 0, whatever it has lost.
            waiting = {(p, offset) for p, offsets in self.fold.waiting().items() for offset in offsets}
            unresolved = self.fold.letters.of_kind("unresolved") | waiting
            _expect_whole(unresolved and unresolved - subject.not_applied(self.topic.topic_id))
        if _ignores_deletes(subject):
            differences.drop(FOUND, "kind = 'extra' AND source_version != ''")
        report = Report.of(
            differences,
            FOUND,
            options.examples,
            stream=subject.settings.name,
            table=subject.table,
            against=options.against,
            rows=rows,
        )
        found = causes(report.examples, cache(lambda name: _default(subject, differences, name)))
        if self.from_source and report.extra and (several := several_connectors(subject, self.topic.topic_id)):
            found = (*found, several)
        return replace(
            report,
            causes=found,
            unknown=unknown,
            dead_letters=sum(self.fold.letters.kinds.values()),
            partial=bool(options.columns or options.condition or options.bounds),
            share=options.share,
            position=", ".join(f"{p}: {offset}" for p, offset in sorted(self.fold.at.items())),
            left_out=self.left_out,
            lacking=self.lacking,
            view=unfitting_view(subject.client, subject.table, {column.name for column in subject.columns}),
        )

    def _wait_for_source(self) -> Iterator[None]:
        """Go on until the stream has passed the position at which the source was read; notes what it lacks then.

        An event of that position or a later one proves it. A table without such events gives no proof; then the time
        that the connector has had must do.

        Rows without a key are folded to the end of the topic, however far the stream comes: it does not come further
        while a repair stands by, and what it has not read would be counted twice.
        """
        topic_id, fold = self.topic.topic_id, self.fold
        deadline = time.monotonic() + self.options.patience
        fold.to(self._known())
        self.say(_WAITING)
        while fold.commit() < self.passes and time.monotonic() < deadline:
            yield
            fold.to(self._known())
        high = self.subject.topic.state(self.subject.settings.topic).high
        yield from self._wait(high)
        fold.to(self._known())
        self.lag = offsets_behind(self.subject.reached(topic_id).applied, high)

    def _known(self) -> Mapping[int, int]:
        """The offsets below which changes are known that the source's rows may show."""
        subject = self.subject
        if subject.key:
            return subject.reached(self.topic.topic_id).applied
        return subject.topic.state(subject.settings.topic).high

    def _judge(self, step: int, found: int) -> Generator[None, None, tuple[int, bool]]:
        """Note the keys that really differ under FOUND.

        Returns how many could not be judged, and whether that is because the stream does not go on.
        """
        differences, topic_id = self.differences, self.topic.topic_id
        for _ in range(_ROUNDS):
            if not found:
                break
            at = self.subject.reached(topic_id)
            self.fold.to(at.touched)
            kept, left = differences.new(), differences.new()
            differences.unchanged(kept, step)
            differences.move(kept, FOUND)
            changed = differences.changed(left, step, kept)
            if not self.subject.key and self.from_source:
                return changed, False
            if not changed or not (yield from self._wait(at.touched)):
                return changed, bool(changed)
            self.fold.to(self.subject.reached(topic_id).applied)
            step = differences.new()
            found = differences.find_among(step, left)
        return found, False

    def _wait(self, until: dict[int, int]) -> Generator[None, None, bool]:
        """Wait until the stream has applied everything below these offsets; returns whether it has."""
        deadline = time.monotonic() + self.options.patience
        self.say(_WAITING)
        while True:
            at = self.subject.reached(self.topic.topic_id).applied
            if all(at.get(partition, 0) >= offset for partition, offset in until.items()):
                return True
            if time.monotonic() > deadline:
                return False
            yield


def unpaired(subject: Subject, target: Side) -> set[str]:
    """Hashes of the keys with wrong signs (`Side.unpaired`), as many as are counted. Raises ClickHouseError."""
    query = target.unpaired()
    if not query:
        return set()
    rows = subject.client.rows(
        f"{query} ORDER BY {KEY} LIMIT {_UNPAIRED}",
        settings={**EVERY_TYPE, "max_bytes_before_external_group_by": 1 << 30},
        of=subject.table,
        doing=f"sum the signs of {subject.table.qualified}",
    )
    return {str(row[KEY]) for row in rows}


def _rolled_up(subject: Subject, options: Options, report: Report, source: TargetTable) -> tuple[RolledUp, ...]:
    """The stream's rollups against the source's rows; against the table's where those are equal, or are not known."""
    known = {column.name for column in source.columns}
    of = source if report.rows_differ and report.whole else subject.table
    if any(not known.issuperset(rollup.used) for rollup in subject.rollups):
        of = subject.table
    return rolled_up(subject.client, subject.rollups, of, subject.key, options.examples)


def _drop_touched(differences: Differences, step: int, version: int) -> int:
    """Rows without a key that events have touched since the stream's position before the reading; returns how many.

    Whether the source's rows held such an event already is not known, so they cannot be judged.
    """
    return differences.drop(step, f"toUInt256OrZero(source_version) > toUInt256({literal(str(version))})")


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
    """Raises StreamFailed if the condition cannot be evaluated for the source's rows."""
    if lacking := [column.name for column in named if column not in read]:
        raise StreamFailed(
            f"--where names column {lacking[0]!r}, which cannot be read from the source as the connector sends it",
            hint="Name other columns, or compare --against topic.",
        )


def _decoder(subject: Subject) -> MakeDecoder:
    """The decoder of the stream, to which the source's columns that the table computes are not new ones."""
    computed = tuple(c for c in subject.table.columns if not c.insertable)
    return lambda shadow, before: subject.decoder(replace(shadow, columns=(*shadow.columns, *computed)), before)


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
