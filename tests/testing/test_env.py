"""`affinity.testing.Env`: time is the database's, and it jumps."""

from __future__ import annotations

import gc
import sys
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
        with pytest.raises(NothingWillHappen, match="nothing will ever happen: 'o-1' waits for the event 'paid'"):
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
        with pytest.raises(affinity.errors.WaitTimeout, match="waits for the activity 'charge'"):
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


@app.activity
def add(ctx: affinity.ActivityContext, numbers: list[int]) -> int:
    return sum(numbers)


@app.activity
async def where(ctx: affinity.ActivityContext, text: str = "") -> str:
    return f"{ctx.worker_id} {ctx.session_epoch}"


RETRY = affinity.RetryPolicy(max_attempts=5, initial_interval=60, backoff=1)


@app.orchestration
async def adding(ctx: affinity.OrchestrationContext) -> list[int]:
    return [await ctx.schedule_activity(add, [1, n], retry=RETRY) for n in (1, 2)]


@app.orchestration
async def on_session(ctx: affinity.OrchestrationContext) -> list[str]:
    found = []
    for _ in range(2):
        found.append(await ctx.schedule_activity(where).on_session("s"))
        await ctx.schedule_wait("go")
    return found


drawn = iter(range(1000))


@app.orchestration
async def random(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_timer(60 + next(drawn))
    await ctx.schedule_timer(60 + next(drawn))


async def test_activities_are_faked_by_values_errors_and_functions() -> None:
    async with Env(app) as env:
        fake = env.fake(add, 7)
        assert await (await env.client.start(adding)).wait() == [7, 7]
        assert fake.calls == [[1, 1], [1, 2]]
        env.fake("add", lambda ctx, numbers: ctx.attempt * 10)
        assert await (await env.client.start(adding)).wait() == [10, 10]
    async with Env(app) as env:
        env.fake(add, OSError("the disk is full"), times=3)
        assert await (await env.client.start(adding)).wait() == [2, 3]
        assert env.now() - env.started == timedelta(minutes=3), "the pauses of the retries"
        with pytest.raises(affinity.errors.InvalidInput, match=r"no activity 'ad'; it has: add, "):
            env.fake("ad")


async def test_a_session_stays_with_a_worker_that_is_restarted() -> None:
    async with Env(app, workers=2) as env:
        run = await env.client.start(on_session)
        await env.run_until_idle()
        (held,) = [each async for each in env.client.sessions()]
        assert held.worker_id in env.workers
        await env.crash(held.worker_id)
        await run.raise_event("go")
        await run.raise_event("go")
        before, after = await run.wait()
        assert (before.split()[0], after.split()[0]) == (held.worker_id, held.worker_id)
        assert before != after, "a new start is a new epoch"
        assert env.now() == env.started


async def test_another_worker_takes_over_when_the_lease_has_ended() -> None:
    async with Env(app, workers=2) as env:
        run = await env.client.start(on_session)
        await env.run_until_idle()
        (held,) = [each async for each in env.client.sessions()]
        await env.crash(held.worker_id, restart=False)
        (left,) = env.workers
        await run.raise_event("go")
        await run.raise_event("go")
        before, after = await run.wait()
        assert (before.split()[0], after.split()[0]) == (held.worker_id, left)
        assert timedelta(0) < env.now() - env.started <= timedelta(seconds=15)


async def test_a_session_is_moved() -> None:
    async with Env(app, workers=2) as env:
        run = await env.client.start(on_session)
        await env.run_until_idle()
        (held,) = [each async for each in env.client.sessions()]
        (other,) = set(env.workers) - {held.worker_id}
        assert await env.move("s", other) == "moved"
        await run.raise_event("go")
        await run.raise_event("go")
        assert (await run.wait())[1].split()[0] == other


async def test_commits_that_fail_are_repeated() -> None:
    async with Env(app) as env:
        env.fail_commits(3)
        assert await (await env.client.start(adding)).wait(timeout=10) == [2, 3]


async def test_always_replay_finds_code_that_is_not_deterministic() -> None:
    async with Env(app) as env:
        await (await env.client.start(random)).wait()
    async with Env(app, always_replay=True) as env:
        assert await (await env.client.start(naps, 3)).wait() == 3
        with pytest.raises(NothingWillHappen, match=r"is suspended since .*Nondeterminism"):
            await (await env.client.start(random)).wait()


@app.orchestration
async def cleaning(ctx: affinity.OrchestrationContext) -> None:
    try:
        await ctx.schedule_wait("never")
    finally:
        await ctx.schedule_activity(where)


async def test_a_worker_that_ends_closes_its_coroutines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector, which finds them else, reports that their cleanup could not run."""
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.object))
    async with Env(app, workers=2) as env:
        await env.client.start(cleaning)
        await env.run_until_idle()
        await env.crash(0)
    gc.collect()
    assert reported == []
