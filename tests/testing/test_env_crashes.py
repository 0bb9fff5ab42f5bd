"""`affinity.testing.Env`: crashes beside the clock and beside each other, and what a jump moves."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any, cast

import anyio
import pytest

import affinity
from affinity.errors import InvalidInput
from affinity.provider.contract import Provider
from affinity.provider.urls import sqlite_path
from affinity.testing import Env
from affinity.testing.env.traffic import Link, locked, steps
from affinity.testing.env.waiting import Waiting

app = affinity.App("crashes")


@app.activity
async def where(ctx: affinity.ActivityContext) -> str:
    return ctx.worker_id


@app.orchestration
async def on_session(ctx: affinity.OrchestrationContext) -> str:
    return await ctx.schedule_activity(where).on_session("s")


@app.orchestration
async def nap(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_timer(86_400)


async def test_the_clock_stands_still_from_a_crash_to_the_new_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The crash begins while the env looks for the next due time, which is in a day."""
    async with Env(app) as env, anyio.create_task_group() as tasks:
        next_due, start, (worker,) = env._database.next_due, env._start_worker, env._workers
        started: list[datetime] = []

        async def crash_meanwhile(waiting: Waiting) -> float | None:
            due = await next_due(waiting)
            if not worker.has_crashed:
                tasks.start_soon(env.crash)
                while not worker.has_crashed:
                    await anyio.sleep(0.005)
            return due

        async def start_late(name: str) -> None:
            with anyio.move_on_after(0.5):
                await env._round.wait()  # a jump
            started.append(env.now())
            await start(name)

        monkeypatch.setattr(env._database, "next_due", crash_meanwhile)
        monkeypatch.setattr(env, "_start_worker", start_late)
        await (await env.client.start(nap)).wait(timeout=20)
        assert started == [env.started]
        assert env.now() - env.started == timedelta(days=1)


async def test_a_worker_starts_after_a_jump_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Env(app) as env, anyio.create_task_group() as tasks:
        made, make = list[str](), env._make_worker

        def note(options: affinity.RuntimeOptions) -> Any:
            made.append(str(options.worker_node_id))
            return make(options)

        monkeypatch.setattr(env, "_make_worker", note)
        env._traffic.stop()
        tasks.start_soon(env.crash)
        while env.workers:
            await anyio.sleep(0.005)
        await steps()
        assert made == []
        env._traffic.go_on()
    assert made == ["worker-0"]


# --- a crash in a commit, and one of the scenario ---------------------------------------------------------------------


async def test_a_worker_that_the_scenario_has_crashed_is_not_crashed_again() -> None:
    async with Env(app) as env:
        env._crash_in_commit("worker-0", restart=True)
        await env.crash(0)
        (worker,) = env._workers
        await env._end_crashes()
        assert env._workers == [worker]


async def test_the_scenario_crashes_the_worker_that_has_taken_over() -> None:
    async with Env(app) as env:
        env._crash_in_commit("worker-0", restart=False)
        await env._end_crashes()
        (worker,) = env._workers
        await env.crash(0)
        assert env.workers == ["worker-1"]
        assert env._workers != [worker]
        with pytest.raises(InvalidInput, match="no worker 'worker-7' runs"):
            await env.crash(7)


async def test_a_worker_that_commits_while_it_starts_is_crashed_then() -> None:
    async with Env(app) as env:
        (worker,) = env._workers
        async with env._crashing:  # as while it starts
            env._workers.clear()
            env._crash_in_commit("worker-0", restart=True)
            env._workers.append(worker)
        await env._end_crashes()
        assert env.workers == ["worker-0"]
        assert env._workers != [worker]


# --- renewals and jumps -----------------------------------------------------------------------------------------------


class Renewals:
    def __init__(self) -> None:
        self.begun, self.goes = anyio.Event(), anyio.Event()

    async def renew_worker(self) -> bool:
        self.begun.set()
        await self.goes.wait()
        return True


async def test_a_renewal_from_before_the_pause_does_not_count() -> None:
    renewals, link = Renewals(), Link("w")
    renewer: Any = locked(cast("Provider", renewals), threading.Lock(), link)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(renewer.renew_worker)
        await renewals.begun.wait()
        link.hold()
        renewals.goes.set()
        link.go_on()
    assert not link.is_renewed
    await renewer.renew_worker()
    assert link.is_renewed


@app.orchestration
async def retries(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_activity(
        where, retry=affinity.RetryPolicy(max_attempts=2, initial_interval=3_600, max_interval=3_600)
    )


async def execute(env: Env, statement: str) -> Sequence[Any]:
    path = sqlite_path(env._database.url)
    if path is None:
        connection: Any = env._database
        return list(await (await connection._connection.execute(statement)).fetchall())
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement).fetchall()


async def test_a_jump_moves_no_lock_of_a_session_that_another_worker_holds(env_url: str | None) -> None:
    """The activity that runs here is of before the session moved; its new holder is gone."""
    async with Env(app, url=env_url) as env:
        begun = anyio.Event()

        async def endless(ctx: affinity.ActivityContext) -> None:
            begun.set()
            await anyio.sleep_forever()

        env.fake(where, endless)
        await env.client.start(on_session)
        await begun.wait()
        alive = [worker.identity.incarnation for worker in env._workers]
        sessions, items = "SELECT locked_until FROM sessions", "SELECT locked_until FROM worker_queue"
        held, running = await execute(env, sessions), await execute(env, items)
        await env._database.jump(env._database.now() + 1, alive, alive)
        assert await execute(env, sessions) != held
        await execute(env, "UPDATE sessions SET incarnation = 'gone' RETURNING session_id")
        held = await execute(env, sessions)
        await env._database.jump(env._database.now() + 1, alive, alive)
        assert await execute(env, sessions) == held
        assert await execute(env, items) != running


async def test_a_lock_that_a_worker_does_not_know_ends(env_url: str | None) -> None:
    """As after a lost answer: the worker does not renew it."""
    async with Env(app, url=env_url) as env:
        with env.freeze():
            env.fake(where, ValueError("once"), times=1)
            run = await env.client.start(retries)
            await env.advance(1)
            (identity,) = [worker.identity for worker in env._workers]
            until, due = (
                ("locked_until = clock() + interval '30 s'", "clock()")
                if env_url
                else (f"locked_until = {env._database.now() + 30}", str(env._database.now()))
            )
            await execute(
                env,
                f"UPDATE worker_queue SET lock_worker = '{identity.worker_id}', lock_token = 'lost', {until},"
                f" lock_incarnation = '{identity.incarnation}', visible_at = {due} RETURNING name",
            )
        await run.wait(timeout=20)
        assert timedelta(seconds=30) < env.now() - env.started < timedelta(seconds=60)


async def test_a_crash_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It was asked for: the start under the name of the killed worker is no second process of that name."""
    async with Env(app) as env:
        await env.client.start(on_session, instance_id="one")
        await env.run_until_idle()
        for _ in range(2):
            await env.crash()
            await env.client.start(on_session)
            await env.run_until_idle()
        assert (await env.client.status("one")).status == "completed"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
