"""``sqlite``: the scenarios ``turns`` and ``latency`` on files."""

from __future__ import annotations

from dataclasses import replace

from bench.measures import Report
from bench.places import sqlite_place
from bench.run import Run
from bench.scenarios.turns import latency, turns


def sqlite(run: Run) -> Report:
    """Session turns on SQLite files, whatever the place of the run."""
    with sqlite_place() as place:
        parts = [part(replace(run, place=place)) for part in (turns, latency)]
    report = Report("sqlite", notes=[place.describe()["database"]])
    for part in parts:
        report.series += part.series
        report.bars += part.bars
    return report
