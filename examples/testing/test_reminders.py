"""Tests with virtual time. Run with ``pytest examples/testing``."""

from datetime import timedelta

import pytest

import affinity.testing

app = affinity.App("reminders")


@app.activity
async def send(ctx: affinity.ActivityContext, name: str) -> str:
    """Send an e-mail, say."""
    return f"sent to {name}"


@app.orchestration
async def reminder(ctx: affinity.OrchestrationContext, name: str) -> str:
    """Remind somebody after a week."""
    await ctx.schedule_timer(timedelta(days=7).total_seconds())
    retry = affinity.RetryPolicy(max_attempts=3, initial_interval=60)
    return await ctx.schedule_activity(send, name, retry=retry)


pytestmark = pytest.mark.anyio


async def test_a_week_passes() -> None:
    async with affinity.testing.Env(app) as env:
        run = await env.client.start(reminder, "ann")
        assert await run.wait() == "sent to ann"
        assert env.now() - env.started == timedelta(days=7)


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that workers and clients run on, where trio is installed too."""
    return "asyncio"


async def test_a_failure_is_retried() -> None:
    """An activity is replaced: by a value, an error, or a function with the same arguments."""
    async with affinity.testing.Env(app) as env:
        fake = env.fake(send, OSError("no network"), times=2)
        assert await (await env.client.start(reminder, "ann")).wait() == "sent to ann"
        assert fake.calls == ["ann", "ann"]


async def test_a_crash_on_the_way() -> None:
    """The worker is killed after six days, and starts again; each turn begins with a replay."""
    async with affinity.testing.Env(app, always_replay=True) as env:
        run = await env.client.start(reminder, "ann")
        await env.advance(timedelta(days=6))
        await env.crash()
        assert await run.wait() == "sent to ann"
