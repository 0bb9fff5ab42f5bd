"""``env``: how long tests with `affinity.testing.Env` take: a trivial one, and 30 days with 100 timers."""

from __future__ import annotations

import asyncio
import time

import affinity
from affinity.testing import Env
from bench.measures import Metric, Report
from bench.run import Run
from bench.systems import OURS

SECONDS = Metric(name="s", better="less", digits=3)

DAYS, TIMERS = 30, 100

app = affinity.App("env")


@app.orchestration
async def naps(ctx: affinity.OrchestrationContext, count: int) -> int:
    """Timers, one after the other."""
    for _ in range(count):
        await ctx.schedule_timer(DAYS * 86_400 / count)
    return count


def env(run: Run) -> Report:
    """On an SQLite file of the test's own, whatever the place of the run; one jump for each timer."""
    report = Report("env")
    asyncio.run(_test(0))  # makes the file that the others copy
    for _ in range(run.rounds):
        report.add("a trivial test", OURS, {SECONDS: asyncio.run(_test(0))})
        report.add(f"{DAYS} days, {TIMERS} timers", OURS, {SECONDS: asyncio.run(_test(TIMERS))})
    report.bar("a trivial test, in seconds", report.median("a trivial test", OURS, SECONDS), 0.02, "less")
    case = f"{DAYS} days, {TIMERS} timers"
    report.bar(f"{case}, in seconds", report.median(case, OURS, SECONDS), 1.0, "less")
    return report


async def _test(timers: int) -> float:
    begun = time.perf_counter()
    async with Env(app) as env:
        assert await (await env.client.start(naps, timers)).wait() == timers
        assert env.jumps == timers
    return time.perf_counter() - begun
