"""Code that goes on when its instance leaves memory stops no other instance, and not the worker's end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from affinity import App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.errors import UnknownInstance
from tests.support.waiting import started

# Python reports a coroutine that it ends itself.
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

app = App("endless")


@app.orchestration
async def poller(ctx: OrchestrationContext) -> None:
    while True:
        with suppress(BaseException):  # as a bare except
            await ctx.schedule_wait("never", int)


@app.orchestration
async def poller_in_a_branch(ctx: OrchestrationContext) -> None:
    async def branch() -> None:
        while True:
            try:
                ctx.set_custom_status("polling")
                await ctx.schedule_timer(60)
            except BaseException:
                ctx.logger.info("failed, trying again")

    await ctx.gather(branch(), branch())


@app.orchestration
async def hello(ctx: OrchestrationContext) -> str:
    return "hello"


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.slow_cases(r"\[(?!sqlite-cancelled-poller\])")
@pytest.mark.slow_cases(r"\[new")
@pytest.mark.parametrize("endless", [poller, poller_in_a_branch])
@pytest.mark.parametrize("leaves", ["evicted", "deleted", "cancelled", "drained", "closed"])
async def test_an_endless_instance_stops_no_other(
    endless: Any, leaves: str, kept_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = RuntimeOptions.make(instance_cache_size=1 if leaves == "evicted" else 100, poll_interval=0.2)
    async with Client(kept_url) as client:
        async with Worker(app, kept_url, options) as worker:
            for name in ("a", "b"):
                await client.start(endless, instance_id=name)
                await started(client, name)
            if leaves == "deleted":
                await client.delete("a", force=True)
            elif leaves == "cancelled":
                await client.cancel("a", "enough")
            elif leaves == "drained":
                async with Worker(app, kept_url, RuntimeOptions.make(worker_node_id="other")):
                    await worker.drain()
                    assert await (await client.start(hello)).wait(timeout=30) == "hello"
            if leaves != "drained":
                assert await (await client.start(hello)).wait(timeout=30) == "hello"
        named = [line for line in caplog.messages if "was dropped from memory" in line]
        assert {name for name in "ab" if any(f"instance {name} " in line for line in named)} == {"a", "b"}
        for name in ("a", "b"):
            with suppress(UnknownInstance):
                await client.delete(name, force=True)
