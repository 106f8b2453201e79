"""A table compared with its source again and again, part by part, beside the running stream.

A rotation covers the table once. It goes through ranges of the first key column, if that is an integer on both sides,
so that a part costs the source as much as its rows; any other table is one part. After each part the comparison rests,
so that it takes no more than the wanted share of the time. Each part looks at the table and its topic anew: columns may
have come.
"""

import math
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace

from ch_sink.ports import Compared
from ch_sink.snapshot import DivisibleReader
from ch_sink.trust.report import Report
from ch_sink.trust.subject import Options, Subject
from ch_sink.trust.verify import verified
from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import quote

PART = 200_000
"""Rows of a part."""
_INTEGER = re.compile(r"(tiny|small|medium|big)?(int|serial)(eger|\b)")

Bounds = tuple[int | None, int | None]


def compared(reports: list[Report], began: float, now: float, before: Compared | None) -> Compared:
    """The sum of reports that together cover the table. Times are seconds since 1970."""
    unjudged = sum(report.unknown + (report.changing if report.behind else 0) for report in reports)
    equal = not unjudged and all(report.equal for report in reports)
    lacking = {name for report in reports for name in report.lacking}
    return Compared(
        now,
        began if equal else before.equal_up_to if before is not None else 0.0,
        reports[0].against if reports else "",
        sum(report.rows for report in reports),
        sum(report.missing for report in reports),
        sum(report.extra for report in reports),
        sum(report.different for report in reports),
        len(lacking) + sum(one.unpaired + sum(rollup.different for rollup in one.rollups) for one in reports),
        unjudged,
    )


def part_bounds(subject: Subject, options: Options) -> list[Bounds | None]:
    """Ranges of the first key column with about `PART` rows each; [None] if the table is one part."""
    column = subject.table.column(subject.key[0]) if subject.key else None
    if options.against != "source" or subject.source is None or column is None:
        return [None]
    chosen = subject.settings.policy.columns
    if column.name in dict(chosen.add) or not re.fullmatch(r"U?Int(8|16|32|64)", parse_type(column.type).bare.name):
        return [None]
    with closing(subject.source()) as reader:
        own = {new: old for old, new in chosen.rename}
        kind = reader.columns().get(own.get(column.name, column.name), "")
        if not isinstance(reader, DivisibleReader) or not _INTEGER.match(kind):
            return [None]
    name = quote(column.name)
    [found] = subject.client.rows(f"SELECT count() AS n FROM {subject.table.qualified}", of=subject.table)
    many = math.ceil(int(found["n"]) / PART)
    if many <= 1:
        return [None]
    shares = ", ".join(str(n / many) for n in range(1, many))
    [found] = subject.client.rows(
        f"SELECT quantiles({shares})({name}) AS at FROM {subject.table.qualified}", of=subject.table
    )
    limits = sorted({int(value) for value in found["at"]})
    return list(zip([None, *limits], [*limits, None], strict=True))


@dataclass
class Rotation:
    """One stream's table, compared part by part."""

    look: Callable[[], tuple[Subject, Options]]
    """Looks at the stream and its table as they are now. Raises ChSinkError."""
    record: Callable[[list[Report], float], Compared]
    """Records the reports of a rotation, or of a part of it that differs (0.0), and when it began."""
    before: Compared | None = None
    clock: Callable[[], float] = time.time
    rounds: int = 0
    """Rotations that are complete."""
    subject: Subject | None = None
    """The stream and its table at the last part."""
    _key: list[tuple[str, str]] = field(default_factory=list)
    _left: list[Bounds | None] = field(default_factory=list)
    _reports: list[Report] = field(default_factory=list)
    _began: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether every part of this rotation that was compared is equal."""
        return all(report.equal for report in self._reports)

    def step(self) -> Report:
        """Compare the next part. Raises ChSinkError."""
        self.subject, options = self.look()
        key = [self.subject.table.column(name) for name in self.subject.key]
        typed = [(column.name, column.type) for column in key if column is not None]
        if not self._left or self._key != typed:
            self._key, self._left, self._reports = typed, part_bounds(self.subject, options), []
            self._began = self.clock()
        with verified(self.subject, replace(options, bounds=self._left[0])) as found:
            report = found.report
        self._left.pop(0)
        self._reports.append(report)
        if not self._left or not report.equal:
            self.before = self.record(self._reports, self._began if not self._left else 0.0)
        self.rounds += not self._left
        return report
