"""`affinity.testing.Env`: workers that stand still, and a database that refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import anyio
import pytest

import affinity
from affinity.testing import Env
from affinity.testing.env.waiting import Waiting
from affinity.testing.env.workers import EnvWorker

app = affinity.App("faults")

TICK = timedelta(milliseconds=1)
LEASE = affinity.RuntimeOptions().worker_lease_timeout


@app.activity
async def where(ctx: affinity.ActivityContext) -> str:
    return f"{ctx.worker_id} {ctx.session_epoch}"


@app.orchestration
async def on_session(ctx: affinity.OrchestrationContext) -> list[str]:
    found = []
    for _ in range(2):
        found.append(await ctx.schedule_activity(where).on_session("s"))
        await ctx.schedule_wait("go")
    return found


@app.orchestration
async def an_hour(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_timer(timedelta(hours=1))


async def go(run: affinity.Handle[list[str]]) -> list[str]:
    for _ in range(2):
        await run.raise_event("go")
    return await run.wait(timeout=20)


async def holder(env: Env) -> str:
    (held,) = [each async for each in env.client.sessions()]
    assert held.worker_id is not None
    return held.worker_id


@pytest.fixture
async def env(env_url: str | None) -> AsyncIterator[Env]:
    async with Env(app, url=env_url, workers=2) as env:
        yield env


async def test_a_worker_that_stands_still_loses_its_lease_by_the_virtual_clock(env: Env) -> None:
    run = await env.client.start(on_session)
    await env.run_until_idle()
    still = await holder(env)
    (other,) = set(env.workers) - {still}
    env.pause(still)
    before, after = await go(run)
    assert (before.split()[0], after.split()[0]) == (still, other)
    assert timedelta(0) < env.now() - env.started <= timedelta(seconds=LEASE) + TICK
    assert not {each.worker_id: each.alive for each in await env.client.workers()}[still]
    await env.resume(still)
    assert all(each.alive for each in await env.client.workers())
    assert await env.move("s", still) == "moved"
    before, after = await go(await env.client.start(on_session))
    assert before == after
    assert before.split()[0] == still


async def test_a_worker_that_stands_still_for_less_than_its_lease_keeps_its_session(env: Env) -> None:
    run = await env.client.start(on_session)
    await env.run_until_idle()
    still = await holder(env)
    env.pause(still)
    await run.raise_event("go")
    await env.advance(LEASE - 1)
    assert (await run.status()).status == "running"
    await env.resume(still)
    await run.raise_event("go")
    before, after = await run.wait(timeout=20)
    assert before == after
    assert timedelta(0) <= env.now() - env.started - timedelta(seconds=LEASE - 1) < TICK


async def test_what_a_worker_did_while_it_stood_still_is_refused(env: Env) -> None:
    """Its activity ends, and its result waits behind the link; meanwhile the other worker has run the activity."""
    goes = anyio.Event()
    ran: list[str] = []

    async def slow(ctx: affinity.ActivityContext) -> str:
        ran.append(ctx.worker_id)
        if len(ran) == 1:
            await goes.wait()
        return f"{ctx.worker_id} {ctx.session_epoch}"

    env.fake(where, slow)
    run = await env.client.start(on_session)
    while not ran:
        await anyio.sleep(0.005)
    (still,) = ran
    (other,) = set(env.workers) - {still}
    env.pause(still)
    goes.set()
    before, after = await go(run)
    assert before == after, "one holder, one epoch"
    assert before.split()[0] == other
    await env.resume(still)
    await env.run_until_idle()
    assert ran == [still, other, other]
    assert await run.wait() == [before, after]
    assert await holder(env) == other


async def test_the_clock_does_not_jump_past_a_worker_that_goes_on_meanwhile(env_url: str | None) -> None:
    """It is the only worker, and goes on while the env looks for what is due next."""
    async with Env(app, url=env_url) as env:
        ran: list[datetime] = []

        async def note(ctx: affinity.ActivityContext) -> str:
            ran.append(env.now())
            return ""

        env.fake(where, note)
        await env.client.start(an_hour)
        await env.advance(1)
        env.pause()
        await env.advance(2 * LEASE)
        await env.client.start(on_session)
        at, find = env.now(), env._database.next_due
        (worker,) = env._workers
        assert isinstance(worker, EnvWorker)
        renewing = worker._renewing
        resumed: list[asyncio.Task[None]] = []

        async def find_and_resume(waiting: Waiting) -> float | None:
            due = await find(waiting)
            if not resumed:
                renewing.acquire()  # it goes on before it knows that its lease has ended
                asyncio.get_running_loop().call_later(0.2, renewing.release)
                resumed.append(asyncio.create_task(env.resume()))
                await anyio.sleep(0)
            return due

        env._database.next_due = find_and_resume  # type: ignore[method-assign]
        await env.run_until_idle()
        await resumed[0]
        assert [each - at < TICK for each in ran] == [True]


async def test_an_env_ends_while_a_worker_stands_still(env: Env) -> None:
    env.pause(0)
    env.pause(1)
    with pytest.raises(affinity.errors.WaitTimeout), env.freeze():
        await (await env.client.start(on_session)).wait(timeout=0.1)


async def test_a_worker_that_stands_still_is_killed_and_started_again(env: Env) -> None:
    env.pause(0)
    await env.crash(0)
    env.pause(1)
    before, after = await go(await env.client.start(on_session))
    assert before == after
    assert before.split()[0] == "worker-0"


async def test_calls_that_the_database_refuses_are_repeated(env: Env) -> None:
    env.fail_calls(20)
    before, after = await go(await env.client.start(on_session))
    assert before == after


async def test_nothing_is_idle_before_workers_know_that_an_operator_has_resumed_them(env: Env) -> None:
    for name in env.workers:
        await env.client.drain_worker(name)
    await env.run_until_idle()
    run = await env.client.start(on_session)
    await env.run_until_idle()
    assert [each async for each in env.client.sessions()] == []
    for name in env.workers:
        await env.client.resume_worker(name)
    await env.run_until_idle()
    assert await holder(env) in env.workers
    assert len(await go(run)) == 2


async def test_nothing_is_idle_while_a_worker_has_lost_its_lease(env_url: str | None) -> None:
    """It ends in real time too, as on a busy machine."""
    async with Env(app, url=env_url, options=affinity.RuntimeOptions(worker_lease_timeout=2.0)) as env:
        worker = env._find_worker("worker-0")
        assert isinstance(worker, EnvWorker)
        assert worker._renewer is not None
        worker._renewer._expire("the test")
        while not worker.is_recovering:
            await anyio.sleep(0)
        run = await env.client.start(on_session)
        await env.run_until_idle()
        assert worker.is_alive
        assert await go(run)
