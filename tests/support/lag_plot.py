"""The lag of a long run as a picture: records behind, over minutes, with what happened meanwhile."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

_LEFT, _WIDTH, _TOP, _HEIGHT = 70, 860, 50, 260
_COLOURS = {
    "next job": "#2563b8",
    "job killed": "#b3261e",
    "server killed": "#d97706",
    "server frozen": "#7c5cbf",
    "column": "#15803d",
}


def plot(lag: Sequence[tuple[float, int]], events: Sequence[tuple[float, str]]) -> str:
    """An SVG. ``lag``: seconds and records; ``events``: seconds and what."""
    end = max([at for at, _ in lag] + [at for at, _ in events] + [1.0])
    most = max([n for _, n in lag] + [1])
    bottom = _TOP + _HEIGHT

    def x(at: float) -> str:
        return f"{_LEFT + _WIDTH * at / end:.1f}"

    line = " ".join(f"{x(at)},{bottom - _HEIGHT * n / most:.1f}" for at, n in lag)
    marks = [
        f'<path d="M{x(at)} {_TOP}V{bottom}" stroke="{_COLOURS.get(what, "#888")}" stroke-opacity=".55"/>'
        for at, what in events
    ]
    minutes = range(0, int(end // 60) + 1, max(1, int(end // 600)))
    ticks = [f'<text x="{x(m * 60)}" y="{bottom + 18}" text-anchor="middle">{m}</text>' for m in minutes]
    grid = [
        f'<text x="{_LEFT - 8}" y="{bottom - _HEIGHT * part + 4:.1f}" text-anchor="end">{most * part:,.0f}</text>'
        f'<path d="M{_LEFT} {bottom - _HEIGHT * part:.1f}h{_WIDTH}" stroke="#d8dde5"/>'
        for part in (0, 0.5, 1)
    ]
    legend = "".join(f'<tspan fill="{c}">┃</tspan><tspan> {escape(what)}   </tspan>' for what, c in _COLOURS.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {bottom + 45}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#1c2430">'
        '<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT}" y="20" font-weight="600">Records that are not stored yet</text>'
        f'<text x="{_LEFT}" y="40">{legend}</text>{"".join(grid)}{"".join(marks)}'
        f'<polyline points="{line}" fill="none" stroke="#1c2430" stroke-width="1.5"/>{"".join(ticks)}'
        f'<text x="{_LEFT + _WIDTH}" y="{bottom + 36}" text-anchor="end">minutes</text></svg>\n'
    )
