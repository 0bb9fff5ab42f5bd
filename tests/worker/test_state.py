"""Session state in a worker: committed with results, discarded with failures, and refused where somebody else wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from affinity import (
    ActivityContext,
    App,
    Client,
    MemorySessionStore,
    OrchestrationContext,
    RetryPolicy,
    RuntimeOptions,
    Sessions,
    SessionStore,
    Worker,
    open_store,
)
from affinity.errors import ActivityFailed, OrchestrationFailed
from affinity.provider.contract import Timeouts, Turn, WorkerIdentity
from affinity.provider.sqlite import SqliteProvider
from affinity.session import SessionMetadata, SessionRecord, SessionState

pytestmark = pytest.mark.anyio


class Basket(BaseModel):
    """What a customer has chosen."""

    items: list[str] = []


@dataclass
class Shop:
    """An app of its own for each test, and what its activities are to do in the middle."""

    baskets: Sessions[Basket]
    app: App = field(init=False)
    attempts: list[int] = field(default_factory=list)
    meanwhile: Any = None
    """Called in the first attempt, in the block."""

    def __post_init__(self) -> None:
        self.app = app = App("shop")
        app.include(self.baskets)

        @app.activity
        async def add(context: ActivityContext, item: str) -> list[str]:
            self.attempts.append(context.attempt)
            async with self.baskets.open(context) as basket:
                basket.items.append(item)
                if self.meanwhile is not None and len(self.attempts) == 1:
                    await self.meanwhile(context)
                items = list(basket.items)
            if item == "broken":
                raise ValueError(item)
            return items

        @app.activity
        def add_in_thread(context: ActivityContext, item: str) -> list[str]:
            with self.baskets.open_sync(context) as basket:
                basket.items.append(item)
                return list(basket.items)

        @app.orchestration
        async def shopping(context: OrchestrationContext, items: list[str]) -> list[str]:
            seen: list[str] = []
            for item in items:
                chosen: Any = add_in_thread if item.startswith("thread") else add
                seen = await context.schedule_activity(chosen, item).on_session("basket")
            return seen

        @app.orchestration
        async def everything_concurrently(context: OrchestrationContext, items: list[str]) -> list[list[str]]:
            calls = (context.schedule_activity(add, item).on_session("basket") for item in items)
            return await context.gather(*calls)

        @app.orchestration
        async def stubborn(context: OrchestrationContext, item: str) -> list[str]:
            policy = RetryPolicy(max_attempts=2, initial_interval=0.01)
            return await context.schedule_activity(add, item, retry=policy).on_session("basket")


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


@pytest.fixture
def shop() -> Shop:
    return Shop(Sessions(Basket))


def serving(shop: Shop, url: str) -> Worker:
    return Worker(shop.app, url, RuntimeOptions.make(poll_interval=0.2))


async def run(client: Client, name: str, value: Any) -> Any:
    return await client.wait((await client.start(name, value)).instance_id, timeout=30)


async def record_of(client: Client) -> SessionRecord:
    record = await client.session_store.load("basket")
    assert record is not None
    return record


async def items_of(client: Client) -> list[str]:
    return Basket.model_validate_json((await record_of(client)).state).items


async def test_each_result_brings_its_state(kept_url: str, client: Client, shop: Shop) -> None:
    async with serving(shop, kept_url):
        assert await run(client, "shopping", ["tea", "thread of silk", "milk"]) == ["tea", "thread of silk", "milk"]
        assert (await record_of(client)).version == 3
        assert await items_of(client) == ["tea", "thread of silk", "milk"]
        assert shop.baskets.stats.hydrations == 1


async def test_the_next_worker_goes_on_from_the_record(kept_url: str, client: Client, shop: Shop) -> None:
    async with serving(shop, kept_url):
        await run(client, "shopping", ["tea"])
    other = Shop(Sessions(Basket))
    async with serving(other, kept_url):
        assert await run(client, "shopping", ["milk"]) == ["tea", "milk"]
    assert other.baskets.stats.hydrations == 1


async def test_concurrent_activities_take_turns_on_the_state(kept_url: str, client: Client, shop: Shop) -> None:
    names = [str(n) for n in range(20)]
    async with serving(shop, kept_url):
        seen = await run(client, "everything_concurrently", names)
    assert sorted(map(len, seen)) == list(range(1, 21))
    assert sorted(await items_of(client)) == sorted(names)


async def test_a_failed_activity_changes_nothing(kept_url: str, client: Client, shop: Shop) -> None:
    async with serving(shop, kept_url):
        await run(client, "shopping", ["tea"])
        with pytest.raises(OrchestrationFailed) as raised:
            await run(client, "shopping", ["broken"])
        assert raised.value.error_type == ActivityFailed.__name__
        with pytest.raises(OrchestrationFailed):
            await run(client, "stubborn", "broken")
        assert await run(client, "shopping", ["milk"]) == ["tea", "milk"]
    assert await items_of(client) == ["tea", "milk"]


async def test_who_writes_meanwhile_wins_and_the_activity_runs_again(kept_url: str, client: Client, shop: Shop) -> None:
    """A script saves the record while an activity computes on the former one: nothing of either is lost."""

    async def save_by_hand(context: ActivityContext) -> None:
        async with shop.baskets.open("basket", store=client.session_store) as basket:
            basket.items.append("by hand")

    shop.meanwhile = save_by_hand
    async with serving(shop, kept_url):
        assert await run(client, "shopping", ["tea", "milk"]) == ["by hand", "tea", "milk"]
    assert shop.attempts == [1, 2, 1]
    assert await items_of(client) == ["by hand", "tea", "milk"]
    assert shop.baskets.stats.conflicts == 1


async def test_a_deleted_record_begins_anew(kept_url: str, client: Client, shop: Shop) -> None:
    async with serving(shop, kept_url):
        await run(client, "shopping", ["tea"])
        assert await client.session_manager.delete("basket") == ["basket"]
        assert await run(client, "shopping", ["milk"]) == ["milk"]


class Lossy(MemorySessionStore):
    """A store elsewhere that saves, and then has the first attempt end as if the worker had died."""

    def __init__(self) -> None:
        super().__init__()
        self.deaths = 1

    async def save(self, new: SessionState, **fences: Any) -> int:
        version = await super().save(new, **fences)
        if self.deaths:
            self.deaths -= 1
            raise ConnectionResetError("after the save")
        return version


async def test_a_store_elsewhere_does_not_apply_a_turn_twice(kept_url: str, client: Client) -> None:
    """The save has happened and the attempt has not: the next one finds its change there."""
    store = Lossy()
    shop = Shop(Sessions(Basket, store=store))
    async with serving(shop, kept_url):
        await run(client, "stubborn", "tea")
        assert await run(client, "shopping", ["milk"]) == ["tea", "milk"]
    assert shop.attempts == [1, 2, 1]
    assert await client.session_store.load("basket") is None


async def test_a_conflict_in_a_store_elsewhere_runs_the_activity_again(kept_url: str, client: Client) -> None:
    store: SessionStore = MemorySessionStore()
    shop = Shop(Sessions(Basket, store=store))

    async def save_by_hand(_: ActivityContext) -> None:
        metadata = SessionMetadata(kind="Basket")
        await store.save(SessionState(session_id="basket", state=b'{"items":["by hand"]}', metadata=metadata))

    shop.meanwhile = save_by_hand
    async with serving(shop, kept_url):
        assert await run(client, "shopping", ["tea"]) == ["by hand", "tea"]
    assert shop.attempts == [1, 2]


async def test_an_activity_whose_block_is_cancelled_leaves_no_trace(kept_url: str, client: Client, shop: Shop) -> None:
    begun = anyio.Event()

    async def wait_for_ever(context: ActivityContext) -> None:
        begun.set()
        await anyio.sleep_forever()

    shop.meanwhile = wait_for_ever
    async with serving(shop, kept_url):
        await client.start("shopping", ["tea"], instance_id="cancelled")
        await begun.wait()
        await client.cancel("cancelled")
        assert (await client.wait_finished("cancelled", timeout=30)).status == "cancelled"
        assert await run(client, "shopping", ["milk"]) == ["milk"]


async def test_a_worker_that_ends_in_the_middle_leaves_the_state_to_the_next_one(
    sqlite_url: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of a commit is never known. The next worker of this process, with the same `Sessions`, does not
    wait for it.
    """
    asked = anyio.Event()

    async def no_answer(
        self: SqliteProvider, who: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts, **hints: Any
    ) -> Any:
        if any(turn.states for turn in turns):
            asked.set()
            await anyio.sleep_forever()
        return await commit_turn(self, who, turns, timeouts, **hints)

    commit_turn = SqliteProvider.commit_turn
    hurried = RuntimeOptions.make(
        poll_interval=0.2, drain_timeout=0.2, worker_lease_timeout=1.0, work_item_lock_timeout=1.0
    )
    async with Client(sqlite_url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(SqliteProvider, "commit_turn", no_answer)
            async with Worker(shop.app, sqlite_url, hurried):
                await client.start("shopping", ["tea"], instance_id="interrupted")
                await asked.wait()
        async with serving(shop, sqlite_url):
            assert await client.wait("interrupted", timeout=30) == ["tea"]
            assert await items_of(client) == ["tea"]


async def test_its_own_session_by_id_is_refused_through_another_store_of_the_database(kept_url: str) -> None:
    """At its first attempt, with nothing written: not as poison after ten writes."""
    baskets = Sessions(Basket, kind="basket")
    app = App("selfish")
    app.include(baskets)
    attempts: list[int] = []

    async with open_store(kept_url) as store:

        @app.activity
        async def add(context: ActivityContext) -> None:
            attempts.append(context.attempt)
            async with baskets.open(str(context.session_id), store=store) as basket:
                basket.items.append("by id")

        @app.orchestration
        async def run(context: OrchestrationContext) -> None:
            await context.schedule_activity(add).on_session("s")

        async with baskets.open("s", store=store) as basket:
            basket.items.append("before")
        async with Worker(app, kept_url), Client(kept_url) as client:
            await client.start(run, instance_id="i")
            with pytest.raises(OrchestrationFailed, match="SessionSelfConflict"):
                await client.wait("i", timeout=30)
        record = await store.load("s")
    assert record is not None
    assert (attempts, record.version, record.state) == ([1], 1, b'{"items":["before"]}')
