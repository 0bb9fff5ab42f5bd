"""Names are reused: a worker that has the coroutine of a deleted instance does not go on with it under the same id."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest

from affinity import (
    ActivityContext,
    App,
    Client,
    MemorySessionStore,
    OrchestrationContext,
    RetryPolicy,
    RuntimeOptions,
    Sessions,
    Worker,
)
from affinity.provider import open_provider
from affinity.provider.contract import Incarnation, NewInstance, Provider, Release, WorkerIdentity
from affinity.provider.history import read_whole_history
from affinity_conformance.providers.builders import TIMEOUTS, profile, turn
from tests.support.waiting import started

pytestmark = pytest.mark.anyio

app = App("recreated")
OTHER = WorkerIdentity(worker_id="other", incarnation=Incarnation("other-1"))
SELDOM = {"poll_interval": 60, "worker_lease_timeout": 90, "stall_timeout": 90}
"""Of a worker that looks into the queues when it is notified."""


@app.orchestration
async def order(ctx: OrchestrationContext, customer: str) -> list[str]:
    return [customer, await ctx.schedule_wait("paid", str)]


async def test_a_cached_coroutine_is_of_one_instance(kept_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new instance has run elsewhere, and is handed over when it stands exactly where the old one stood."""
    waiting, go_on = anyio.Event(), anyio.Event()
    async with (
        Worker(app, kept_url, RuntimeOptions.make(worker_node_id="mine", **SELDOM)) as worker,
        Client(kept_url) as client,
    ):
        await client.start(order, "old", instance_id="reused")
        await started(client, "reused")
        mine = worker.runtime._provider
        fetch = mine.fetch_orchestration_item

        async def later(*args: Any, **options: Any) -> Any:
            waiting.set()
            await go_on.wait()
            return await fetch(*args, **options)

        monkeypatch.setattr(mine, "fetch_orchestration_item", later)
        worker.runtime.services.notifier.notify_fetcher()
        await waiting.wait()
        provider = await open_provider(kept_url)
        try:
            history = await read_whole_history(provider, "reused", 1)
            await client.delete("reused", force=True)
            await _run_elsewhere(provider, [event.replace('"old"', '"new"') for event in history])
        finally:
            await provider.aclose()
        await client.raise_event("reused", "paid", "yes")
        go_on.set()
        assert await client.wait("reused", timeout=30) == ["new", "yes"]


async def _run_elsewhere(provider: Provider, history: list[str]) -> None:
    """Create the instance again, and let another worker commit its first turn and hand it over."""
    await provider.register_worker(OTHER, 90, {}, profile=profile())
    new = NewInstance(instance_id="reused", name="order", version=None, start='{"execution":0}')
    assert list(await provider.create_instance([new])) == [True]
    (item,) = (await provider.fetch_orchestration_item(OTHER, limit=1, names=["order"], unknown_after=60)).items
    consumed = [message.id for message in item.messages]
    (result,) = await provider.commit_turn(OTHER, [turn(item, history=history, consumed=consumed)], TIMEOUTS)
    assert result.committed
    await provider.release_instance(OTHER, [Release(instance_id="reused", to="mine")])


keyed = App("keyed")
keys: list[tuple[str, object]] = []


@keyed.activity
async def note(ctx: ActivityContext, kind: str) -> None:
    keys.append((kind, (ctx.instance_id, ctx.execution_id, ctx.activity_id, ctx.instance_generation)))
    if kind == "retried" and ctx.attempt == 1:
        raise ValueError


@keyed.activity
def note_in_thread(ctx: ActivityContext) -> None:
    keys.append(("thread", (ctx.instance_id, ctx.execution_id, ctx.activity_id, ctx.instance_generation)))


@keyed.orchestration
async def child(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(note, "child")


@keyed.orchestration
async def notes(ctx: OrchestrationContext, is_last: bool) -> None:
    await ctx.schedule_activity(note, "plain")
    await ctx.schedule_activity(note, "session").on_session("s")
    await ctx.schedule_activity(note, "retried", retry=RetryPolicy(max_attempts=2, initial_interval=0))
    await ctx.schedule_activity(note_in_thread)
    await ctx.schedule_sub_orchestration(child)
    if not is_last:
        ctx.continue_as_new(True)


async def test_the_key_of_an_activity_is_of_one_instance(kept_url: str) -> None:
    """Attempts of one activity have one key; a later instance of the same id has others."""
    keys.clear()
    async with Worker(keyed, kept_url, RuntimeOptions.make(poll_interval=0.2)), Client(kept_url) as client:
        for _ in range(2):
            await (await client.start(notes, True, instance_id="again")).wait(30)
            await client.delete("again")
        await (await client.start(notes, False, instance_id="again")).wait(30)
        await (await client.start(notes, True, instance_id="again", if_ended="restart")).wait(30)
    counts = Counter(keys)
    assert sorted(Counter(kind for kind, _ in counts).items()) == [
        ("child", 5),
        ("plain", 5),
        ("retried", 5),
        ("session", 5),
        ("thread", 5),
    ]
    assert {count for (kind, _), count in counts.items() if kind == "retried"} == {2}
    assert {count for (kind, _), count in counts.items() if kind != "retried"} == {1}


async def test_an_external_store_takes_the_state_of_its_activity_for_no_other(kept_url: str) -> None:
    """Instance, execution and activity are the same as of the last write of the record: the key of that write."""
    baskets = Sessions(list[str], kind="basket", store=MemorySessionStore())
    shop = App("shop")
    shop.include(baskets)

    @shop.activity
    async def add(ctx: ActivityContext, item: str) -> bool:
        opening = baskets.open(ctx)
        async with opening as basket:
            basket.append(item)
        return opening.already_applied

    @shop.orchestration
    async def visit(ctx: OrchestrationContext, item: str) -> bool:
        return await ctx.schedule_activity(add, item).on_session("customer")

    async with Worker(shop, kept_url), Client(kept_url) as client:
        for item in ("apple", "pear"):
            await client.start(visit, item, instance_id="reused")
            assert await client.wait("reused", timeout=30) is False
            await client.delete("reused")
    assert baskets._store is not None
    record = await baskets._store.load("customer")
    assert record is not None
    assert record.state == b'["apple","pear"]'
