"""`affinity.testing.Env`: what follows the virtual clock, what does not, and what a jump leaves alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import anyio
import pytest

import affinity
from affinity.conversation import AgentMessage, UserMessage
from affinity.testing import Env

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

TICK = timedelta(milliseconds=1)
"""An item that is queued on PostgreSQL is due some microseconds later."""

SLACK = timedelta(seconds=1)
"""A timer of a conversation fires a little later than its revisit is due."""

app = affinity.App("time")

IDLE = 100.0  # less than the lock of a session lasts without work
disposed: list[str] = []
states = affinity.Sessions(dict, idle_timeout=IDLE, dispose=lambda session_id, _: disposed.append(session_id))
app.include(states)


@app.activity
async def touch(ctx: affinity.ActivityContext) -> None:
    async with states.open(ctx) as state:
        state["touched"] = True


@app.activity
async def work(ctx: affinity.ActivityContext, text: str = "") -> str:
    return f"{ctx.worker_id} {ctx.session_epoch} {ctx.attempt}"


@app.orchestration
async def touches(ctx: affinity.OrchestrationContext, session_id: str) -> None:
    await ctx.schedule_activity(touch).on_session(session_id)


@app.orchestration
async def works(ctx: affinity.OrchestrationContext, session_id: str | None) -> str:
    activity = ctx.schedule_activity(work)
    return await (activity if session_id is None else activity.on_session(session_id))


@app.orchestration
async def keeps(ctx: affinity.OrchestrationContext, session_id: str) -> None:
    await ctx.schedule_activity(work).on_session(session_id)
    await ctx.schedule_wait("go")


@app.orchestration
async def naps(ctx: affinity.OrchestrationContext, seconds: float) -> None:
    await ctx.schedule_timer(seconds)


@app.orchestration
async def gives_up(ctx: affinity.OrchestrationContext) -> str:
    retry = affinity.RetryPolicy(max_attempts=100, initial_interval=600, max_interval=600, total_timeout=3600)
    try:
        return await ctx.schedule_activity(work, retry=retry)
    except affinity.errors.ActivityFailed:
        return "gave up"


@app.orchestration
async def clocks(ctx: affinity.OrchestrationContext) -> list[datetime]:
    before = await ctx.utc_now()
    await ctx.schedule_timer(7 * 86_400)
    return [before, await ctx.utc_now()]


@app.orchestration
async def waits(ctx: affinity.OrchestrationContext, text: str) -> str:
    return text + await ctx.schedule_wait("go", str)


class Running:
    """An activity that runs until it is let go."""

    def __init__(self, env: Env) -> None:
        self.ran: list[str] = []
        self.goes = anyio.Event()
        env.fake(work, self._run)

    async def _run(self, ctx: affinity.ActivityContext, text: str = "") -> str:
        self.ran.append(ctx.worker_id)
        await self.goes.wait()
        return f"{ctx.worker_id} {ctx.session_epoch} {ctx.attempt}"

    async def begun(self, times: int = 1) -> None:
        while len(self.ran) < times:
            await anyio.sleep(0.005)


@pytest.fixture
async def env(env_url: str | None) -> AsyncIterator[Env]:
    async with Env(app, url=env_url, workers=2) as env:
        yield env


@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_jump_beside_an_activity_ends_none_of_its_locks(env: Env, session_id: str | None) -> None:
    """The leases of both workers, the lock of the item and the lock of the session are renewed by a real worker."""
    activity = Running(env)
    run = await env.client.start(works, session_id)
    await activity.begun()
    for _ in range(3):
        await env.advance(DAY)
    assert all(one.alive for one in await env.client.workers())
    if session_id is not None:
        (held,) = [each async for each in env.client.sessions()]
        assert [held.worker_id] == activity.ran
    activity.goes.set()
    worker, epoch, attempt = (await run.wait(timeout=20)).split()
    assert ([worker], attempt) == (activity.ran, "1")
    if session_id is not None:
        assert int(epoch) == held.epoch
    assert timedelta(0) <= env.now() - env.started - 3 * DAY < TICK


async def test_the_clock_does_not_jump_while_an_activity_runs(env: Env) -> None:
    """A timer of another instance is due in a week; a wait alone does not move the clock there."""
    activity = Running(env)
    run, other = await env.client.start(works, None), await env.client.start(clocks)
    with pytest.raises(affinity.errors.WaitTimeout):
        await other.wait(timeout=0.3)
    assert env.now() - env.started < TICK
    activity.goes.set()
    await run.wait(timeout=20)
    await other.wait(timeout=20)


async def test_the_time_of_an_orchestration_is_that_of_the_clock(env: Env) -> None:
    run = await env.client.start(clocks)
    before, after = await run.wait(timeout=20)
    assert abs(before - env.started) < TICK
    assert abs(after - env.now()) < TICK
    assert 7 * DAY <= after - before < 7 * DAY + TICK


async def test_the_clock_stops_at_whole_microseconds(env: Env) -> None:
    """A time that was read is a place in listings: the next page begins behind it."""
    for part in range(1, 8):
        await (await env.client.start(naps, part / 7)).wait(timeout=20)
        assert env._database.now() == env.now().timestamp()


async def test_the_total_time_of_retries_passes_without_a_wait() -> None:
    async with Env(app) as env:
        env.fake(work, OSError("down"))
        assert await (await env.client.start(gives_up)).wait(timeout=20) == "gave up"
        assert HOUR - timedelta(minutes=10) <= env.now() - env.started <= HOUR


async def test_an_idle_state_leaves_memory_by_the_clock() -> None:
    async with Env(app) as env:
        disposed.clear()
        await (await env.client.start(touches, "idle")).wait(timeout=20)
        await env.advance(IDLE - 1)
        assert disposed == []
        await env.advance(2)
        assert disposed == ["idle"]


async def test_an_instance_is_removed_when_its_retention_is_over() -> None:
    async with Env(app, options=affinity.RuntimeOptions(instance_retention=3600)) as env:
        run = await env.client.start(works, None)
        await run.wait(timeout=20)
        await env.advance(HOUR - SLACK)
        assert (await run.status()).finished
        await env.advance(2 * SLACK)
        with pytest.raises(affinity.errors.UnknownInstance):
            await run.status()


async def test_a_session_at_rest_makes_room_immediately() -> None:
    options = affinity.RuntimeOptions(max_sessions_per_runtime=1)
    async with Env(app, options=options) as env:
        await env.client.start(keeps, "a")
        await env.run_until_idle()
        assert env.jumps == 0
        assert (await (await env.client.start(works, "b")).wait(timeout=20)).startswith("worker-0")
        assert env.now() - env.started <= SLACK


async def test_a_drain_is_real_time_that_advance_moves() -> None:
    options = affinity.RuntimeOptions()
    async with Env(app, workers=2, options=options) as env, anyio.create_task_group() as tasks:
        activity = Running(env)
        run = await env.client.start(works, None)
        await activity.begun()
        (drained,) = activity.ran
        tasks.start_soon(env.drain, drained)
        await env.advance(options.drain_timeout - 1)
        assert drained in env.workers
        await env.advance(2)
        await activity.begun(2)
        activity.goes.set()
        worker, _, attempt = (await run.wait(timeout=20)).split()
        assert (worker, attempt) == (activity.ran[1], "1"), "the one that was interrupted does not count"
        assert worker != drained
    assert env.workers == [worker]


async def test_an_instance_is_started_again_under_its_id(env: Env) -> None:
    first = await env.client.start(waits, "a", instance_id="i")
    await first.raise_event("go", "!")
    assert await first.wait(timeout=20) == "a!"
    again = await env.client.start(waits, "b", instance_id="i", if_ended="restart")
    assert again.outcome == "restarted"
    await env.crash(0)
    await again.raise_event("go", "?")
    assert await again.wait(timeout=20) == "b?"


talks = affinity.Conversations(dict, kind="talks")
entered, goes = anyio.Event(), anyio.Event()


@talks.on_wake
async def respond(wake: affinity.Wake, state: dict[str, object]) -> None:
    for due in wake.due:
        wake.append(AgentMessage(f"due {due.key}"))
    for event in wake.events:
        assert isinstance(event, UserMessage)
        if event.text == "remind me":
            wake.revisit(10 * DAY, key="reminder")
        else:
            entered.set()
            await goes.wait()
        wake.append(AgentMessage("yes"))


talking = affinity.App("talking")
talking.include(talks)


async def test_a_start_that_waits_for_an_end_begins_by_itself(env: Env) -> None:
    """Also when the instance ends at a time at which the workers have swept: the clock moves to their next sweep."""
    run = await env.client.start(keeps, "s", instance_id="i")
    await env.client.start(keeps, "t", instance_id="i", if_running="queue_one")
    await env.run_until_idle()
    await run.raise_event("go")
    await env.run_until_idle()
    assert [each.status for each in await run.executions()] == ["running", "completed"]
    assert env.now() - env.started < timedelta(seconds=3)


async def test_a_revisit_is_due_on_its_day_although_time_passed_while_a_wake_ran() -> None:
    async with Env(talking) as env, anyio.create_task_group() as tasks:
        talk = env.client.conversation(talks, "c")
        await talk.ask(UserMessage("remind me"))
        tasks.start_soon(talk.ask, UserMessage("wait"))
        await entered.wait()
        await anyio.sleep(0.1)  # real time, by which nothing is due earlier
        await env.advance(3 * DAY)
        goes.set()
        await env.run_until_idle()
        said = [entry.event.text for entry in await talk.history() if isinstance(entry.event, AgentMessage)]
        assert said == ["yes", "yes", "due reminder"]
        assert 10 * DAY <= env.now() - env.started <= 10 * DAY + SLACK
        assert env.jumps == 2
