"""Values of instances: set by orchestrations, read and awaited by clients."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from affinity import App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.errors import (
    ExecutionLimitReached,
    InvalidId,
    NotSerializable,
    NoValue,
    PayloadTooLarge,
    UnknownInstance,
    WaitTimeout,
)
from affinity.limits import MAX_VALUE_BYTES, MAX_VALUES
from affinity.testing import Env, replay

pytestmark = pytest.mark.anyio

app = App("values")
FIRST = RuntimeOptions(worker_node_id="first")


@app.orchestration
async def count(ctx: OrchestrationContext, left: int) -> int:
    """Count the executions, in a value."""
    seen = await ctx.values.get("seen", int) or 0
    ctx.values.set("seen", seen + 1)
    assert await ctx.values.get("seen", int) == seen + 1
    await ctx.schedule_timer(1)
    if left:
        ctx.continue_as_new(left - 1)
    return seen + 1


@app.orchestration
async def steps(ctx: OrchestrationContext) -> list[object]:
    """Set and clear, and wait for a word between."""
    found: list[object] = [await ctx.values.get("left")]
    ctx.values.set("half", {"done": 1})
    ctx.values.set("left", "old")
    await ctx.schedule_wait("go")
    found.append(await ctx.values.get("half"))
    ctx.values.clear("half")
    found.append(await ctx.values.get("half"))
    ctx.values.set("whole", [1, 2])
    await ctx.schedule_wait("go")
    ctx.values.clear()
    ctx.values.set("end", None)
    return [*found, await ctx.values.get("whole"), await ctx.values.get("end")]


async def test_they_outlive_executions_and_the_end(any_url: str) -> None:
    async with Worker(app, any_url, FIRST), Client(any_url) as client:
        run = await client.start(count, 0)
        assert await run.wait() == 1
        assert await run.values() == {"seen": 1}


async def test_each_execution_finds_what_the_former_one_has_left() -> None:
    async with Env(app) as env:
        run = await env.client.start(count, 4)
        assert (await run.wait(), await run.values()) == (5, {"seen": 5})
        replay(app, await env.client.export_history(run.instance_id))


@app.orchestration
async def before(ctx: OrchestrationContext, left: int) -> list[object]:
    """Get values, and change them before the await."""
    former, held = ctx.values.get("a"), ctx.values.get("a")
    ctx.values.set("a", [ctx.execution_id])
    now = ctx.values.get("a")
    found: list[object] = [*await ctx.gather(former, held, now, limit=1)]
    cleared = ctx.values.get("b")
    ctx.values.clear()
    none = ctx.values.get("b")
    ctx.values.set("b", ctx.execution_id)
    found += [await cleared, await none, await ctx.values.get("a"), await ctx.values.get("b")]
    ctx.values.set("a", [ctx.execution_id])
    await ctx.schedule_timer(1)
    if left:
        ctx.continue_as_new(left - 1)
    return found


@pytest.mark.parametrize("cached", [0, 100])
async def test_a_value_is_that_of_the_call(env_url: str | None, cached: int) -> None:
    """Not of the await: what is set or cleared between the two comes later. Also in a replay."""
    async with Env(app, url=env_url, options=RuntimeOptions(instance_cache_size=cached)) as env:
        run = await env.client.start(before, 1)
        assert await run.wait() == [[1], [1], [2], 1, None, None, 2]
        first = await env.client.export_history(run.instance_id, execution_id=1)
        replay(app, first)
        replay(app, await env.client.export_history(run.instance_id))
        assert await run.values() == {"a": [2], "b": 2}
    async with Env(app, url=env_url, options=RuntimeOptions(instance_cache_size=cached)) as env:
        assert await (await env.client.start(before, 0)).wait() == [None, None, [1], None, None, None, 1]


async def test_another_worker_finds_them_too(any_url: str) -> None:
    """It replays an execution that has read and set values, and goes on with the next."""
    async with Client(any_url) as client:
        async with Worker(app, any_url, FIRST):
            run = await client.start(count, 1)
            assert await run.wait_value("seen", int, accepts=lambda seen: seen == 2, timeout=60) == 2
        async with Worker(app, any_url, RuntimeOptions(worker_node_id="second")):
            assert await run.wait(60) == 2
        assert await run.values() == {"seen": 2}


async def test_setting_and_clearing() -> None:
    async with Env(app) as env:
        run = await env.client.start(steps)
        await env.advance(0)
        assert await run.values() == {"half": {"done": 1}, "left": "old"}
        await run.raise_event("go")
        await env.advance(0)
        assert await run.values() == {"left": "old", "whole": [1, 2]}
        await run.raise_event("go")
        assert await run.wait() == [None, {"done": 1}, None, None, None]
        assert await run.values() == {"end": None}


async def test_a_client_waits_for_a_value(any_url: str) -> None:
    async with Worker(app, any_url, FIRST), Client(any_url) as client:
        run = await client.start(steps)
        assert await run.wait_value("half", dict[str, int], timeout=60) == {"done": 1}
        awaited = asyncio.ensure_future(run.wait_value("whole", list[int], accepts=lambda value: len(value) > 1))
        with pytest.raises(WaitTimeout, match="'whole'"):
            await run.wait_value("whole", timeout=0.2)
        await run.raise_event("go")
        assert await asyncio.wait_for(awaited, 60) == [1, 2]
        with pytest.raises(NotSerializable, match="value 'whole'"):
            await run.wait_value("whole", int)
        missing = asyncio.ensure_future(run.wait_value("missing"))
        await run.raise_event("go")
        with pytest.raises(NoValue, match="completed"):
            await asyncio.wait_for(missing, 60)
        for wrong in (client.values("missing"), client.wait_value("missing", "x")):
            with pytest.raises(UnknownInstance):
                await wrong
        with pytest.raises(InvalidId):
            await run.wait_value("")


async def test_a_restarted_instance_has_none() -> None:
    async with Env(app) as env:
        run = await env.client.start(count, 1, instance_id="i")
        assert await run.wait() == 2
        again = await env.client.start(count, 0, instance_id="i", if_ended="restart")
        assert (await again.wait(), await again.values()) == (1, {"seen": 1})


async def test_a_reset_takes_back_later_values() -> None:
    async with Env(app) as env:
        run = await env.client.start(steps)
        await env.advance(0)
        cut = (await run.status()).event_count
        await run.raise_event("go")
        await env.advance(0)
        await run.reset(to_event=cut)
        await env.advance(0)
        assert await run.values() == {"left": "old", "whole": [1, 2]}  # the event came again
        await run.reset(to_event=1)
        await run.raise_event("go")
        assert await run.wait() == [None, {"done": 1}, None, None, None]


async def test_a_reset_of_a_restarted_instance_takes_back_later_values(env_url: str | None) -> None:
    """Its first execution has another number than 1, and finds no value; a continued one keeps what it has found."""
    async with Env(app, url=env_url) as env:
        for again in range(2):
            run = await env.client.start(steps, instance_id="i", if_ended="restart")
            await env.advance(0)
            cut = (await run.status()).event_count
            await run.raise_event("go")
            await run.raise_event("go")
            assert await run.wait() == [None, {"done": 1}, None, None, None]
            assert await run.values() == {"end": None}
            await run.reset(to_event=1)
            assert await run.values() == {}, again
            await env.advance(0)
            assert (await run.status()).event_count > cut
            await run.wait()
        counted = await env.client.start(count, 1, instance_id="c")
        assert await counted.wait() == 2
        await counted.reset(to_event=1)
        assert await counted.values() == {"seen": 1}
        assert await counted.wait() == 2


async def test_each_reset_takes_back_later_values() -> None:
    """Also one of an execution that a reset has begun."""
    own = App("charges")

    @own.orchestration
    async def charge(ctx: OrchestrationContext) -> None:
        await ctx.schedule_timer(1)
        ctx.values.set("charged", True)

    async with Env(own) as env:
        run = await env.client.start(charge)
        for _ in range(3):
            await run.wait()
            assert await run.values() == {"charged": True}
            await run.reset(to_event=2)
            assert await run.values() == {}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (("", 1), InvalidId),
        (("x" * 257, 1), InvalidId),
        (("x", object()), NotSerializable),
        (("x", "y" * MAX_VALUE_BYTES), PayloadTooLarge),
    ],
)
async def test_what_is_refused(wrong: tuple[str, object], error: type[Exception]) -> None:
    own = App("refused")

    @own.orchestration
    async def refused(ctx: OrchestrationContext) -> str:
        try:
            ctx.values.set(*wrong)
        except error as found:
            return type(found).__name__
        return "accepted"

    async with Env(own) as env:
        run = await env.client.start(refused)
        assert (await run.wait(), await run.values()) == (error.__name__, {})


async def test_the_number_is_bounded() -> None:
    """In one execution, and with those of former ones; a value that is set again, or cleared, makes no more."""
    own = App("many")

    @own.orchestration
    async def fill(ctx: OrchestrationContext, part: int) -> None:
        for n in range(MAX_VALUES // 2):
            ctx.values.set(f"{part}-{n}", n)
        ctx.values.set(f"{part}-0", "again")
        await ctx.schedule_timer(timedelta(seconds=1))
        if part < 2:
            if part:
                ctx.values.clear("0-0")
                ctx.values.set("other", 1)
            ctx.continue_as_new(part + 1)

    async with Env(own) as env:
        run = await env.client.start(fill, 0)
        await env.advance(5)
        status = await run.status()
        assert status.suspension is not None
        assert status.suspension.error_type == ExecutionLimitReached.__name__
        assert len(await run.values()) == MAX_VALUES
