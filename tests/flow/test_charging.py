"""What activities write to limits: a limit that they close for everybody, and units that they have used."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import anyio
import pytest

from affinity import (
    ActivityContext,
    App,
    Client,
    Limit,
    OrchestrationContext,
    Rate,
    RetryAfter,
    RuntimeOptions,
    Worker,
)
from affinity.errors import InvalidLimit, InvalidOptions
from affinity.flow.store.contract import LimitProvider, limits_of
from affinity.testing import Env

pytestmark = pytest.mark.anyio

SERVICE = Limit("service", concurrency=10)
TENANT = Limit("tenant", keyed=True)
TOKENS = Limit("tokens", rate=Rate(100, per=3600), keyed=True)
app = App("charging", limits=[SERVICE, TENANT, TOKENS])
began: list[str] = []
refused: set[str] = set()


@app.activity(limits=[SERVICE])
async def ask(ctx: ActivityContext, name: str) -> str:
    began.append(name)
    if name in refused:
        refused.discard(name)
        raise RetryAfter(60, limit=SERVICE) from ConnectionError("429")
    return name


@app.activity
async def ask_for(ctx: ActivityContext, name: str) -> str:
    began.append(name)
    if name in refused:
        refused.discard(name)
        raise RetryAfter(60, limit=TENANT.key(name[0]))
    return name


@app.activity
async def spend(ctx: ActivityContext, units: int) -> int:
    with pytest.raises(InvalidLimit, match="has keys: name one"):
        await ctx.consume(TOKENS, 5)
    with pytest.raises(InvalidLimit, match="no app declares the limit 'lost'"):
        await ctx.consume(Limit("lost"), 5)
    for wrong in (-1, True, 0.5):
        with pytest.raises(InvalidOptions, match="units must be an integer from 0"):
            await ctx.consume(TOKENS.key("acme"), wrong)  # type: ignore[arg-type]
    await asyncio.gather(ctx.consume(TOKENS.key("acme"), units), ctx.consume(TOKENS.key("other"), 1))
    return units


@app.activity
def spend_in_a_thread(ctx: ActivityContext, units: int) -> int:
    anyio.from_thread.run(ctx.consume, TOKENS.key("acme"), units)
    return units


@app.orchestration
async def asks(ctx: OrchestrationContext, name: str) -> str:
    return await ctx.schedule_activity(ask, name)


@app.orchestration
async def asks_for(ctx: OrchestrationContext, name: str) -> str:
    return await ctx.schedule_activity(ask_for, name).limited(TENANT.key(name[0]))


@app.orchestration
async def spends(ctx: OrchestrationContext, name: str) -> None:
    await ctx.schedule_activity(name, 250)
    await ctx.schedule_activity(ask_for, "a").limited(TOKENS.key("acme"))


@pytest.fixture(autouse=True)
def _forget() -> None:
    began.clear()
    refused.clear()


async def test_a_limit_that_work_closes_is_closed_for_all(env_url: str | None) -> None:
    refused.add("first")
    async with Env(app, url=env_url, workers=2) as env:
        first = await env.client.start(asks, "first")
        with env.freeze():
            await env.advance(1)
            others = [await env.client.start(asks, f"{n}") for n in range(3)]
            await env.advance(1)
            assert began == ["first"]
        assert [await run.wait() for run in (first, *others)] == ["first", "0", "1", "2"]
        assert env.now() - env.started >= timedelta(seconds=59)
        assert sorted(began) == ["0", "1", "2", "first", "first"]


async def test_a_key_that_work_closes_is_closed_alone(env_url: str | None) -> None:
    refused.add("a1")
    async with Env(app, url=env_url) as env:
        with env.freeze():
            first = await env.client.start(asks_for, "a1")
            await env.advance(1)
            runs = [await env.client.start(asks_for, name) for name in ("a2", "b1")]
            await env.advance(1)
            assert began == ["a1", "b1"]
        assert [await run.wait() for run in (first, *runs)] == ["a1", "a2", "b1"]
        assert sorted(began) == ["a1", "a1", "a2", "b1"]


@pytest.mark.parametrize("name", ["spend", "spend_in_a_thread"])
async def test_units_count_above_the_rate(env_url: str | None, name: str) -> None:
    """A budget of 100 in an hour, of which 250 were used: it has room again when the window is over."""
    async with Env(app, url=env_url) as env:
        await (await env.client.start(spends, name)).wait()
        assert timedelta(seconds=3500) <= env.now() - env.started <= timedelta(seconds=3700)


async def test_what_is_shown_of_a_closed_limit(kept_url: str) -> None:
    refused.add("x")
    async with Worker(app, kept_url, RuntimeOptions.make(poll_interval=0.2)), Client(kept_url) as client:
        await client.start(asks, "x")
        store: LimitProvider = limits_of(client._provider)
        with anyio.fail_after(20):
            while not (rows := await store.list_limits(["service"])) or rows[0].closed_until is None:
                await anyio.sleep(0.05)
        assert rows[0].closed_for == "activity ask: ConnectionError"
        with anyio.fail_after(20):
            while (await store.list_limits(["service"]))[0].in_use:
                await anyio.sleep(0.05)


def test_a_context_of_a_test_counts_nothing() -> None:
    context = ActivityContext(
        instance_id="i",
        execution_id=1,
        activity_id=2,
        name="spend",
        orchestration_name="o",
        orchestration_version="1",
        worker_id="w",
    )
    asyncio.run(context.consume(TOKENS.key("acme"), 5))
    with pytest.raises(InvalidOptions, match="units"):
        asyncio.run(context.consume(TOKENS.key("acme"), -5))
