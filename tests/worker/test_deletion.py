"""Deletion takes the tree, and a caller that waits for what was deleted is notified."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from affinity import App, Client, ExternalEvent, OrchestrationContext, RuntimeOptions, Worker
from affinity.client import requests
from affinity.errors import InstanceNotFinished, OrchestrationFailed, TooManyUnreadEvents
from affinity.limits import UNREAD_EXACT
from affinity.provider.contract import Quotas
from tests.support.waiting import started, until

pytestmark = pytest.mark.anyio

OPTIONS = RuntimeOptions.make(poll_interval=0.2)

app = App("trees")


@app.orchestration
async def doubles(ctx: OrchestrationContext, n: int) -> int:
    return 2 * n


@app.orchestration
async def waits(ctx: OrchestrationContext, n: int) -> int:
    return await ctx.schedule_wait("value", int) + n


@app.orchestration
async def asks(ctx: OrchestrationContext, n: int) -> int:
    return await ctx.schedule_sub_orchestration(doubles, n)


@app.orchestration
async def asks_and_waits(ctx: OrchestrationContext, n: int) -> int:
    return await ctx.schedule_sub_orchestration(waits, n, instance_id="child")


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


async def test_what_was_deleted_can_be_started_again(kept_url: str, client: Client) -> None:
    """Nothing of its children is in the way; unless they were to be kept."""
    async with Worker(app, kept_url, OPTIONS):
        for n in (1, 2):
            run = await client.start(asks, n, instance_id="order")
            assert await run.wait(30) == 2 * n
            await client.delete("order")
        assert [instance async for instance in client.list_instances()] == []
        await (await client.start(asks, 3, instance_id="order")).wait(30)
        await client.delete("order", keep_children=True)
        run = await client.start(asks, 4, instance_id="order")
        with pytest.raises(OrchestrationFailed, match="exists already"):
            await run.wait(30)


async def test_a_parent_receives_the_deletion_of_its_child(kept_url: str, client: Client) -> None:
    """At its await: it need not wait forever."""
    async with Worker(app, kept_url, OPTIONS):
        parent = await client.start(asks_and_waits, 1, instance_id="parent")
        await started(client, "parent")

        async def look() -> bool:
            return bool([i async for i in client.list_instances(prefix="child", status=["running"])])

        await until(look)
        with pytest.raises(InstanceNotFinished):
            await client.delete("parent")
        await client.delete("child", force=True)
        with pytest.raises(OrchestrationFailed, match="InstanceDeleted: the instance 'child' was deleted") as raised:
            await parent.wait(30)
        assert raised.value.error_type == "OrchestrationFailed"


async def test_an_event_beyond_the_quota_is_refused_to_its_sender(
    kept_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events in the memory of the execution count, about; the instance goes on."""
    monkeypatch.setattr(requests, "MAX_UNREAD_EVENTS", UNREAD_EXACT)
    async with Worker(app, kept_url, OPTIONS):
        run = await client.start(waits, 1, instance_id="i")
        await started(client, "i")
        events = [ExternalEvent("i", "other", n) for n in range(UNREAD_EXACT + 50)]
        deliveries = await client.raise_events(events)
        assert list(deliveries) == ["delivered"] * UNREAD_EXACT + ["full"] * 50

        async def all_read() -> bool:
            return (await client.status("i")).event_count == UNREAD_EXACT + 2

        await until(all_read)
        with pytest.raises(TooManyUnreadEvents):
            await run.raise_event("value", 1)
        monkeypatch.undo()
        await run.raise_event("value", 1)
        assert await run.wait(30) == 2


@pytest.mark.parametrize("limit", [1, 3, 99, 150])
async def test_a_quota_of_unread_events_holds_for_calls_one_after_the_other(
    kept_url: str, client: Client, limit: int
) -> None:
    """The worker consumes each of them before the next one is sent."""
    await client.set_quotas(Quotas(unread_events=limit))
    async with Worker(app, kept_url, OPTIONS):
        run = await client.start(waits, 1, instance_id="i")
        await started(client, "i")
        accepted = (limit - 1) // 2  # in one call, which is faster
        await client.raise_events([ExternalEvent("i", "other", n) for n in range(accepted)])
        while accepted < 2 * limit + 2:
            await until(partial(_has_consumed, client, accepted))
            try:
                await run.raise_event("other", accepted)
            except TooManyUnreadEvents:
                break
            accepted += 1
        assert limit <= accepted <= limit + (limit // 10 if limit >= UNREAD_EXACT else 0)
        await client.set_quotas(Quotas())
        await run.raise_event("value", 1)
        assert await run.wait(30) == 2


async def _has_consumed(client: Client, events: int) -> bool:
    return (await client.status("i")).event_count == events + 2
