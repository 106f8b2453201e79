"""Results as a Markdown table and as plots."""

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["bars", "spread", "table"]

_COLOURS = {"workers": "#2563b8", "server": "#b26a00", "jvm": "#1a7f4b", "driver": "#8a4fbf", "broker": "#8b95a1"}


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 0) -> str:
    """Median with lowest and highest."""
    low, middle, high = (f"{v * scale:.{digits}f}" for v in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low}–{high})"


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """One line per workload."""
    lines = [
        "| Workload | B/event | thousand events/s | limit | ratio | CPU s per million events | of which workers | "
        "worker MiB | rows per part |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in results:
        repeats = one["repeats"]
        whole = [sum(s for kind, s in r["cpu"].items() if kind != "other") for r in repeats]
        lines.append(
            f"| {one['name']} | {one['bytes_an_event']:.0f} | {spread([r['steady'] for r in repeats], 1e-3)} "
            f"| {spread([r['limit'] for r in repeats], 1e-3)} | {spread([r['ratio'] for r in repeats], 1, 2)} "
            f"| {spread(whole, 1, 1)} | {spread([r['cpu'].get('workers', 0.0) for r in repeats], 1, 1)} "
            f"| {one['worker_mib']:.0f} | {one['rows'] / max(one['parts'], 1):.0f} |"
        )
    return "\n".join(lines)


def bars(results: Sequence[Mapping[str, Any]]) -> str:
    """An SVG: for each workload the share of the limit, and its CPU time by process."""
    height, left, width = 26, 210, 330
    rows = []
    most = max((sum(statistics.median(c) for c in _cpu(one).values()) for one in results), default=1.0)
    for number, one in enumerate(results):
        y = 46 + number * height
        ratio = statistics.median(r["ratio"] for r in one["repeats"])
        low, high = (f([r["ratio"] for r in one["repeats"]]) for f in (min, max))
        rows.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(one["name"])}</text>')
        rows.append(f'<rect x="{left}" y="{y}" width="{width * min(ratio, 1):.1f}" height="16" fill="#2563b8"/>')
        rows.append(
            f'<path d="M{left + width * min(low, 1):.1f} {y + 8}H{left + width * min(high, 1):.1f}" stroke="#1c2430"/>'
        )
        rows.append(f'<text x="{left + width * min(max(ratio, high), 1) + 6:.1f}" y="{y + 13}">{ratio:.2f}</text>')
        x = float(left + width + 60)
        for kind, values in _cpu(one).items():
            wide = max(width * statistics.median(values) / (most or 1), 0.0)  # a difference may be negative
            rows.append(f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="16" fill="{_COLOURS[kind]}"/>')
            x += wide
    legend = "".join(f'<tspan fill="{colour}">■</tspan><tspan> {kind}  </tspan>' for kind, colour in _COLOURS.items())
    tall = 60 + height * len(results)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + 2 * width + 80} {tall}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#1c2430"><rect width="100%" height="100%" '
        f'fill="#fff"/><text x="{left}" y="20" font-weight="600">events/s, share of the limit</text>'
        f'<text x="{left + width + 60}" y="20" font-weight="600">CPU seconds per million events</text>'
        f'<text x="{left + width + 60}" y="38">{legend}</text>{"".join(rows)}</svg>\n'
    )


def _cpu(one: Mapping[str, Any]) -> dict[str, list[float]]:
    return {kind: [r["cpu"].get(kind, 0.0) for r in one["repeats"]] for kind in _COLOURS}
