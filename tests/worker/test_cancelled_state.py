"""The session state of an activity whose result nothing waits for any more: the rule of docs/learn/sessions.md."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import pytest
from pydantic import BaseModel

from affinity import ActivityContext, App, Client, OrchestrationContext, RuntimeOptions, Sessions, Worker
from affinity.provider.postgres import PostgresProvider
from affinity.provider.sqlite import SqliteProvider
from affinity.session import SessionRecord
from affinity.worker.instances import InstanceTable
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


class CancelledBasket(BaseModel):
    """What a customer has chosen."""

    items: list[str] = []


@dataclass
class CancelledShop:
    """An activity that adds to a basket once its gate is open, and an orchestration that waits for it or for "stop"."""

    baskets: Sessions[CancelledBasket] = field(default_factory=lambda: Sessions(CancelledBasket))
    begun: anyio.Event = field(default_factory=anyio.Event)
    gate: threading.Event = field(default_factory=threading.Event)

    def add_activity(self, app: App) -> App:
        @app.activity
        def add(context: ActivityContext, item: str) -> list[str]:
            """In a thread, which a cancellation does not end."""
            anyio.from_thread.run_sync(self.begun.set)
            self.gate.wait(60)
            with self.baskets.open_sync(context) as basket:
                basket.items.append(item)
                return list(basket.items)

        app.include(self.baskets)
        return app

    def add_orchestrations(self, app: App) -> App:
        @app.orchestration
        async def race(context: OrchestrationContext, goes_on: bool) -> int:
            """The index of what came first: 1 for "stop"."""
            added, stop = context.schedule_activity("add", "tea").on_session("basket"), context.schedule_wait("stop")

            async def first() -> int:
                return (await context.select(added, stop)).index

            index, _ = await context.gather(first(), context.schedule_wait("other"))
            if goes_on:
                await context.schedule_wait("end")
            return int(index)

        @app.orchestration
        async def shopping(context: OrchestrationContext, item: str) -> Any:
            return await context.schedule_activity("add", item).on_session("basket")

        return app


@pytest.fixture
def shop() -> CancelledShop:
    return CancelledShop()


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


def serving(app: App, url: str, name: str, **options: Any) -> Worker:
    return Worker(app, url, RuntimeOptions.make(worker_node_id=name, poll_interval=0.2, **options))


@asynccontextmanager
async def one_worker(shop: CancelledShop, url: str) -> AsyncIterator[None]:
    async with serving(shop.add_orchestrations(shop.add_activity(App("all"))), url, "only"):
        yield


async def record(client: Client) -> SessionRecord | None:
    return await client.session_store.load("basket")


async def events(client: Client) -> list[str]:
    return [event.type for event in await client.history("race")]


async def finish(client: Client, *, goes_on: bool) -> None:
    """The orchestration has "stop", and is over."""
    if goes_on:
        await client.raise_event("race", "end")
    assert await client.wait("race", timeout=30) == 1
    history = await events(client)
    assert "activity_cancelled" in history
    assert "activity_completed" not in history


async def shop_again(client: Client) -> list[str]:
    return list(await client.wait((await client.start("shopping", "milk")).instance_id, timeout=30))


@pytest.mark.parametrize("goes_on", [True, False])
async def test_what_still_runs_when_it_is_cancelled_leaves_no_state(
    kept_url: str, client: Client, shop: CancelledShop, goes_on: bool
) -> None:
    async with one_worker(shop, kept_url):
        await client.start("race", goes_on, instance_id="race")
        await shop.begun.wait()
        await client.raise_event("race", "other")
        await client.raise_event("race", "stop")
        if goes_on:
            await until(partial(_has, client, "activity_cancelled"))
        await finish(client, goes_on=goes_on)
        shop.gate.set()
        assert await shop_again(client) == ["milk"]


async def _has(client: Client, event: str) -> bool:
    return event in await events(client)


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_result_that_loses_to_what_came_before_it_in_one_turn_leaves_no_state(
    kept_url: str, client: Client, shop: CancelledShop, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have come while a turn of the instance was being committed: the activity is done, and its result is not."""
    held, committing = anyio.Event(), anyio.Event()
    stopped, completed = anyio.Event(), anyio.Event()

    def slow(commit: Callable[..., Any]) -> Callable[..., Any]:
        async def commit_turn(provider: Any, identity: Any, turns: Any, timeouts: Any, **hints: Any) -> Any:
            if any('"other"' in event and "event_raised" in event for turn in turns for event in turn.history):
                committing.set()
                await held.wait()
            return await commit(provider, identity, turns, timeouts, **hints)

        return commit_turn

    def deliver(table: InstanceTable, items: Any) -> None:
        received(table, items)
        if any('"stop"' in message.payload for item in items for message in item.messages):
            stopped.set()

    def deliver_result(table: InstanceTable, item: Any, *result: Any) -> None:
        ended(table, item, *result)
        completed.set()

    for provider in (SqliteProvider, PostgresProvider):
        monkeypatch.setattr(provider, "commit_turn", slow(provider.commit_turn))
    received, ended = InstanceTable.deliver, InstanceTable.deliver_result
    monkeypatch.setattr(InstanceTable, "deliver", deliver)
    monkeypatch.setattr(InstanceTable, "deliver_result", deliver_result)
    async with one_worker(shop, kept_url):
        await client.start("race", goes_on, instance_id="race")
        await shop.begun.wait()
        await client.raise_event("race", "other")
        await committing.wait()
        await client.raise_event("race", "stop")
        await stopped.wait()
        shop.gate.set()
        await completed.wait()
        held.set()
        await finish(client, goes_on=goes_on)
        assert await record(client) is None
        assert await shop_again(client) == ["milk"]
    assert shop.baskets.stats.conflicts == 1


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_result_that_was_sent_to_another_worker_s_instance_keeps_its_state(
    kept_url: str, client: Client, shop: CancelledShop, goes_on: bool
) -> None:
    """It was accepted, and is a message that waits for its orchestration: "stop" came before it and is first."""
    activities, orchestrations = shop.add_activity(App("activities")), shop.add_orchestrations(App("orchestrations"))
    async with serving(activities, kept_url, "holder"):
        async with serving(orchestrations, kept_url, "owner", max_sessions_per_runtime=0):
            await client.start("race", goes_on, instance_id="race")
            await shop.begun.wait()
        await client.raise_event("race", "other")
        await client.raise_event("race", "stop")
        assert await record(client) is None
        shop.gate.set()
        await until(lambda: _saved(client))
        async with serving(orchestrations, kept_url, "owner", max_sessions_per_runtime=0):
            await finish(client, goes_on=goes_on)
            found = await record(client)
            assert found is not None
            assert (found.version, found.state) == (1, b'{"items":["tea"]}')
            assert await shop_again(client) == ["tea", "milk"]


async def _saved(client: Client) -> bool:
    return await record(client) is not None
