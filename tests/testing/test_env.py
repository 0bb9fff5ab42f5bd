"""`affinity.testing.Env`: time is the database's, and it jumps."""

from __future__ import annotations

from datetime import timedelta

import affinity
from affinity.testing import Env

DAY = 86_400

app = affinity.App("env")


@app.activity
async def send(ctx: affinity.ActivityContext, name: str) -> str:
    return "sent"


@app.orchestration
async def reminder(ctx: affinity.OrchestrationContext, name: str) -> str:
    await ctx.schedule_timer(7 * DAY)
    return await ctx.schedule_activity(send, name)


@app.orchestration
async def naps(ctx: affinity.OrchestrationContext, count: int) -> int:
    for _ in range(count):
        await ctx.schedule_timer(30 * DAY / count)
    return count


async def test_a_week_passes_while_a_result_is_awaited() -> None:
    async with Env(app) as env:
        run = await env.client.start(reminder, "ann")
        assert await run.wait() == "sent"
        assert env.now() - env.started == timedelta(days=7)
        assert env.jumps == 1


async def test_thirty_days_and_a_hundred_timers_are_a_hundred_jumps() -> None:
    async with Env(app) as env:
        run = await env.client.start(naps, 100)
        assert await run.wait() == 100
        assert env.jumps == 100
        assert env.now() - env.started == timedelta(days=30)
