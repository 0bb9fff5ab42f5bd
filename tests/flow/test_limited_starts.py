"""Instances that wait at limits before they begin, and keep their places until they end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from affinity import App, Client, Limit, OrchestrationContext, RuntimeOptions, Start, Worker
from affinity.errors import OrchestrationCancelled
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

two = Limit("two", concurrency=2)
tenant = Limit("tenant", concurrency=1, keyed=True)
app = App("limited starts", limits=[two, tenant])
began: list[str] = []


@app.orchestration
async def job(ctx: OrchestrationContext, rounds: int) -> str:
    began.append(ctx.instance_id)
    await ctx.schedule_wait("go on")
    if rounds:
        ctx.continue_as_new(rounds - 1)
    return ctx.instance_id


def worker(url: str) -> Worker:
    began.clear()
    return Worker(app, url, RuntimeOptions.make(poll_interval=0.2))


@pytest.fixture
async def client(any_url: str) -> AsyncIterator[Client]:
    async with worker(any_url), Client(any_url) as client:
        yield client


async def running(client: Client) -> list[str]:
    return sorted([one.instance_id async for one in client.list_instances(status=["running"])])


async def test_an_instance_keeps_its_places_until_it_ends(client: Client) -> None:
    """Also over `continue_as_new`. Events that come first wait with it."""
    runs = [await client.start(job, 1, instance_id=name, limits=[two]) for name in ("a", "b", "c", "d")]
    await runs[3].raise_event("go on")
    await until(lambda: _is(client, ["a", "b"]))
    assert {(await run.status()).status for run in runs[2:]} == {"pending"}
    await runs[0].raise_event("go on")
    await until(lambda: _continued(client, "a"))
    assert await running(client) == ["a", "b"]
    await runs[0].raise_event("go on")
    assert await runs[0].wait(30) == "a"
    await until(lambda: _is(client, ["b", "c"]))
    await runs[1].cancel()
    await until(lambda: _is(client, ["c", "d"]))
    assert began.count("d") >= 1
    assert began.index("d") > began.index("c")


async def test_a_cancel_frees_an_instance_that_waits(client: Client) -> None:
    """It ends without a place, and without running its code; its place in the line is free too."""
    first = await client.start(job, 0, instance_id="first", limits=[tenant.key("acme")])
    await until(lambda: _is(client, ["first"]))
    waiting = await client.start(job, 0, instance_id="waiting", limits=[tenant.key("acme")])
    last = await client.start(job, 0, instance_id="last", limits=[tenant.key("acme")])
    other = await client.start(job, 0, instance_id="other", limits=[tenant.key("other")])
    await until(lambda: _is(client, ["first", "other"]))
    await waiting.cancel()
    with pytest.raises(OrchestrationCancelled):
        await waiting.wait(30)
    await first.raise_event("go on")
    await until(lambda: _is(client, ["last", "other"]))
    await last.raise_event("go on")
    assert await last.wait(30) == "last"
    await other.cancel()
    assert "waiting" not in began
    again = await client.start(job, 0, instance_id="again", limits=[tenant.key("acme")])
    await until(lambda: _is(client, ["again"]))
    await again.cancel()


async def test_a_delayed_start_passes_its_gate_at_its_time(client: Client) -> None:
    """With limits, with a priority alone, and with both."""
    starts = [
        Start(job, 0, "limit", delay=0.8, limits=[two]),
        Start(job, 0, "priority", delay=0.8, priority=9),
        Start(job, 0, "both", delay=0.8, priority=9, limits=[two]),
    ]
    for run in await client.start_many(starts):
        await run.raise_event("go on")
        assert (await run.status()).status == "pending"
    assert began == []
    for name in ("limit", "priority", "both"):
        assert await client.wait(name, 30) == name


async def test_a_client_lets_a_start_begin_without_a_worker(any_url: str) -> None:
    """So it is there for the first fetch, and the next one waits."""
    async with Client(any_url) as client:
        async with worker(any_url):
            await until(lambda: _is_declared(client))
        for name in ("a", "b", "c"):
            await client.start(job, 0, instance_id=name, limits=[two])
        async with worker(any_url):
            await until(lambda: _is(client, ["a", "b"]))


async def _is_declared(client: Client) -> bool:
    return bool(await client.limits.list())


async def _is(client: Client, names: list[str]) -> bool:
    return await running(client) == names


async def _continued(client: Client, name: str) -> bool:
    info = await client.status(name)
    return info.execution_id > 1 and info.status == "running"
