"""The procedure of ``repair``: verify, write what differs, and look again at the rows that did."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ch_sink.clickhouse import EVERY_TYPE, await_earlier_inserts
from ch_sink.clickhouse.lookup import max_version
from ch_sink.errors import StreamFailed
from ch_sink.merge.resolved import version_column
from ch_sink.pipeline.target import Target
from ch_sink.ports import RowsEdited, TableRefilled
from ch_sink.stream.rollback import lacking
from ch_sink.stream.standing import works
from ch_sink.table.model import forgets_deletes
from ch_sink.trust.own_tables import note_removed
from ch_sink.trust.repair_sql import (
    Ceilings,
    ceiling_of,
    counts,
    last_versions,
    needs_stream,
    no_version_left,
    rows_move,
    statements,
    too_new,
    unremovable,
)
from ch_sink.trust.report import Report
from ch_sink.trust.rollups import refilled
from ch_sink.trust.shadow import staying
from ch_sink.trust.subject import Options, Subject, states_at
from ch_sink.trust.verify import FOUND, Comparison, unpaired, verified
from ch_sink.types.sql import literal

_INSERT: dict[str, str | int] = {
    "async_insert": 0,
    # A row that went wrong twice in the same way is repaired twice.
    "insert_deduplicate": 0,
    # A block of two −1 and one +1 is not to become one −1.
    "optimize_on_insert": 0,
    "max_insert_threads": 1,
    "max_partitions_per_insert_block": 0,
    **EVERY_TYPE,
    "max_bytes_before_external_group_by": 1 << 30,
    "max_bytes_before_external_sort": 1 << 30,
}


@dataclass(frozen=True, slots=True)
class Repaired:
    """The differences that a repair found, and the rows that it wrote or would write."""

    report: Report
    applied: bool
    rows: int
    """Keys whose rows are written, or would be."""
    too_new: int = 0
    """Keys with a version above everything that the stream has written; they are left alone."""
    unremovable: int = 0
    """Rows that the engine cannot remove."""
    unreadable: int = 0
    """Rows that have columns which the source cannot give, and which the table lacks; they are left alone."""
    left: int = 0
    """Keys that still differ after the repair: the stream has changed them since, or the repair could not."""

    @property
    def all_repaired(self) -> bool:
        """Whether nothing is left, or would be."""
        return not (self.left or self.too_new or self.unremovable or self.unreadable)

    @property
    def corrected(self) -> Report:
        """The report of the table as it is if nothing is left."""
        return replace(
            self.report, missing=0, extra=0, different=0, unpaired=0, columns={}, examples=(), causes=(), rollups=()
        )

    def as_json(self) -> dict[str, Any]:
        return {
            **self.report.as_json(),
            "applied": self.applied,
            "repaired": self.rows,
            "too_new": self.too_new,
            "unremovable": self.unremovable,
            "unreadable": self.unreadable,
            "left": self.left,
        }


def repaired(
    subject: Subject, options: Options, *, apply: bool, say: Callable[[str], None] = lambda _: None
) -> Repaired:
    """Find what differs and, with ``apply``, write it.

    Raises ChSinkError; StreamFailed if no row of the table is in the source, which is likely another table.
    """
    if not subject.key:
        raise StreamFailed(
            f"{subject.table.qualified} has no key: its rows are counted, and a single row cannot be written again",
            hint="Fill the table again: `ch_sink resync CONFIG --against topic`. Or set key_columns.",
        )
    subject = replace(subject, client=staying(subject.client, subject.table))
    still = _still(subject, apply and needs_stream(subject.table), say)
    with still as query_id, verified(subject, options, say) as found:
        kept = _kept(subject, found)
        if found.report.unrelated:
            raise StreamFailed(
                f"{found.report.unrelated}, and a repair would delete all of them",
                hint="Check source.table. If the rows have really gone from the source, say that all may go: "
                "`ch_sink repair CONFIG --where true --apply`.",
            )
        differences = found.differences
        limits = last_versions(
            Target.of(subject.table, subject.settings.policy),
            subject.settings.topic,
            states_at(subject, found.topic.topic_id, found.applied),
        )
        lowest, highest = [ceiling_of(subject.table, subject.key, last) for last in limits] if limits else (None, None)
        ceilings = Ceilings.of(lowest, highest, knows_changes=options.against == "topic")
        if not unremovable(subject.table):
            differences.several(FOUND)
        if forgets_deletes(subject.table):
            newer = no_version_left(found.differences.target, differences, FOUND, ceilings)
        else:
            newer = too_new(subject.table, highest)
        skipped = differences.drop(FOUND, newer) if newer else 0
        kinds = ", ".join(literal(kind) for kind in unremovable(subject.table))
        stuck = differences.drop(FOUND, f"kind IN ({kinds})") if kinds else 0
        unreadable = differences.drop(FOUND, _unreadable(subject)) if kept else 0
        rows = differences.count(FOUND)
        left = 0
        # A missing row of a table with times gets the lowest one: older changes would win if they come again.
        timed = version_column(subject.table) is not None and not counts(subject.table)
        lowest_times = timed and differences.count(FOUND, "kind = 'missing'") > 0
        noted = apply and (options.against == "source" or lowest_times)
        if apply and rows:
            if not options.of_all_rows:
                _expect_none_lost(subject, found)
            if noted:
                _note(subject, found)
            say(f"writing {rows} rows")
            fixes = statements(found.differences.source, found.differences.target, differences, FOUND, ceilings, kept)
            left = _write(subject, found, fixes, query_id)
        if apply and found.report.unpaired:
            left += len(unpaired(subject, found.differences.target))
        if apply and (rows or any(one.different for one in found.report.rollups)):
            refilled(subject, say)
        done = Repaired(found.report, apply, rows, skipped, stuck, unreadable, left)
        if apply and done.all_repaired and limits is not None and options.of_all_rows:
            _note_whole(subject, found, limits[1])
        return done


def _write(subject: Subject, found: Comparison, statements: Iterable[str], query_id: str) -> int:
    """Execute the repair; returns how many of the rows still differ."""
    found.shadow.expect_own(subject.client)
    subject.still_alone()
    for sql in statements:
        subject.client.command(
            sql,
            settings=_INSERT,
            of=subject.table,
            again=False,
            doing=f"repair {subject.table.qualified}",
            query_id=query_id,
        )
    left = found.differences.find_among(FOUND + 10, FOUND)
    found.shadow.expect_own(subject.client)
    return left


def _expect_none_lost(subject: Subject, found: Comparison) -> None:
    """Raises StreamFailed if the table lacks rows: with the newest one written, nothing would show it any more."""
    target = Target.of(subject.table, subject.settings.policy)

    def stored() -> int:
        return max_version(subject.client, subject.table, empty=-1, condition=subject.condition)

    if lacks := lacking(subject.ledger, target, found.topic.topic_id, len(found.applied), stored):
        raise StreamFailed(
            f"{lacks}. A repair of some rows would hide that others are missing",
            hint="Repair all of them: `ch_sink repair CONFIG --apply`. Or fill the table again: `ch_sink resync`.",
        )


def _note_whole(subject: Subject, found: Comparison, last: int) -> None:
    """Let the ledger know that the table is whole, if its newest version is below that of the last change.

    A delete of a row that is gone is not written again, nor is its version: the next job would take the table for one
    that lacks rows.

    Args:
        last: the highest version of a change that the stream has applied.
    """
    newest = max_version(subject.client, subject.table, empty=-1, condition=subject.condition)
    if newest < last:
        note_removed(subject.ledger, found.topic.topic_id, found.applied, last, left=newest)


def _note(subject: Subject, found: Comparison) -> None:
    """Let the ledger know before rows are written that the topic's changes up to here would not give."""
    since = len(subject.ledger.facts(TableRefilled))
    subject.ledger.note(
        *(RowsEdited(found.topic.topic_id, p, offset, "repaired", since) for p, offset in sorted(found.applied.items()))
    )


def _kept(subject: Subject, found: Comparison) -> list[str]:
    """Columns that the stream fills and the source does not give."""
    known, schema = {column.name for column in found.differences.source.table.columns}, subject.declared
    lacking = [c.name for c in subject.columns if c.name not in known]
    # What the events no longer state has its default in the rows that the stream stores.
    return [name for name in lacking if schema is None or schema.field(name) is not None]


def _unreadable(subject: Subject) -> str:
    """The condition on differences for which the table does not have what the source cannot give."""
    return "kind IN ('missing', 'different')" if rows_move(subject.table, subject.key) else "kind = 'missing'"


@contextmanager
def _still(subject: Subject, wanted: bool, say: Callable[[str], None]) -> Iterator[str]:
    """Let the stream stand still meanwhile, if the repair cannot be ordered against it by versions.

    Gives how the ids of its statements begin: by them a later repair or job finds one whose answer did not come.

    Raises StreamFailed if a job works on the stream: what it would apply meanwhile would count as differences.
    """
    if not wanted:
        yield ""
        return
    if works(subject.states, subject.settings.name):
        raise StreamFailed(
            f"a job works on {subject.settings.name!r}, and no version orders a repair of {subject.table.qualified} "
            "against its changes",
            hint="Let the stream catch up and pause it (`ch_sink pause CONFIG`), repair, and resume it.",
        )
    topic = subject.topic.state(subject.settings.topic)
    with subject.held("repair", say) as claim:
        fences = [subject.ledger.begin(topic.topic_id, p, claim, "repair") for p in sorted(topic.low)]
        for fence in fences:
            await_earlier_inserts(subject.client, subject.table, fence, cluster=subject.table.cluster)
        yield fences[-1].query_id
