"""Activities that wait for instances."""

from __future__ import annotations

from affinity.provider.contract import WorkItem
from affinity.records import ActivityWait
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ITEM_LOCK, SHORT_LEASE, message_ids, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer


class ActivityWaitRules(Rules):
    """`begin_wait`, `end_wait` and `get_waits` (contract: WorkerProvider, ProviderConnection)."""

    async def test_waits_are_followed_from_instance_to_instance(self, cluster: Cluster) -> None:
        """Also around a circle, and no others are read. A note may be repeated, and is removed (contract: get_waits,
        begin_wait, end_wait).
        """
        worker = await cluster.worker("a")
        x, y, z, other = names = ("x", "y", "z", "other")
        items = [await run_activity(worker, name) for name in names]
        for number, awaited in enumerate((y, z, x, x)):
            for _ in range(2):
                await worker.provider.begin_wait(wait_of(number, items[number], awaited))
        found = [(edge.instance_id, edge.awaited) for edge in await worker.provider.get_waits(y)]
        assert sorted(found) == sorted([(x, y), (y, z), (z, x)])
        assert [edge.awaited for edge in await worker.provider.get_waits(other)][-1] == x
        began = [(edge.began, edge.wait_id) for edge in await worker.provider.get_waits(y)]
        assert began == sorted(began)
        for _ in range(2):
            await worker.provider.end_wait(1)
        assert [edge.awaited for edge in await worker.provider.get_waits(x)] == [y]
        assert list(await worker.provider.get_waits(y)) == []

    async def test_a_wait_is_over_with_its_activity(self, cluster: Cluster) -> None:
        """It ends when the item is acknowledged, or its worker dies (contract: get_waits, begin_wait)."""
        a, b = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b")
        x, y = "x", "y"
        dies, ends = await run_activity(a, x), await run_activity(b, y)
        await a.provider.begin_wait(wait_of(1, dies, y, worker="a"))
        await b.provider.begin_wait(wait_of(2, ends, x, worker="b"))
        await b.provider.begin_wait(wait_of(3, dies, x, worker="b"))  # the item is locked by the other one
        assert [edge.wait_id for edge in await b.provider.get_waits(y)] == [1, 2]
        assert await b.ack(ends) == [True]
        assert list(await b.provider.get_waits(y)) == []
        await cluster.pass_time(SHORT_LEASE + ITEM_LOCK)
        assert list(await b.provider.get_waits(x)) == []


async def run_activity(worker: Peer, name: str) -> WorkItem:
    """Return an activity that the worker runs, of an instance of this name."""
    instance = await worker.own(name)
    await worker.go_on(instance, consumed=message_ids(instance), work_items=[work_item(instance, 1, None)])
    return await worker.take_one()


def wait_of(number: int, item: WorkItem, awaited: str, *at: int | None, worker: str = "a") -> ActivityWait:
    """Return a wait; ``at``: its `ActivityWait.target_id` and ``seq``."""
    target_id, seq = at or (None, None)
    return ActivityWait(number, *item.lock.key, worker, awaited, target_id, seq)
