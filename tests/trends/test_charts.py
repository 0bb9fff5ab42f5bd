"""The lines of charts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from affinity.trends import TrendPoint, Trends
from affinity.trends.charts import charts_of

BEGIN: Final = datetime(2026, 7, 31, 12, tzinfo=UTC)


def point(minute: int, queue_age: float | None = None, started: int = 0) -> TrendPoint:
    return TrendPoint(
        at=BEGIN + timedelta(minutes=minute),
        started=started,
        completed=0,
        failed=0,
        cancelled=0,
        retries=0,
        queue_age=queue_age,
        p50=None,
        p95=None,
    )


def trends(*points: TrendPoint) -> Trends:
    return Trends(kind="orchestration", name=None, now=BEGIN, counted_to=None, step=60.0, points=points, total=point(0))


def test_a_line_has_a_gap_where_nothing_was_measured() -> None:
    """It goes from zero, at the bottom, to the highest value; a lone value is a short stroke."""
    chart = charts_of(trends(*(point(n, age) for n, age in enumerate([0.0, 5.0, None, 10.0, None]))))[2]
    (line,) = chart.lines
    assert line.points == "M0.0 100.0 L250.0 50.0 M750.0 0.0 h2"
    assert (chart.highest, line.last) == (10.0, 10.0)


def test_lines_of_one_chart_have_one_scale() -> None:
    chart = charts_of(trends(point(0, started=4), point(1, started=2)))[0]
    assert [line.points for line in chart.lines] == ["M0.0 0.0 L1000.0 50.0"] + ["M0.0 100.0 L1000.0 100.0"] * 2
    assert chart.highest == 4


def test_a_chart_without_values_is_empty() -> None:
    chart = charts_of(trends(point(0)))[3]
    assert [line.points for line in chart.lines] == ["", ""]
    assert [line.last for line in chart.lines] == [None, None]
