"""Touching: which verb extends which session, and which it leaves alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from affinity.provider.contract import Timeouts, WorkItem
from affinity.testing.conformance.providers.base import Rules
from affinity.testing.conformance.providers.builders import LONG_LEASE, SESSION_LOCK
from affinity.testing.conformance.providers.peer import Peer
from affinity.testing.conformance.providers.world import World

LONG_ITEM_LOCK = Timeouts(work_item_lock=LONG_LEASE, session_lock=SESSION_LOCK)
HALF = 0.5 * SESSION_LOCK
SLACK = 10.0  # TOUCH_SLACK of the timeout, and the time that the test takes


class TouchRules(Rules):
    """A session lock is extended by the work of its session, and of no other (design 4.2)."""

    async def test_a_fetch_extends_its_session_and_no_other(self, world: World) -> None:
        """When an item of a held session is fetched (design 4.2)."""
        await self._play(world, self._fetch)

    async def test_a_renewal_extends_its_session_and_no_other(self, world: World) -> None:
        """As part of the renewal of the item lock (design 4.2)."""
        await self._play(world, self._renew)

    async def test_an_ack_extends_its_session_and_no_other(self, world: World) -> None:
        """The session was used until now (contract: ack_work_item)."""
        await self._play(world, self._ack)

    async def test_a_commit_extends_the_sessions_of_its_acks_and_no_other(self, world: World) -> None:
        """The fused turn is an ack too (contract: Turn.acks)."""
        await self._play(world, self._commit)

    async def test_a_renewal_extends_the_item_lock(self, world: World) -> None:
        """By the length asked for, again and again (contract: renew_work_item_lock)."""
        a, b = await world.worker("a"), await world.worker("b")
        await world.enqueue(None)
        item = await a.take_one()
        for _ in range(4):
            await world.pass_time(20)
            assert await b.take() == []
            assert await a.renew(item) == [True]

    async def test_reading_extends_nothing(self, world: World) -> None:
        """`check_work_item` reads only (contract: check_work_item)."""
        a = await world.worker("a")
        await world.enqueue("s")
        item = await a.take_one(timeouts=LONG_ITEM_LOCK)
        await world.advance(HALF)
        assert await a.check(item) == [True]
        assert (await world.session("s")).expires_in < HALF + 1

    async def test_a_session_that_moved_is_not_extended_by_its_former_holder(self, world: World) -> None:
        """A renewal and an ack touch sessions only as far as the caller holds them (contract)."""
        a, b = await world.worker("a"), await world.worker("b")
        await world.enqueue("s", "s")
        renewed, acked = await a.take(10, timeouts=LONG_ITEM_LOCK)
        await world.pass_time(SESSION_LOCK + 1)
        await world.enqueue("s")
        await b.take_one(timeouts=LONG_ITEM_LOCK)
        await world.advance(HALF)
        assert await a.renew(renewed, timeouts=LONG_ITEM_LOCK) == [True]
        assert await a.ack(acked) == [True]
        row = await world.session("s")
        assert row.worker_id == "b"
        assert row.expires_in < HALF + 1

    async def test_idle_time_counts_from_the_last_touch(self, world: World) -> None:
        """What people see as idle (contract: SessionInfo)."""
        a = await world.worker("a")
        await world.enqueue("s")
        item = await a.take_one(timeouts=LONG_ITEM_LOCK)
        await world.advance(100)
        assert 100 <= (await world.session("s")).idle < 110
        await a.renew(item, timeouts=LONG_ITEM_LOCK)
        assert (await world.session("s")).idle < SLACK

    async def _play(self, world: World, verb: Callable[[World, Peer, WorkItem], Awaitable[None]]) -> None:
        """Hold two sessions, wait for half of their time, use one."""
        a = await world.worker("a")
        await world.enqueue("used", "other")
        items = {item.session_id: item for item in await a.take(10, timeouts=LONG_ITEM_LOCK)}
        await world.advance(HALF)
        await verb(world, a, items["used"])
        used, other = await world.session("used"), await world.session("other")
        assert SESSION_LOCK - SLACK < used.expires_in <= SESSION_LOCK
        assert HALF - SLACK < other.expires_in <= HALF

    @staticmethod
    async def _fetch(world: World, a: Peer, item: WorkItem) -> None:
        await world.enqueue("used")
        assert (await a.take_one()).session_epoch == item.session_epoch

    @staticmethod
    async def _renew(world: World, a: Peer, item: WorkItem) -> None:
        assert await a.renew(item) == [True]

    @staticmethod
    async def _ack(world: World, a: Peer, item: WorkItem) -> None:
        assert await a.ack(item) == [True]

    @staticmethod
    async def _commit(world: World, a: Peer, item: WorkItem) -> None:
        instance = await a.own("i")
        assert (await a.commit_one(instance, acks=[item.lock])).committed
