"""``env``: how long tests with `affinity.testing.Env` take: a trivial one, and 30 days with 100 timers. And how many
histories `affinity replay` replays in a second: of a file, and of a database.
"""

from __future__ import annotations

import asyncio
import time

import affinity
from affinity.cli.replay.results import ReplayReport
from affinity.testing import Env, ReplaySelection, replay
from affinity.testing.histories import DatabaseReplay
from bench.measures import Metric, Report
from bench.run import Run
from bench.systems import OURS

SECONDS = Metric(name="s", better="less", digits=3)

HISTORIES = Metric(name="histories/s")
EVENTS = Metric(name="events/s")

DAYS, TIMERS = 30, 100

INSTANCES = 50
"""Whose histories are replayed; each has about two events for each of its timers."""

ALL = ReplaySelection(status=["completed"], names=(), since=None, sample=0)

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
        for case, (events, seconds) in asyncio.run(_replays()).items():
            report.add(case, OURS, {HISTORIES: INSTANCES / seconds, EVENTS: events / seconds})
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


async def _replays() -> dict[str, tuple[int, float]]:
    """Events and seconds of a replay of all instances, by what is replayed."""
    async with Env(app) as env:
        runs = await env.client.start_many([affinity.Start(naps, TIMERS)] * INSTANCES)
        for run in runs:
            await run.wait()
        document = await env.client.export_history(runs[0].instance_id)
        begun = time.perf_counter()
        events = sum(replay(app, document) for _ in range(INSTANCES))
        loaded = time.perf_counter() - begun
        found = ReplayReport(lambda _: None)
        begun = time.perf_counter()
        await DatabaseReplay(app, env.client._provider, found.add).run(ALL)
        assert (len(found.matched), found.events) == (INSTANCES, events)
        return {"replay, loaded": (events, loaded), "replay, database": (events, time.perf_counter() - begun)}
