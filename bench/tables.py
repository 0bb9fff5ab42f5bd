"""Reports for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measures import Report, Series, advantage
from bench.systems import OURS


def show(console: Console, report: Report) -> None:
    """The medians of a scenario with their spread, what we are beside each, and the bars."""
    grid = Table("case", "metric", "system", title=report.scenario, title_justify="left", box=None, pad_edge=False)
    for column in ("median", "min", "max", "ours is"):
        grid.add_column(column, justify="right")
    for one in sorted(report.series, key=lambda series: _place(report, series)):
        grid.add_row(*_row(report, one))
    console.print(grid)
    for note in report.notes:
        console.print(note)
    for bar in report.bars:
        console.print(bar.verdict, style="green" if bar.met else "bold red")
    console.print()


def show_settings(console: Console, about: Mapping[str, Any]) -> None:
    """The machine, the database, and the settings of each system."""
    for title, values in about.items():
        pairs = [f"{name}={value}" for name, value in values.items()] if isinstance(values, Mapping) else [str(values)]
        console.print(f"{title:<10}", ", ".join(pairs))
    console.print()


def _place(report: Report, series: Series) -> tuple[int, int]:
    """Same cases and metrics stand together, in the order in which they were first measured."""
    cases = [one.case for one in report.series]
    metrics = [one.metric for one in report.series]
    return cases.index(series.case), metrics.index(series.metric)


def _row(report: Report, series: Series) -> list[str]:
    form = f",.{series.metric.digits}f"
    values = [format(value, form) for value in (series.median, min(series.values), max(series.values))]
    return [series.case, series.metric.name, series.system, *values, _ratio_to_ours(report, series)]


def _ratio_to_ours(report: Report, series: Series) -> str:
    ours = report.median(series.case, OURS, series.metric)
    if ours is None or series.system == OURS or not series.median or not ours:
        return ""
    times = advantage(series.metric, ours, series.median)
    return f"x {times:.1f}" if times >= 1 else f"x {times:.2f}"
