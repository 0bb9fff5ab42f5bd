"""``retention``: turns beside a backlog of old data, with and without options of retention."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import psycopg

import affinity
from affinity.provider.statements import load_statements
from affinity.provider.urls import sqlite_path
from bench.measures import RATE, Report, over_rounds
from bench.run import Run

STATEMENTS: Final = load_statements("bench", "retention.sql")

SHARE_BAR: Final = 0.8
WALKS: Final = 8
"""Orchestrations that run at the same time."""

CASE: Final = f"{WALKS} walks"

DAY: Final = 86_400.0
WITHOUT: Final[Mapping[str, Any]] = {"session_move_retention": None}
WITH: Final[Mapping[str, Any]] = {"session_move_retention": DAY, "instance_retention": DAY, "history_retention": DAY}

app = affinity.App("bench-retention")


@app.activity
async def turn(ctx: affinity.ActivityContext, number: int) -> int:
    return number


@app.orchestration
async def walk(ctx: affinity.OrchestrationContext, turns: int) -> int:
    for number in range(turns):
        await ctx.schedule_activity(turn, number)
    return turns


def retention(run: Run) -> Report:
    """The rate of turns of one worker while it removes a backlog, and while it leaves the backlog alone."""
    report = Report("retention")
    rows = run.sized(60_000, 500)
    systems = {"without retention": WITHOUT, run.ours.name: WITH}
    measures = [partial(_measure, run, report, name, rows, options) for name, options in systems.items()]
    over_rounds(run.rounds, measures)
    bare, ours = (report.median(CASE, name, RATE) for name in systems)
    if bare is not None and ours is not None:
        report.bar(f"{CASE}: turns beside retention / without", ours / bare, SHARE_BAR)
    return report


def _measure(run: Run, report: Report, name: str, rows: int, options: Mapping[str, Any]) -> None:
    with run.place.database(run.ours) as url:
        _fill(url, rows)
        rate = asyncio.run(_rate(url, options, run.sized(10, 1)))
    report.add(CASE, name, {RATE: rate})
    run.say(f"{report.scenario}  {CASE}  {name}: {rate:,.0f} {RATE.name}")


def _fill(url: str, rows: int) -> None:
    path = sqlite_path(url)
    if path is None:
        with psycopg.connect(url, autocommit=True, options="-c search_path=affinity") as db:
            db.execute(STATEMENTS["postgresql"], {"rows": rows})
            db.execute("VACUUM ANALYZE")
        return
    with sqlite3.connect(path) as file:
        for name in ("sqlite", "sqlite_ended", "sqlite_events", "sqlite_moves"):
            file.execute(STATEMENTS[name], {"rows": rows, "now": time.time()} if name == "sqlite" else {})
    file.close()


async def _rate(url: str, options: Mapping[str, Any], seconds: float) -> float:
    turns, began = 0, time.perf_counter()
    async with affinity.Worker(app, url, affinity.RuntimeOptions(**options)), affinity.Client(url) as client:

        async def go_on() -> None:
            nonlocal turns
            while time.perf_counter() < began + seconds:
                turns += await (await client.start(walk, 10)).wait(timeout=60)

        began = time.perf_counter()
        await asyncio.gather(*(go_on() for _ in range(WALKS)))
        taken = time.perf_counter() - began
    return turns / taken
