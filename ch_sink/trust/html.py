"""The report as one HTML file without anything from outside."""

from collections.abc import Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

from ch_sink.errors import ChSinkError
from ch_sink.model.address import grouped
from ch_sink.trust.report import Report

__all__ = ["page"]

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
    if not all(r.equal for r in reports):
        verdict = "Some tables differ from their source"
    rows = "".join(
        _row(
            [r.table, r.stream, _verdict(r), *map(grouped, (r.rows, r.missing, r.extra, r.different))],
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
    notes = [
        (report.changing, f"rows {report.unjudged}"),
        (report.unknown, "rows cannot be judged: the topic no longer holds their events"),
        (report.dead_letters, "records of the topic cannot be applied"),
    ]
    parts += [f"<p>{grouped(n)} {text}.</p>" for n, text in notes if n]
    texts = filter(None, (report.unrelated, *report.causes))
    parts += [f"<p>{escape(text[0].upper() + text[1:])}.</p>" for text in texts]
    if report.lagging:
        parts.append(f"<p>{escape(report.lagging.capitalize())}.</p>")
    if report.left_out:
        parts.append(f"<p>Not compared: {escape(', '.join(report.left_out))}.</p>")
    if report.lacks:
        parts.append(f"<p>{escape(report.lacks[0].upper() + report.lacks[1:])}.</p>")
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


def _verdict(report: Report) -> str:
    return "equal" if report.equal else "differs"


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
