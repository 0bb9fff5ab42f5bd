"""Limits under load: many connections queue, admit, take, end, give back, cancel and lose work, until all is done."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, TypeVar

import anyio
import pytest

from affinity.errors import ProviderError
from affinity.flow.store.contract import LimitChange, LimitSpec, RateBound, limits_of
from affinity.limits import MAX_ADMISSIONS
from affinity.orchestration.gates import LimitUse, gate_of
from affinity.provider.contract import NewWorkItem, OrchestrationItem, WorkItem, WorkKey
from affinity_conformance.providers.builders import work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer
from tests.support.clusters import Database

pytestmark = pytest.mark.anyio

T = TypeVar("T")

SECONDS: Final = 2.5
PRODUCERS: Final = 3
WORKERS: Final = 4
TENANTS: Final = 5

SLOTS: Final = {"a": 4, "b": 3, "tenant": 2}
SPECS: Final = (
    LimitSpec(name="a", concurrency=4),
    LimitSpec(name="b", concurrency=3),
    LimitSpec(name="often", rate=RateBound(count=400, per=1.0)),
    LimitSpec(name="tenant", keyed=True, concurrency=2),
)


@dataclass
class Load:
    """What the tasks share."""

    cluster: Cluster
    random: random.Random
    uses: dict[WorkKey, tuple[LimitUse, ...]] = field(default_factory=dict)
    held: Counter[tuple[str, str]] = field(default_factory=Counter)
    age: int = 0  # how often all locks have expired
    is_over: bool = False

    def gate(self) -> tuple[LimitUse, ...]:
        """Places at some limits."""
        tenant = LimitUse("tenant", f"t{self.random.randrange(TENANTS)}", weight=self.random.choice([1.0, 2.0]))
        all_uses = [LimitUse("a"), LimitUse("b"), LimitUse("often", units=self.random.choice([1, 3])), tenant]
        return tuple(self.random.sample(all_uses, self.random.choice([1, 1, 2, 3])))

    def begin(self, item: WorkItem) -> None:
        """Note that a worker has the item: with it no limit is exceeded."""
        for use in self.uses[item.lock.key]:
            self.held[use.limit, use.key] += 1
            assert self.held[use.limit, use.key] <= SLOTS.get(use.limit, 1_000), use

    def end(self, item: WorkItem) -> None:
        """Note that the worker is about to let the item go."""
        for use in self.uses[item.lock.key]:
            self.held[use.limit, use.key] -= 1

    async def produce(self, peer: Peer, instance: OrchestrationItem) -> None:
        """Queue work, and cancel some of it."""
        numbers, sent = count(1), list[WorkKey]()
        while not self.is_over:
            items = [self._item(instance, next(numbers)) for _ in range(self.random.randrange(1, 8))]
            cancelled = [
                sent.pop(self.random.randrange(len(sent))) for _ in range(self.random.randrange(3)) if len(sent) > 50
            ]
            result = await again(
                lambda items=items, cancelled=cancelled: peer.commit_one(  # type: ignore[misc]
                    instance, history=[], work_items=items, cancel_activities=[key.activity_id for key in cancelled]
                )
            )
            assert result.committed
            sent += [item.key for item in items]
            await anyio.sleep(self.random.uniform(0, 0.03))

    def _item(self, instance: OrchestrationItem, number: int) -> NewWorkItem:
        uses = self.gate()
        session = f"s{self.random.randrange(6)}" if self.random.random() < 0.3 else None
        item = work_item(instance, number, session)
        self.uses[item.key] = uses
        delay = self.random.choice([0.0, 0.0, 0.0, 0.2])
        return replace(item, gate=gate_of(uses, self.random.choice([0, 0, 1, 7])), delay=delay)

    async def work(self, peer: Peer) -> None:
        """Take work, and end most of it."""
        while not self.is_over:
            age = self.age
            for item in await again(lambda: peer.take(3)):
                if self.age == age:
                    await self._run(peer, item)
            await anyio.sleep(self.random.uniform(0, 0.02))

    async def _run(self, peer: Peer, item: WorkItem) -> None:
        await anyio.sleep(self.random.uniform(0, 0.01))
        if self.random.random() < 0.75:
            await again(lambda: peer.ack(item))
        else:
            delay = self.random.choice([0.0, 0.1])
            await again(lambda: peer.give_back(item, delay=delay, failed=self.random.random() < 0.5))

    async def admit(self, peer: Peer) -> None:
        """As the loop of a worker does."""
        store = limits_of(peer.provider)
        while not self.is_over:
            await again(lambda: store.admit(most=self.random.choice([3, 50, MAX_ADMISSIONS])))
            if self.random.random() < 0.2:
                await again(store.return_slots)
            await anyio.sleep(self.random.uniform(0, 0.02))

    async def operate(self, peer: Peer) -> None:
        """Pause limits and go on, and let locks expire."""
        store = limits_of(peer.provider)
        while not self.is_over:
            await anyio.sleep(self.random.uniform(0.1, 0.4))
            name = self.random.choice([*SLOTS, "often"])
            await again(lambda name=name: store.change_limits([LimitChange(limit=name, paused=True)]))  # type: ignore[misc]
            if self.random.random() < 0.3:
                self.age += 1
                await self.cluster.advance(40)
            await anyio.sleep(self.random.uniform(0, 0.1))
            await again(lambda name=name: store.change_limits([LimitChange(limit=name, paused=False)]))  # type: ignore[misc]


async def again(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call whose answer was lost, or that met others."""
    for _ in range(100):
        with suppress(ProviderError):
            return await call()
        await anyio.sleep(0.01)
    raise AssertionError("a call fails again and again")


@pytest.fixture
async def cluster(any_url: str) -> AsyncIterator[Cluster]:
    async with aclosing(Cluster(Database(any_url))) as cluster:  # type: ignore[arg-type]
        yield cluster


@pytest.mark.slow
@pytest.mark.slow_cases(r"\[sqlite")
async def test_all_work_ends_and_all_slots_are_free(cluster: Cluster) -> None:
    """No slot is lost or given twice, and no work is left at its gate."""
    load = Load(cluster, random.Random(7))
    producers = [await cluster.owner(f"p{n}", f"i{n}", capacity=0) for n in range(PRODUCERS)]
    workers = [await cluster.worker(f"w{n}") for n in range(WORKERS)]
    store = limits_of(workers[0].provider)
    await store.declare_limits("shop", "1", SPECS)
    async with anyio.create_task_group() as group:
        for peer, instance in producers:
            group.start_soon(load.produce, peer, instance)
        for worker in workers:
            group.start_soon(load.work, worker)
        for worker in [*workers[:2], producers[0][0]]:
            group.start_soon(load.admit, await cluster.same_worker(worker))
        group.start_soon(load.operate, await cluster.same_worker(workers[0]))
        await anyio.sleep(SECONDS)
        load.is_over = True
    await cluster.advance(40)
    await finish(load, workers)
    keys = [key for spec in SPECS for key in await store.list_limit_keys(spec.name)]
    assert [(key.in_use, key.waiting) for key in keys] == [(0, 0)] * len(keys)
    for _, instance in producers:
        assert not await workers[0].provider.list_work_items(instance.instance_id, 100)


async def finish(load: Load, workers: list[Peer]) -> None:
    """Admit, take and end all that is left; what is taken at once exceeds no limit."""
    store = limits_of(workers[0].provider)
    idle = 0
    while idle < 5:
        await again(store.return_slots)
        while (await again(lambda: store.admit(most=MAX_ADMISSIONS))).more:
            pass
        items = [(worker, item) for worker in workers for item in await again(worker.take_all)]
        for _, item in items:
            load.begin(item)
        for worker, item in items:
            load.end(item)
            assert await again(lambda worker=worker, item=item: worker.ack(item)) == [True]  # type: ignore[misc]
        idle = 0 if items else idle + 1
        if not items:  # work pauses that had its slots when all locks expired, and no worker
            await load.cluster.advance(20)
