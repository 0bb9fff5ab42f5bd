"""The load of workers, as they report it, and whether they may offer sessions to each other."""

from __future__ import annotations

from collections.abc import Sequence

from affinity.provider.contract import FleetLoad, WorkerLoad
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import LONG_LEASE, SHORT_LEASE
from affinity_conformance.providers.cluster import Cluster


def of_peers(load: FleetLoad) -> Sequence[WorkerLoad]:
    """The load without the worker of the suite that queues items."""
    return [worker for worker in load.workers if worker.worker_id in {"a", "b", "c"}]


class LoadRules(Rules):
    """`get_load` and `suspend_rebalancing`."""

    async def test_workers_learn_how_full_the_others_are(self, cluster: Cluster) -> None:
        """Each sees the latest report of the others, with their registrations; without a report there is no number
        (contract: get_load).
        """
        a, b = await cluster.peer("a"), await cluster.peer("b")
        await a.register(LONG_LEASE, capacity=10)
        await b.register(LONG_LEASE, capacity=30)
        first = await a.provider.get_load(a.identity, held=4)
        assert [(w.worker_id, w.sessions, w.capacity) for w in of_peers(first)] == [("a", 4, 10), ("b", None, 30)]
        await cluster.advance(50)
        await b.provider.get_load(b.identity, held=7)
        again = await a.provider.get_load(a.identity, held=5)
        assert [(w.worker_id, w.sessions, w.draining) for w in of_peers(again)] == [("a", 5, False), ("b", 7, False)]
        assert all(50 <= worker.age < 60 for worker in of_peers(again))
        assert [worker.sessions for worker in of_peers(await b.provider.get_load())] == [5, 7]

    async def test_only_live_workers_count(self, cluster: Cluster) -> None:
        """A worker whose lease has ended is left out, and its report is not stored; a draining worker is marked
        (contract: get_load).
        """
        a, b, c = await cluster.worker("a"), await cluster.worker("b", SHORT_LEASE), await cluster.worker("c")
        await c.drain()
        await cluster.advance(SHORT_LEASE + 1)
        load = await b.provider.get_load(b.identity, held=3)
        assert [(worker.worker_id, worker.draining) for worker in of_peers(load)] == [("a", False), ("c", True)]
        await b.register(LONG_LEASE, resume=True)
        assert [worker.sessions for worker in of_peers(await a.provider.get_load())] == [None, None, None]

    async def test_rebalancing_is_suspended_for_all(self, cluster: Cluster) -> None:
        """All provider objects see that it is suspended, until it is allowed again (contract: suspend_rebalancing)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        assert not (await a.provider.get_load()).suspended
        await a.provider.suspend_rebalancing(suspended=True)
        assert (await b.provider.get_load(b.identity, held=0)).suspended
        await b.provider.suspend_rebalancing(suspended=False)
        assert not (await a.provider.get_load()).suspended
