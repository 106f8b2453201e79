"""The procedure of ``repair``: verify, write what differs, and look again at the rows that did."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ch_sink.pipeline.target import Target
from ch_sink.ports import TableRefilled, TableRepaired
from ch_sink.table.model import forgets_deletes
from ch_sink.trust.repair import needs_stream, no_version_left, statements, unmendable
from ch_sink.trust.repaired_versions import ceiling_of, ceilings, too_new, written_below
from ch_sink.trust.report import Report
from ch_sink.trust.verify import FOUND, Options, Subject, Verified, states_at, verified
from ch_sink.types.sql import literal

__all__ = ["Mended", "repaired"]

_INSERT: dict[str, str | int] = {
    "async_insert": 0,
    # A row that went wrong twice in the same way is mended twice.
    "insert_deduplicate": 0,
    # A block of two −1 and one +1 is not to become one −1.
    "optimize_on_insert": 0,
    "max_insert_threads": 1,
    "max_partitions_per_insert_block": 0,
    "allow_suspicious_types_in_group_by": 1,
    "allow_suspicious_types_in_order_by": 1,
    "max_bytes_before_external_group_by": 1 << 30,
    "max_bytes_before_external_sort": 1 << 30,
}


@dataclass(frozen=True, slots=True)
class Mended:
    """What a repair found, and what it wrote or would write."""

    report: Report
    applied: bool
    rows: int
    """Keys whose rows are written, or would be."""
    too_new: int = 0
    """Keys with a version above everything that the stream has written; they are left alone."""
    unmendable: int = 0
    """Rows that the engine cannot remove."""
    left: int = 0
    """Keys that differ after the repair, too: the stream has changed them since, or the repair could not mend them."""

    def as_json(self) -> dict[str, Any]:
        return {
            **self.report.as_json(),
            "applied": self.applied,
            "repaired": self.rows,
            "too_new": self.too_new,
            "unmendable": self.unmendable,
            "left": self.left,
        }


def repaired(subject: Subject, options: Options, *, apply: bool, say: Callable[[str], None] = lambda _: None) -> Mended:
    """Find what differs and, with ``apply``, write it. Raises ChSinkError."""
    with _alone(subject, apply and needs_stream(subject.table)), verified(subject, options, say) as found:
        differences = found.differences
        limits = ceilings(
            Target.of(subject.table, subject.settings.policy), states_at(subject, found.topic_id, found.applied)
        )
        lowest, highest = [ceiling_of(subject.table, subject.key, last) for last in limits] if limits else (None, None)
        if forgets_deletes(subject.table):
            newer = no_version_left(found.target, differences, FOUND, lowest)
        else:
            newer = too_new(subject.table, highest)
        skipped = differences.drop(FOUND, newer) if newer else 0
        kinds = ", ".join(literal(kind) for kind in unmendable(subject.table))
        stuck = differences.drop(FOUND, f"kind IN ({kinds})") if kinds else 0
        rows = differences.count(FOUND)
        left = 0
        if apply and rows:
            repairs = _repairs(subject, found, limits, lowest) if options.against == "source" else []
            if repairs:
                subject.ledger.note(*repairs)
            say(f"writing {rows} rows")
            for sql in statements(found.source, found.target, differences, FOUND, lowest):
                subject.client.command(sql, settings=_INSERT, again=False, doing=f"repair {subject.table.qualified}")
            if repairs and not repairs[0].outranked and differences.count(FOUND, "kind != 'extra'"):
                # Only now: a repair that was killed before has written no row that has to be there.
                subject.ledger.note(*(replace(fact, top=str(lowest)) for fact in repairs))
            left = differences.find_among(FOUND + 10, FOUND)
        return Mended(found.report, apply, rows, skipped, stuck, left)


def _repairs(
    subject: Subject, found: Verified, limits: tuple[int, int] | None, lowest: int | None
) -> list[TableRepaired]:
    """What the ledger is to know of a repair from the source, by partition."""
    since = len(subject.ledger.facts(TableRefilled))
    outranked = True  # unless no older change of the topic would win over what is written if it is read again
    if lowest is not None and limits is not None and not forgets_deletes(subject.table):
        outranked = found.differences.count(FOUND, written_below(subject.table, lowest, limits[1])) > 0
    return [TableRepaired(found.topic_id, p, offset, since, outranked) for p, offset in sorted(found.applied.items())]


@contextmanager
def _alone(subject: Subject, wanted: bool) -> Iterator[None]:
    """Hold the stream's claim meanwhile, if the repair cannot be ordered against the stream by versions.

    Raises LedgerConflict if a job on this host runs the stream.
    """
    if not wanted:
        yield
        return
    subject.ledger.claim(f"repair-{uuid.uuid4().hex[:8]}")
    try:
        yield
    finally:
        subject.ledger.release()
