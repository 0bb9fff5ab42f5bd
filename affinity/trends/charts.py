"""The four charts of trends: lines on a time axis, for the templates of the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from affinity.trends.client import TrendPoint, Trends

WIDTH: Final = 1000
HEIGHT: Final = 100
"""Units of a chart."""

Value = Callable[[TrendPoint], float | None]


@dataclass(frozen=True, slots=True)
class TrendLine:
    """One line of a chart."""

    name: str
    style: str  # of the style sheet
    points: str  # of a path of SVG; a time without a value is a gap
    last: float | None  # value of the last point that is over
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class TrendChart:
    """A chart: lines of one unit."""

    title: str
    unit: str  # "s": seconds; "": a number
    lines: Sequence[TrendLine]
    highest: float
    times: Sequence[datetime]


_CHARTS: Final[Sequence[tuple[str, str, Sequence[tuple[str, str, Value]]]]] = (
    (
        "Instances",
        "",
        (
            ("started", "started", lambda point: point.started),
            ("completed", "completed", lambda point: point.completed),
            ("failed", "failed", lambda point: point.failed),
        ),
    ),
    ("Retries", "", (("retries", "retries", lambda point: point.retries),)),
    ("Oldest work waited", "s", (("oldest", "oldest", lambda point: point.queue_age),)),
    ("Duration", "s", (("p50", "p50", lambda point: point.p50), ("p95", "p95", lambda point: point.p95))),
)


def charts_of(trends: Trends) -> Sequence[TrendChart]:
    """Return the charts; each begins at zero."""
    return [_chart(title, unit, lines, trends.points) for title, unit, lines in _CHARTS]


def _chart(title: str, unit: str, lines: Sequence[tuple[str, str, Value]], points: Sequence[TrendPoint]) -> TrendChart:
    values = [[value(point) for point in points] for _, _, value in lines]
    highest = max((value for line in values for value in line if value is not None), default=0.0)
    return TrendChart(
        title,
        unit,
        [
            TrendLine(name, style, _path(line, highest or 1.0), _last(line), line)
            for (name, style, _), line in zip(lines, values, strict=True)
        ],
        highest,
        [point.at for point in points],
    )


def _last(line: Sequence[float | None]) -> float | None:
    """Return the value before the present step, which is not over."""
    return line[-2] if len(line) > 1 else line[-1]


def _path(line: Sequence[float | None], highest: float) -> str:
    """Return the path of a line. A value without neighbours is a short stroke."""
    width = WIDTH / max(1, len(line) - 1)
    found: list[str] = []
    for place, value in enumerate(line):
        if value is None:
            continue
        at = f"{place * width:.1f} {HEIGHT - value / highest * HEIGHT:.1f}"
        is_first = place == 0 or line[place - 1] is None
        found.append(f"{'M' if is_first else 'L'}{at}")
        if is_first and (place + 1 == len(line) or line[place + 1] is None):
            found.append("h2")
    return " ".join(found)
