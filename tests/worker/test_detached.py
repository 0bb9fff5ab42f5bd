"""Instances that others start without being their parents, what they send each other, and what their clients see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.errors import InvalidApp, InvalidId, UnknownInstance, WaitTimeout

pytestmark = pytest.mark.anyio

OPTIONS = RuntimeOptions.make(poll_interval=0.2)

app = App("detached")


@app.activity
async def who(ctx: ActivityContext) -> tuple[str | None, str | None]:
    return ctx.orchestration_name, ctx.orchestration_version


@app.orchestration
async def starter(ctx: OrchestrationContext, other: str) -> str:
    started = await ctx.start_detached(worker_bee, 2, instance_id="bee")
    ctx.start_detached(worker_bee, 9, instance_id="bee")  # the id is taken: nothing is started
    ctx.raise_event(started, "honey", 1)
    ctx.raise_event("unknown", "honey", 1)
    ctx.raise_event(other, "honey", 1)
    return started


@app.orchestration
async def drops(ctx: OrchestrationContext) -> str:
    return await ctx.start_detached(worker_bee, 0)


@app.orchestration
async def worker_bee(ctx: OrchestrationContext, wanted: int) -> int:
    honey = 0
    while honey < wanted:
        ctx.set_custom_status({"honey": honey})
        honey += await ctx.schedule_wait("honey", int)
    return honey


@app.orchestration
async def flags(ctx: OrchestrationContext) -> None:
    for value in (0, False, 0.0):
        ctx.set_custom_status({"done": value})
        await ctx.schedule_wait("go")


@app.orchestration(name="grows", version="1.0.0")
async def grows(ctx: OrchestrationContext) -> Any:
    ctx.set_custom_status("young")
    await ctx.schedule_wait("go")
    ctx.continue_as_new(version="latest")


@app.orchestration(name="grows", version="2.0.0")
async def grown(ctx: OrchestrationContext) -> Any:
    return [ctx.custom_status, *await ctx.schedule_activity(who)]


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client, Worker(app, kept_url, OPTIONS):
        yield client


async def test_a_detached_instance_outlives_the_one_that_has_started_it(client: Client) -> None:
    ended = await client.start(worker_bee, 0)
    await ended.wait(timeout=30)
    run = await client.start(starter, ended.instance_id, instance_id="starter")
    assert await run.wait(timeout=30) == "bee"
    await client.delete("starter")
    bee = client.handle("bee", worker_bee)
    with pytest.raises(WaitTimeout):
        await bee.wait(timeout=0.5)
    assert ((await bee.status()).parent_id, (await bee.status()).custom_status) == (None, {"honey": 1})
    await bee.raise_event("honey", 1)
    assert await bee.wait(timeout=30) == 2


async def test_an_instance_that_is_created_again_starts_its_own(client: Client) -> None:
    """What its predecessor has started is there still."""
    ids = []
    for _ in range(2):
        run = await client.start(drops, instance_id="drops")
        ids.append(await run.wait(timeout=30))
        await client.delete("drops")
    assert ids[0] != ids[1]
    assert [await client.wait(each, timeout=30) for each in ids] == [0, 0]


async def test_the_next_execution_runs_on_the_latest_version_with_the_status_of_the_former(client: Client) -> None:
    run = await client.start("grows", version="1.0.0", instance_id="g")
    await run.raise_event("go")
    assert await run.wait(timeout=30) == ["young", "grows", "2.0.0"]
    assert (await run.status()).version == "2.0.0"


async def test_a_change_of_the_status_is_waited_for(client: Client) -> None:
    bee = await client.start(worker_bee, 2)
    seen = await bee.wait_status()
    while seen.custom_status != {"honey": 0}:
        seen = await bee.wait_status(changed_from=seen, timeout=30)
    with pytest.raises(WaitTimeout, match="has not changed"):
        await bee.wait_status(changed_from=seen, timeout=0.3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bee.raise_event, "honey", 1)
        changed = await bee.wait_status(changed_from=seen, timeout=30)
    assert changed.custom_status == {"honey": 1}
    await bee.raise_event("honey", 1)
    ended = await bee.wait_status(changed_from=changed, timeout=30)
    assert ended.finished
    assert await bee.wait_status(changed_from=ended, timeout=30) == ended  # it does not change any more
    with pytest.raises(UnknownInstance):
        await client.wait_status("unknown", changed_from=ended, timeout=30)


async def test_a_change_to_another_value_that_is_equal_in_python_is_a_change(client: Client) -> None:
    run = await client.start(flags)
    seen = await run.wait_status()
    while seen.custom_status is None:
        seen = await run.wait_status(changed_from=seen, timeout=30)
    for value in (False, 0.0):
        await run.raise_event("go")
        seen = await run.wait_status(changed_from=seen, timeout=30)
        assert repr(seen.custom_status) == repr({"done": value})


async def test_a_handle_is_checked_and_needs_no_instance(client: Client) -> None:
    assert client.handle("later", worker_bee).outcome is None
    with pytest.raises(InvalidId):
        client.handle("", worker_bee)
    with pytest.raises(InvalidApp):
        client.handle("i", print)  # type: ignore[arg-type]
    with pytest.raises(UnknownInstance):
        await client.handle("later").status()
