"""Limits of work of each kind: the table in `docs/learn/flow.md`.

The limit has no slot at first, so that all of it waits at its gate; then it is opened, and all has to end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import affinity
from affinity import Limit, OrchestrationContext
from affinity.testing import Env
from tests.conftest import Servers

pytestmark = pytest.mark.anyio

NARROW = Limit("narrow", concurrency=1)
app = affinity.App("kinds", limits=[NARROW])
ran: list[str] = []
"""What ran, in order."""

changes: list[str] = []
"""Whether the code of an orchestration is another one."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> str | None:
    """Of an `Env`; None: SQLite."""
    if request.param == "sqlite":
        return None
    servers: Servers = request.getfixturevalue("servers")
    return servers.shared("new")


@app.activity
async def note(ctx: affinity.ActivityContext, name: str) -> str | None:
    ran.append(name)
    return ctx.session_id


@app.orchestration
async def plain(ctx: OrchestrationContext, name: str) -> None:
    await ctx.schedule_activity(note, name).limited(NARROW)


@app.orchestration
async def tagged(ctx: OrchestrationContext, name: str) -> None:
    await ctx.schedule_activity(note, name).with_tag("gpu").limited(NARROW)


@app.orchestration
async def on_session(ctx: OrchestrationContext, session: str) -> str | None:
    return await ctx.schedule_activity(note, session).on_session(session).limited(NARROW)


@app.orchestration
async def ordered(ctx: OrchestrationContext, count: int) -> None:
    work = [ctx.schedule_activity(note, str(number)).on_session("s", ordered=True) for number in range(count)]
    limited = [each.limited(NARROW) if number % 2 else each for number, each in enumerate(work)]
    await ctx.gather(*limited)


@app.orchestration
async def holding(ctx: OrchestrationContext) -> str | None:
    await ctx.schedule_activity(note, "first").on_session("s")
    wait = ctx.schedule_wait("go", str, hold_session="s", hold_for=3600)
    work = ctx.schedule_activity(note, "held").on_session("s").limited(NARROW)
    _, session = await ctx.gather(wait, work)
    return session


@app.orchestration
async def changing(ctx: OrchestrationContext) -> None:
    if changes:
        await ctx.schedule_timer(1)
    await ctx.gather(ctx.schedule_wait("go", str), ctx.schedule_activity(note, "a").limited(NARROW))


@app.orchestration
async def in_turn(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(note, "first")
    await ctx.schedule_activity(note, "second").limited(NARROW)


@app.orchestration
async def again(ctx: OrchestrationContext, left: int) -> None:
    work = ctx.schedule_activity(note, str(left)).limited(NARROW)
    if left:
        await ctx.select(work, ctx.schedule_timer(0))
        ctx.continue_as_new(left - 1)
    await work


@asynccontextmanager
async def closed(server: str | None, *, workers: int = 1, tags: tuple[str, ...] = ()) -> AsyncIterator[Env]:
    """An env in which the limit has no slot."""
    ran.clear()
    async with Env(
        app, url=server, workers=workers, options=affinity.RuntimeOptions(tags=tags), always_replay=True
    ) as env:
        await env.run_until_idle()
        await env.client.limits.set("narrow", concurrency=0)
        yield env


async def start(env: Env, orchestration: Callable[..., Any], given: object = None, name: str = "i") -> None:
    """Start an instance, and let it run until its limited work waits."""
    await env.client.start(orchestration.__name__, given, instance_id=name)
    await env.run_until_idle()


async def waiting(env: Env) -> int:
    """How much work waits."""
    return (await env.client.limits.get("narrow")).waiting


async def open_limit(env: Env) -> None:
    """Let all that waits run, and see that each slot is free in the end."""
    await env.client.limits.reset("narrow")
    await env.run_until_idle()
    found = await env.client.limits.get("narrow")
    assert (found.in_use, found.waiting) == (0, 0)


async def output(env: Env, name: str = "i") -> Any:
    return (await env.client.status(name)).output


async def test_tagged(server: str | None) -> None:
    """It waits as other work does, and then for a worker with the tag."""
    async with closed(server, tags=("gpu",)) as env:
        await start(env, tagged, "tagged")
        assert await waiting(env) == 1
        await open_limit(env)
        assert ran == ["tagged"]


async def test_tagged_without_a_worker(server: str | None) -> None:
    """It lends its slot to other work that waits, and has its turn behind that."""
    async with closed(server) as env:
        await start(env, tagged, "tagged", "a")
        await start(env, plain, "plain", "b")
        await env.client.limits.reset("narrow")
        await env.advance(60)
        await env.run_until_idle()
        assert ran == ["plain"]
        await env.client.cancel("a")
        await open_limit(env)


async def test_ordered(server: str | None) -> None:
    """Only the first in its order comes to its gate, and all behind it wait for it."""
    async with closed(server) as env:
        await start(env, ordered, 4)
        assert (ran, await waiting(env)) == (["0"], 1)
        await open_limit(env)
        assert ran == ["0", "1", "2", "3"]


async def test_session_bound(server: str | None) -> None:
    """It waits without its session, and runs where that is then."""
    async with closed(server, workers=2) as env:
        for number in range(3):
            await start(env, on_session, f"s{number}", f"i{number}")
        assert (ran, await waiting(env)) == ([], 3)
        await open_limit(env)
        assert [await output(env, f"i{number}") for number in range(3)] == ["s0", "s1", "s2"]


async def test_held(server: str | None) -> None:
    """A hold keeps the session where it is, and the work waits at its limit all the same."""
    async with closed(server) as env:
        await start(env, holding)
        assert (ran, await waiting(env)) == (["first"], 1)
        await open_limit(env)
        assert ran == ["first", "held"]
        await env.client.raise_event("i", "go", "now")
        await env.run_until_idle()
        assert await output(env) == "s"


async def test_suspended(server: str | None) -> None:
    """It waits, runs and frees its slot as other work does; the instance has its result when it goes on."""
    async with closed(server) as env:
        await start(env, changing)
        changes.append("as of another release")
        await env.client.raise_event("i", "go", "now")
        await env.run_until_idle()
        assert (await env.client.status("i")).status == "suspended"
        await open_limit(env)
        assert ran == ["a"]
        changes.clear()
        await env.client.resume("i")
        await env.run_until_idle()
        assert (await env.client.status("i")).status == "completed"


async def test_reset(server: str | None) -> None:
    """What waited is taken out of its line; what is scheduled again waits as new work does."""
    async with closed(server) as env:
        await start(env, in_turn)
        assert (ran, await waiting(env)) == (["first"], 1)
        await env.client.reset("i", to_event=1)
        await env.run_until_idle()
        assert (ran, await waiting(env)) == (["first", "first"], 1)
        await open_limit(env)
        assert ran == ["first", "first", "second"]


async def test_cancelled(server: str | None) -> None:
    """What waited is taken out of its line, and what is behind it has its turn."""
    async with closed(server) as env:
        await start(env, plain, "a", "a")
        await start(env, plain, "b", "b")
        await env.client.cancel("a")
        await env.run_until_idle()
        assert await waiting(env) == 1
        await open_limit(env)
        assert ran == ["b"]


async def test_continued_as_new(server: str | None) -> None:
    """Work that the former execution left waiting is taken out of its line."""
    async with closed(server) as env:
        await start(env, again, 1)
        assert await waiting(env) == 1
        await open_limit(env)
        assert ran == ["0"]
