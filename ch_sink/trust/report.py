"""The report of a comparison: as JSON, as text lines, and as one HTML file without anything from outside."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import Any, Self

from ch_sink.errors import ChSinkError
from ch_sink.model.counts import capitalized, counted, grouped
from ch_sink.table.model import TargetTable
from ch_sink.trust.differences import Difference, Differences
from ch_sink.trust.rollups import RolledUp


@dataclass(frozen=True, slots=True)
class Report:
    """One stream's table against its source."""

    stream: str
    table: str
    against: str
    rows: int
    """Rows of the table that were compared."""
    missing: int = 0
    """Rows that the source has and the table lacks."""
    extra: int = 0
    """Rows that the table has and the source lacks."""
    different: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    """Column → number of rows in which it differs."""
    examples: tuple[Difference, ...] = ()
    causes: tuple[str, ...] = ()
    """Known causes of differences like those of the examples (`causes`)."""
    changing: int = 0
    """Rows that could not be judged: they kept changing, or the stream does not go on."""
    unknown: int = 0
    """Rows of which the topic holds no event any more."""
    dead_letters: int = 0
    """Records that cannot be applied."""
    partial: bool = False
    """Only some columns, rows that meet a condition, or a range of keys were compared."""
    share: float = 1.0
    seconds: float = 0.0
    position: str = ""
    """How far the topic was read, by partition."""
    left_out: tuple[str, ...] = ()
    """Columns that were not compared: their values cannot be read as the connector reads them, or a copy lacks them."""
    lacking: tuple[str, ...] = ()
    """Columns of the source that the table lacks."""
    view: str = ""
    """The view of the table that readers should not trust, and why; empty if there is none."""
    behind: bool = False
    """The stream has not applied the changes of the rows that could not be judged."""
    rollups: tuple[RolledUp, ...] = ()
    unpaired: int = 0
    """Keys of a collapsing table whose signs do not sum up to 1 if readers see a row, else to 0; rows without
    a key with more deletes than inserts."""
    lag: int = 0
    """Offsets of the topic that the stream had not applied when rows were found to differ from the database."""

    @classmethod
    def of(
        cls,
        differences: Differences,
        step: int,
        examples: int,
        *,
        stream: str,
        table: TargetTable,
        against: str,
        rows: int,
    ) -> Self:
        """The report of what a comparison has noted under a step."""
        kinds = differences.kinds(step)
        return cls(
            stream,
            table.qualified.replace("`", ""),
            against,
            rows,
            missing=kinds.get("missing", 0),
            extra=kinds.get("extra", 0),
            different=kinds.get("different", 0),
            columns=differences.columns(step) if kinds.get("different") else {},
            examples=tuple(differences.examples(step, examples)),
        )

    @property
    def unrelated(self) -> str:
        """A note that no row of the table is in the database; empty if some are."""
        if self.against != "source" or self.partial or not self.rows or self.extra != self.rows:
            return ""
        rows = counted(self.rows, "row")
        return f"none of the {rows} of {self.table} is in the source: source.table may be another table"

    @property
    def lagging(self) -> str:
        """The lag of the stream, if differing rows may be explained by it; else empty."""
        if not self.rows_differ or not self.lag:
            return ""
        return (
            f"the stream is {counted(self.lag, 'offset')} behind its topic, so rows that differ may only be late: "
            "compare again once it has caught up"
        )

    @property
    def notes(self) -> list[str]:
        """Notes that the figures do not show, a sentence each."""
        said = [self.unrelated, *self.causes, self.lagging]
        if self.view:
            said.append(f"{self.view}, so readers may see other values until the stream is opened again")
        if self.unpaired:
            said.append(
                f"the signs of {counted(self.unpaired, 'key')} do not sum up to 1 if the row lives, else to 0 (without "
                "a key: are below 0), so sums are wrong, and readers may see rows that are gone or twice: fill the "
                "table again with `ch_sink resync CONFIG --apply`"
            )
        if self.changing:
            why = (
                "the stream has begun to apply changes of them and has not finished"
                if self.behind
                else "they kept changing"
            )
            said.append(f"{counted(self.changing, 'row')} could not be judged: {why}")
        if self.unknown:
            rows = counted(self.unknown, "row")
            said.append(f"{rows} of the table cannot be judged: the topic does not hold their events")
        if self.left_out:
            said.append(f"not compared: {', '.join(self.left_out)}")
        if self.lacking:
            said.append(
                f"the table lacks columns of the source: {', '.join(self.lacking)}. An event with them adds them "
                "(evolve: add_columns), and a repair fills them then; name those that the connector does not send, or "
                "that are not wanted, in columns.exclude"
            )
        if self.dead_letters:
            letters = counted(self.dead_letters, "record")
            said.append(f"{letters} of the topic cannot be applied: `ch_sink dead-letters list` shows those still open")
        return [text for text in said if text]

    @property
    def equal(self) -> bool:
        return not (self.rows_differ or self.lacking or self.unpaired or any(one.different for one in self.rollups))

    @property
    def whole(self) -> bool:
        """Whether every row and column was compared."""
        return not (self.partial or self.share != 1 or self.changing or self.unknown)

    @property
    def rows_differ(self) -> bool:
        return bool(self.missing or self.extra or self.different)

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "table": self.table,
            "against": self.against,
            "equal": self.equal,
            "rows": self.rows,
            "missing": self.missing,
            "extra": self.extra,
            "different": self.different,
            "unpaired": self.unpaired,
            "columns": self.columns,
            "examples": [
                {"key": e.key, "kind": e.kind, "columns": {name: list(pair) for name, pair in e.columns.items()}}
                for e in self.examples
            ],
            "causes": list(self.causes),
            "changing": self.changing,
            "lag": self.lag,
            "unknown": self.unknown,
            "dead_letters": self.dead_letters,
            "sample": self.share,
            "partial": self.partial,
            "position": self.position,
            "left_out": list(self.left_out),
            "lacking": list(self.lacking),
            "view": self.view,
            "rollups": [one.as_json() for one in self.rollups],
            "seconds": round(self.seconds, 3),
        }


def lines(report: Report) -> list[str]:
    """The report for the console."""
    part = "" if report.share == 1 else f" (a sample of {report.share:.2%})"
    head = f"{report.stream}  →  {report.table}: {counted(report.rows, 'row')} compared with the {report.against}{part}"
    if not (report.rows_differ or report.lacking or report.unpaired):
        out = [head, "  equal"]
    else:
        found = (
            f"{grouped(report.missing)} missing, {grouped(report.extra)} extra, {grouped(report.different)} different"
        )
        out = [head, f"  {found}"]
    out += [f"  column {name}: {counted(n, 'row')}" for name, n in sorted(report.columns.items(), key=lambda c: -c[1])]
    for e in report.examples:
        out.append(f"  {e.kind} {_pairs(e.key)}")
        if e.kind == "different":
            out += [f"    {name}: source {_shown(a)}, table {_shown(b)}" for name, (a, b) in e.columns.items()]
    return [*out, *(f"  {text}" for text in report.notes), *(line for one in report.rollups for line in one.lines)]


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in values.items())


def _shown(value: Any) -> str:
    text = "NULL" if value is None else repr(value)
    return text if len(text) <= 200 else text[:200] + "…"


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .5rem 0 1rem } th, td { padding: .25rem .7rem; text-align: left }
th { border-bottom: 2px solid #c7d0db } td { border-bottom: 1px solid #e6ebf1; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums } code { white-space: pre-wrap; word-break: break-all }
.equal { color: #12703a; font-weight: 600 } .differs { color: #a61b1b; font-weight: 600 }
"""


def page(reports: Sequence[Report], failed: Mapping[str, ChSinkError] = MappingProxyType({})) -> str:
    """The whole document. ``failed``: streams that could not be compared → why."""
    verdict = "All tables equal their source" if not failed else "All tables that could be compared equal their source"
    if not all(r.whole for r in reports):
        verdict = "No difference in what was compared"
    if not all(r.equal for r in reports):
        verdict = "Some tables differ from their source"
    rows = "".join(
        _row(
            [
                r.table,
                r.stream,
                "differs" if not r.equal else "equal" if r.whole else "no difference",
                *map(grouped, (r.rows, r.missing, r.extra, r.different)),
            ]
        )
        for r in reports
    )
    head = "".join(f"<th>{name}</th>" for name in ("table", "stream", "", "rows", "missing", "extra", "different"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ch_sink verify</title>'
        f"<style>{_STYLE}</style></head><body><h1>{verdict}</h1><table><tr>{head}</tr>{rows}</table>"
        f"{''.join(_failure(name, error) for name, error in failed.items())}"
        f"{''.join(_details(r) for r in reports)}</body></html>\n"
    )


def _failure(stream: str, error: ChSinkError) -> str:
    text = " ".join(filter(None, (error.message, error.hint)))
    return f'<h2>{escape(stream)}</h2><p class="differs">Not compared: {escape(text)}</p>'


def _details(report: Report) -> str:
    parts = [f"<h2>{escape(report.table)}</h2><p>Compared with the {escape(report.against)} in {report.seconds:.1f} s"]
    parts.append(f", a sample of {report.share:.2%} of the keys</p>" if report.share < 1 else "</p>")
    notes = [*report.notes, *("; ".join(line.strip() for line in one.lines) for one in report.rollups)]
    notes += ["only some rows or columns were compared"] if report.partial else []
    parts += [f"<p>{escape(capitalized(text))}.</p>" for text in notes]
    if report.columns:
        cells = "".join(_row([name, grouped(n)]) for name, n in sorted(report.columns.items(), key=lambda c: -c[1]))
        parts.append(f"<table><tr><th>column</th><th>rows in which it differs</th></tr>{cells}</table>")
    if report.examples:
        head = "".join(f"<th>{name}</th>" for name in ("", "key", "column", "source", "table"))
        cells = "".join(
            _row([e.kind, _text(e.key), name, _text(pair[0]), _text(pair[1])])
            for e in report.examples
            for name, pair in (e.columns.items() if e.columns else [("", ("", ""))])
        )
        parts.append(f"<table><tr>{head}</tr>{cells}</table>")
    return "".join(parts)


def _row(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(_cell(cell) for cell in cells) + "</tr>"


def _cell(text: str) -> str:
    if text in ("equal", "differs"):
        return f'<td class="{text}">{text}</td>'
    number = text.replace(" ", "").isdigit()
    return f'<td class="n">{escape(text)}</td>' if number else f"<td><code>{escape(text)}</code></td>"


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_text(part)}" for name, part in value.items())
    return str(value)


_DAY = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(.*?)( BC)?", re.DOTALL)
_REFORM = (1582, 10, 15)
"""The first day of the Gregorian calendar, which PostgreSQL applies to all earlier days, too."""
_JULIAN = (
    "the table's days are those of the source taken for days of the Julian calendar, as PostgreSQL's connector does "
    "with times before 1582-10-15 in snapshots. A repair corrects them"
)
_DEFAULT = (
    "the table has the column's default where the source has NULL: the source set it after it had added the column, or "
    "the connector's converter replaces NULL (set value.converter.replace.null.with.default=false there). Then repair"
)


def causes(examples: Sequence[Difference], default_of: Callable[[str], Any]) -> tuple[str, ...]:
    """One sentence for each column and cause.

    ``default_of``: a column's default as the source declares it, in the form of the examples' values; None if it has
    none.
    """
    found = [*_of_values(examples, default_of), *_of_keys(examples)]
    return tuple(f"column {name}: {why}" for name, why in dict.fromkeys(found))


def _of_values(examples: Sequence[Difference], default_of: Callable[[str], Any]) -> Iterator[tuple[str, str]]:
    for name, (source, table) in (
        (n, pair) for e in examples if e.kind == "different" for n, pair in e.columns.items()
    ):
        if in_julian_calendar(source, table):
            yield name, _JULIAN
        elif source is None and table is not None and table == default_of(name):
            yield name, _DEFAULT


def _of_keys(examples: Sequence[Difference]) -> Iterator[tuple[str, str]]:
    """Of a row whose key has such a date, the one that the source has is missing and the one of the table is extra."""
    missing, extra = ([e.key for e in examples if e.kind == kind] for kind in ("missing", "extra"))
    for source, table in ((s, t) for s in missing for t in extra):
        moved = [name for name in source if source[name] != table[name]]
        if moved and all(in_julian_calendar(source[name], table[name]) for name in moved):
            yield from ((name, _JULIAN) for name in moved)


def in_julian_calendar(source: Any, table: Any) -> bool:
    """Whether two texts of dates or moments have one time of day, and the table's day is the source's as Julian."""
    if not (isinstance(source, str) and isinstance(table, str)):
        return False
    own, other = _DAY.fullmatch(source), _DAY.fullmatch(table)
    if own is None or other is None or own[4] != other[4] or source == table:
        return False
    day = _day(own)
    return day < _REFORM and _day_number(*day, julian=True) == _day_number(*_day(other), julian=False)


def _day(found: re.Match[str]) -> tuple[int, int, int]:
    """Year, month and day; the year 0 is 1 BC."""
    year = int(found[1])
    return 1 - year if found[5] else year, int(found[2]), int(found[3])


def _day_number(year: int, month: int, day: int, *, julian: bool) -> int:
    """Days since a fixed day, by the algorithm for Julian day numbers."""
    late = (14 - month) // 12
    years, months = year + 4800 - late, month + 12 * late - 3
    common = day + (153 * months + 2) // 5 + 365 * years + years // 4
    return common - 32083 if julian else common - years // 100 + years // 400 - 32045
