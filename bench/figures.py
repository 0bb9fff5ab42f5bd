"""Figures as SVG: for each case and metric one bar a system, with the spread of the rounds; in light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from bench.measures import Report, Series
from bench.systems import OURS

WIDTH = 720
LEFT = 130  # of the bars, after the names
RIGHT = 100  # for the figures
BAR = 18
GAP = 6
HEAD = 30  # of a group
MARGIN = 12

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.head { font-weight: 600; }
.bar { fill: #8c959f; } .ours { fill: #1a7f5a; }
.spread { stroke: #1f2328; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .bar { fill: #6e7681; } .ours { fill: #3fb98a; } .spread { stroke: #e6edf3; }
}
"""


@dataclass(frozen=True, slots=True)
class _Group:
    """The bars of one case and metric."""

    title: str
    series: Sequence[Series]

    @property
    def height(self) -> int:
        return HEAD + len(self.series) * (BAR + GAP) + MARGIN


def figure(report: Report) -> str | None:
    """The figure of a scenario; None when it compares nothing."""
    groups = [group for group in _groups(report.series) if len(group.series) > 1]
    if not groups:
        return None
    height = sum(group.height for group in groups) + MARGIN
    drawn = []
    top = MARGIN
    for group in groups:
        drawn += _draw(group, top)
        top += group.height
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    title = f"<title>{escape(report.scenario)}</title>"
    return "\n".join([opening, title, f"<style>{STYLE}</style>", *drawn, "</svg>", ""])


def _groups(series: Iterable[Series]) -> Iterable[_Group]:
    def key(one: Series) -> tuple[str, str, str]:
        return one.case, one.metric.name, one.metric.better

    for (case, metric, better), members in groupby(sorted(series, key=key), key):
        ranked = sorted(members, key=lambda one: one.median, reverse=better == "more")
        yield _Group(f"{case}: {metric} ({better} is better)", ranked)


def _draw(group: _Group, top: int) -> list[str]:
    scale = (WIDTH - LEFT - RIGHT) / max((value for one in group.series for value in one.values), default=1.0)
    drawn = [f'<text class="head" x="0" y="{top + 14}">{escape(group.title)}</text>']
    for place, one in enumerate(group.series):
        drawn += _draw_bar(one, top + HEAD + place * (BAR + GAP), scale)
    return drawn


def _draw_bar(one: Series, y: int, scale: float) -> list[str]:
    kind = "bar ours" if one.system == OURS else "bar"
    low, high = (LEFT + value * scale for value in (min(one.values), max(one.values)))
    middle, text_y = y + BAR // 2, y + 14
    shown = f"{one.median:,.{one.metric.digits}f}"
    return [
        f'<text x="{LEFT - 8}" y="{text_y}" text-anchor="end">{escape(one.system)}</text>',
        f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{max(1.0, one.median * scale):.1f}" height="{BAR}" rx="2"/>',
        f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
        f'<text x="{max(high, LEFT + one.median * scale) + 8:.1f}" y="{text_y}">{shown}</text>',
    ]
