"""Touching: the verbs that extend the locks of sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from affinity.provider.contract import Timeouts, WorkItem
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import LONG_LEASE, SESSION_LOCK
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer

LONG_ITEM_LOCK = Timeouts(work_item_lock=LONG_LEASE, session_lock=SESSION_LOCK)
HALF = 0.5 * SESSION_LOCK
SLACK = 10.0  # TOUCH_SLACK of the timeout, and the time that the test takes


class TouchRules(Rules):
    """A session lock is extended by the work of its session, and of no other."""

    async def test_a_fetch_extends_its_session_and_no_other(self, cluster: Cluster) -> None:
        """A fetch touches the session of the item and no other."""
        await self._play(cluster, self._fetch)

    async def test_a_renewal_extends_its_session_and_no_other(self, cluster: Cluster) -> None:
        """A renewal touches the session of the item and no other."""
        await self._play(cluster, self._renew)

    async def test_an_ack_extends_its_session_and_no_other(self, cluster: Cluster) -> None:
        """An ack touches the session of the item and no other (contract: ack_work_item)."""
        await self._play(cluster, self._ack)

    async def test_a_commit_extends_the_sessions_of_its_acks_and_no_other(self, cluster: Cluster) -> None:
        """A commit touches the sessions of its acks and no others (contract: Turn.acks)."""
        await self._play(cluster, self._commit)

    async def test_a_renewal_extends_the_item_lock(self, cluster: Cluster) -> None:
        """Each renewal extends the lock by the given length (contract: renew_work_item_lock)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        item = await cluster.give(a, None)
        for _ in range(4):
            await cluster.pass_time(20)
            assert await b.take() == []
            assert await a.renew(item) == [True]

    async def test_reading_extends_nothing(self, cluster: Cluster) -> None:
        """`check_work_item` extends no lock (contract: check_work_item)."""
        a = await cluster.worker("a")
        item = await cluster.give(a, "s", timeouts=LONG_ITEM_LOCK)
        await cluster.advance(HALF)
        assert await a.check(item) == [True]
        assert (await cluster.session("s")).expires_in < HALF + 1

    async def test_a_session_that_moved_is_not_extended_by_its_former_holder(self, cluster: Cluster) -> None:
        """Renewals and acks do not touch a session that another worker holds (contract)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "s")
        renewed, acked = await a.take(10, timeouts=LONG_ITEM_LOCK)
        await cluster.pass_time(SESSION_LOCK + 1)
        await cluster.give(b, "s", timeouts=LONG_ITEM_LOCK)
        await cluster.advance(HALF)
        assert await a.renew(renewed, timeouts=LONG_ITEM_LOCK) == [True]
        assert await a.ack(acked) == [True]
        row = await cluster.session("s")
        assert row.worker_id == "b"
        assert row.expires_in < HALF + 1

    async def test_idle_time_counts_from_the_last_touch(self, cluster: Cluster) -> None:
        """``idle`` counts from the last touch (contract: SessionInfo)."""
        a = await cluster.worker("a")
        item = await cluster.give(a, "s", timeouts=LONG_ITEM_LOCK)
        await cluster.advance(100)
        assert 100 <= (await cluster.session("s")).idle < 110
        await a.renew(item, timeouts=LONG_ITEM_LOCK)
        assert (await cluster.session("s")).idle < SLACK

    async def _play(self, cluster: Cluster, verb: Callable[[Cluster, Peer, WorkItem], Awaitable[None]]) -> None:
        """Hold two sessions, wait for half of their time, use one."""
        a = await cluster.worker("a")
        await cluster.enqueue("used", "other")
        items = {item.session_id: item for item in await a.take(10, timeouts=LONG_ITEM_LOCK)}
        await cluster.advance(HALF)
        await verb(cluster, a, items["used"])
        used, other = await cluster.session("used"), await cluster.session("other")
        assert SESSION_LOCK - SLACK < used.expires_in <= SESSION_LOCK
        assert HALF - SLACK < other.expires_in <= HALF

    @staticmethod
    async def _fetch(cluster: Cluster, a: Peer, item: WorkItem) -> None:
        assert (await cluster.give(a, "used")).session_epoch == item.session_epoch

    @staticmethod
    async def _renew(cluster: Cluster, a: Peer, item: WorkItem) -> None:
        assert await a.renew(item) == [True]

    @staticmethod
    async def _ack(cluster: Cluster, a: Peer, item: WorkItem) -> None:
        assert await a.ack(item) == [True]

    @staticmethod
    async def _commit(cluster: Cluster, a: Peer, item: WorkItem) -> None:
        instance = await a.own("i")
        assert (await a.commit_one(instance, acks=[item.lock])).committed
