"""The number of workers that the sessions need."""

from __future__ import annotations

from affinity.provider.contract import WorkerDemand
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import SESSION_LOCK, SHORT_LEASE
from affinity_conformance.providers.cluster import Cluster


class DemandRules(Rules):
    """`desired_workers`, and ``WorkerProfile.capacity``."""

    async def test_held_and_waiting_sessions_need_workers(self, cluster: Cluster) -> None:
        """Each session that is held or waits counts once, however much of its work waits; work without a session does
        not count (contract: desired_workers).
        """
        a = await cluster.holder("a", "held", capacity=2)
        await cluster.enqueue(*["held"] * 5, *["waits"] * 5, *[None] * 50)
        assert await self._demand(cluster) == WorkerDemand(held=1, waiting=1, capacity=2, desired=1)
        await cluster.enqueue("waits too")
        assert await self._demand(cluster) == WorkerDemand(held=1, waiting=2, capacity=2, desired=2)
        assert {item.session_id for item in await a.take_all()} == {None, "held", "waits", "waits too"}
        assert await self._demand(cluster) == WorkerDemand(held=3, waiting=0, capacity=2, desired=2)

    async def test_an_empty_database_needs_none(self, cluster: Cluster) -> None:
        """No worker is needed if there are no sessions; if there are no workers, the capacity is the option's default
        (contract: desired_workers).
        """
        assert await self._demand(cluster) == WorkerDemand(held=0, waiting=0, capacity=100, desired=0)

    async def test_work_for_later_needs_none_now(self, cluster: Cluster) -> None:
        """Work that is visible later does not count before (contract: desired_workers)."""
        await cluster.worker("a", capacity=1)
        await cluster.enqueue("s", delay=60)
        assert (await self._demand(cluster)).desired == 0
        await cluster.advance(61)
        assert (await self._demand(cluster)).desired == 1

    async def test_sessions_of_dead_workers_count_while_they_have_work(self, cluster: Cluster) -> None:
        """Work of a dead worker's session waits, though no worker has swept (contract: desired_workers)."""
        await cluster.holder("a", "idle", "busy", lease=SHORT_LEASE, capacity=1)
        await cluster.enqueue("busy")
        await cluster.advance(SHORT_LEASE + 1)
        assert await self._demand(cluster) == WorkerDemand(held=0, waiting=1, capacity=1, desired=1)

    async def test_offered_work_waits(self, cluster: Cluster) -> None:
        """Work that is offered to one worker counts as any that waits (contract: desired_workers)."""
        a = await cluster.worker("a", capacity=1)
        await cluster.offer(a, "s")
        assert (await self._demand(cluster)).waiting == 1

    async def test_a_session_whose_time_is_over_needs_none(self, cluster: Cluster) -> None:
        """A session that has expired is not held (contract: desired_workers)."""
        await cluster.holder("a", "s", capacity=1)
        await cluster.advance(SESSION_LOCK + 1)
        assert (await self._demand(cluster)).desired == 0

    async def test_the_capacity_is_of_workers_that_take_sessions(self, cluster: Cluster) -> None:
        """The capacity is the mean of the workers that are alive, do not drain and take sessions, or else of the last
        such workers (contract: desired_workers).
        """
        await cluster.worker("a", SHORT_LEASE, capacity=2)
        await cluster.worker("b", SHORT_LEASE, capacity=6)
        await cluster.worker("none", capacity=0)
        await (await cluster.worker("drains", SHORT_LEASE, capacity=100)).drain()
        assert (await self._demand(cluster)).capacity == 4
        await cluster.advance(SHORT_LEASE + 1)
        assert (await self._demand(cluster)).capacity == 36

    async def test_a_registration_replaces_the_capacity(self, cluster: Cluster) -> None:
        """A worker that registers again reports its capacity again (contract: WorkerInfo.capacity)."""
        a = await cluster.worker("a", capacity=2)
        await a.register(resume=True, capacity=3)
        assert [row.capacity for row in await a.provider.list_workers() if row.worker_id == "a"] == [3]
        await cluster.worker("a", capacity=4)
        assert [row.capacity for row in await a.provider.list_workers() if row.worker_id == "a"] == [4]

    @staticmethod
    async def _demand(cluster: Cluster) -> WorkerDemand:
        return await (await cluster.enqueuer()).provider.desired_workers()
