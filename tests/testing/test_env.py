"""`affinity.testing.Env`: time is the database's, and it jumps."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest

import affinity
from affinity.errors import NothingWillHappen
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


@app.activity
async def charge(ctx: affinity.ActivityContext) -> str:
    await anyio.sleep_forever()
    return "charged"


@app.orchestration
async def order(ctx: affinity.OrchestrationContext) -> str:
    chosen, _ = await ctx.select(ctx.schedule_wait("paid"), ctx.schedule_timer(14 * DAY))
    return "paid" if chosen == 0 else "expired"


@app.orchestration
async def stuck(ctx: affinity.OrchestrationContext) -> str:
    return str(await ctx.schedule_wait("paid", str))


@app.orchestration
async def daily(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_timer(DAY)
    ctx.continue_as_new()


@app.orchestration
async def slow(ctx: affinity.OrchestrationContext) -> str:
    try:
        return await ctx.schedule_activity(charge, timeout=3600)
    except affinity.errors.ActivityTimeout:
        return "too slow"


async def test_a_wait_that_nothing_can_end_says_what_it_waits_for() -> None:
    async with Env(app) as env:
        run = await env.client.start(stuck, instance_id="o-1")
        with pytest.raises(NothingWillHappen, match="nothing will ever happen: instance 'o-1' waits for event 'paid'"):
            await run.wait()
        await run.raise_event("paid", "yes")
        assert await run.wait() == "yes"
        assert env.jumps == 0


async def test_what_another_task_sends_ends_the_wait() -> None:
    async with Env(app) as env, anyio.create_task_group() as tasks:
        run = await env.client.start(stuck)
        tasks.start_soon(_later, run)
        assert await run.wait() == "yes"


async def _later(run: affinity.Handle[str]) -> None:
    await anyio.sleep(0.1)
    await run.raise_event("paid", "yes")


async def test_a_wait_may_jump_max_jump_far() -> None:
    async with Env(app, max_jump=timedelta(days=10)) as env:
        run = await env.client.start(daily, instance_id="d")
        with pytest.raises(NothingWillHappen, match=r"max_jump = 10 days.* .d. waits for a timer"):
            await run.wait()
        assert env.jumps == 10
        with pytest.raises(NothingWillHappen, match="max_jump"):
            await env.run_until_idle()
        assert env.jumps == 20


async def test_a_timeout_is_real_and_ends_with_what_is_waited_for() -> None:
    async with Env(app) as env:
        run = await env.client.start(slow)
        with pytest.raises(affinity.errors.WaitTimeout, match="waits for activity 'charge'"):
            await run.wait(timeout=0.1)
        assert env.jumps == 0, "an activity runs"


async def test_a_frozen_clock_moves_by_hand() -> None:
    async with Env(app) as env:
        run = await env.client.start(order)
        with env.freeze():
            with pytest.raises(affinity.errors.WaitTimeout):
                await run.wait(timeout=0.1)
            assert env.now() == env.started
            await env.advance(timedelta(days=13))
            assert (await run.status()).status == "running"
            await env.advance(DAY)
            assert (await run.status()).output == "expired"
        assert env.now() - env.started == timedelta(days=14)


async def test_time_passes_for_running_activities_too() -> None:
    async with Env(app) as env:
        run = await env.client.start(slow)
        await env.advance(3599)
        assert (await run.status()).status == "running"
        await env.advance(2)
        assert await run.wait() == "too slow"


async def test_time_is_moved_by_hand_while_a_wait_is_held_up_by_an_activity() -> None:
    async with Env(app) as env, anyio.create_task_group() as tasks:
        run = await env.client.start(slow)
        tasks.start_soon(run.wait)
        await anyio.sleep(0.05)
        await env.advance(3601)


async def test_run_until_idle_ends_when_only_events_are_missing() -> None:
    async with Env(app) as env:
        runs = [await env.client.start(order), await env.client.start(reminder, "ann"), await env.client.start(stuck)]
        await env.run_until_idle()
        assert [(await run.status()).status for run in runs] == ["completed", "completed", "running"]
        assert env.now() - env.started == timedelta(days=14)
        assert env.jumps == 2


async def test_leases_move_along() -> None:
    """A jump ends no lease of a worker: none of its work is interrupted, and none of its sessions moves."""
    async with Env(app) as env:
        await (await env.client.start(naps, 10)).wait()
        (worker,) = await env.client.workers()
        assert worker.alive
        assert worker.started_at == env.started
