"""Takeover: when a session and its work go to another worker, when they do not, and under which epoch."""

from __future__ import annotations

from affinity.provider.contract import Timeouts
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ITEM_LOCK, LONG_LEASE, SESSION_LOCK, SHORT_LEASE
from affinity_conformance.providers.cluster import Cluster

LONG_ITEM_LOCK = Timeouts(work_item_lock=LONG_LEASE, session_lock=SESSION_LOCK)


class TakeoverRules(Rules):
    """Two conditions own a session: its lock, and the lease of its worker."""

    async def test_no_worker_takes_a_session_over_while_its_lock_lasts(self, cluster: Cluster) -> None:
        """No other worker takes a session over while its lock lasts, even when it is idle."""
        _, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await cluster.enqueue("s")
        await cluster.pass_time(SESSION_LOCK - 10)
        assert await b.take() == []

    async def test_another_worker_takes_over_after_expiry(self, cluster: Cluster) -> None:
        """Another worker takes over with a greater epoch."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        first = await cluster.use(a, "s")
        await cluster.enqueue("s")
        await cluster.pass_time(SESSION_LOCK + 1)
        second = await b.take_one()
        assert (second.session_epoch or 0) > (first.session_epoch or 0)
        assert await cluster.holders() == {"s": "b"}

    async def test_a_restarted_worker_takes_over_after_expiry(self, cluster: Cluster) -> None:
        """A new incarnation of the same worker takes over with a greater epoch."""
        old = await cluster.worker("a")
        first = await cluster.use(old, "s")
        await cluster.enqueue("s")
        await cluster.pass_time(SESSION_LOCK + 1)
        second = await (await cluster.worker("a")).take_one()
        assert (second.session_epoch or 0) > (first.session_epoch or 0)

    async def test_the_same_incarnation_keeps_its_epoch_when_no_worker_held_in_between(self, cluster: Cluster) -> None:
        """An incarnation that claims its session again keeps the epoch if no other held it in between."""
        a = await cluster.worker("a")
        first = await cluster.use(a, "s")
        await cluster.enqueue("s")
        await cluster.pass_time(SESSION_LOCK + 1)
        assert (await a.take_one()).session_epoch == first.session_epoch

    async def test_the_same_incarnation_gets_a_new_epoch_when_another_held_in_between(self, cluster: Cluster) -> None:
        """An incarnation that claims its session again gets a greater epoch if another held it in between."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        epochs = []
        for holder in (a, b, a):
            item = await cluster.use(holder, "s")
            epochs.append(item.session_epoch or 0)
            await cluster.pass_time(SESSION_LOCK + 1)
        assert epochs == sorted(set(epochs))

    async def test_a_session_is_free_when_the_lease_of_its_holder_ends(self, cluster: Cluster) -> None:
        """A session is free when its worker's lease ends, before its own lock expires."""
        a, b = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b")
        first = await cluster.use(a, "s")
        await cluster.enqueue("s")
        assert await b.take() == []
        await cluster.pass_time(SHORT_LEASE + 1)
        second = await b.take_one()
        assert (second.session_epoch or 0) > (first.session_epoch or 0)
        assert await cluster.holders() == {"s": "b"}

    async def test_a_session_is_free_when_its_holder_drains(self, cluster: Cluster) -> None:
        """A session of a draining worker is free immediately, without a sweep (contract: drain_worker)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await cluster.enqueue("s")
        assert await b.take() == []
        assert await a.drain() == 0
        assert (await b.take_one()).session_id == "s"

    async def test_a_session_is_free_when_its_holder_leaves(self, cluster: Cluster) -> None:
        """A session of a worker that leaves is free immediately, without a sweep (contract: release_worker)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "s")
        await a.take_one()
        await a.leave()
        assert [item.session_id for item in await b.take(10)] == ["s", "s"]

    async def test_a_session_is_free_when_it_is_given_back(self, cluster: Cluster) -> None:
        """A give-back with ``release_session`` frees the session with all its items (contract:
        WorkAbandon.release_session).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "s")
        first = await a.take_one()
        assert await a.give_back(first, release_session=True) == [True]
        taken = await b.take(10)
        assert [item.session_id for item in taken] == ["s", "s"]
        assert all((item.session_epoch or 0) > (first.session_epoch or 0) for item in taken)

    async def test_giving_an_item_back_keeps_the_session(self, cluster: Cluster) -> None:
        """A give-back without ``release_session`` keeps the session, and the item returns to the holder (contract:
        WorkAbandon).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.give_back(await cluster.give(a, "s"))
        assert await b.take() == []
        assert (await a.take_one()).session_id == "s"

    async def test_no_worker_takes_over_while_work_runs_longer_than_the_lock(self, cluster: Cluster) -> None:
        """Renewals of an item keep its session beyond the session lock timeout."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        running = await cluster.give(a, "s")
        await cluster.enqueue("s")
        for _ in range(20):
            await cluster.pass_time(ITEM_LOCK - 10)
            assert await a.renew(running) == [True]
            assert await b.take() == []
        assert await a.ack(running) == [True]

    async def test_unrelated_work_keeps_no_session_alive(self, cluster: Cluster) -> None:
        """Work of other sessions does not extend a session's lock."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "t", None)
        items = {item.session_id: item for item in await a.take_all(timeouts=LONG_ITEM_LOCK)}
        await a.ack(items["s"])
        for _ in range(4):
            await cluster.pass_time(0.3 * SESSION_LOCK)
            assert await a.renew(items["t"], items[None], timeouts=LONG_ITEM_LOCK) == [True, True]
        await cluster.enqueue("s", "t")
        assert [item.session_id for item in await b.take(10)] == ["s"]

    async def test_an_expired_item_lock_returns_the_item_to_the_holder(self, cluster: Cluster) -> None:
        """An item whose lock expired goes to the holder of its session only, and its attempt counts (contract:
        fetch_work_item).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        first = await cluster.give(a, "s")
        await cluster.pass_time(ITEM_LOCK + 1)
        assert await b.take() == []
        again = await a.take_one()
        assert again.lock.key == first.lock.key
        assert again.lock.token != first.lock.token
        assert again.attempts == 2
        assert again.session_epoch == first.session_epoch

    async def test_an_expired_session_free_item_goes_to_anyone(self, cluster: Cluster) -> None:
        """Any worker can fetch a session-free item whose lock expired, and its attempt counts."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.give(a, None)
        await cluster.pass_time(ITEM_LOCK - 10)
        assert await b.take() == []
        await cluster.pass_time(11)
        assert (await b.take_one()).attempts == 2

    async def test_when_both_have_expired_anyone_gets_the_item(self, cluster: Cluster) -> None:
        """Any worker can fetch an item when its lock and its session's lock have expired."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        first = await cluster.give(a, "s")
        await cluster.pass_time(SESSION_LOCK + 1)
        second = await b.take_one()
        assert second.lock.key == first.lock.key
        assert second.attempts == 2
        assert (second.session_epoch or 0) > (first.session_epoch or 0)

    async def test_a_running_item_stays_with_its_worker_when_the_session_expires(self, cluster: Cluster) -> None:
        """A locked item stays with its worker when its session expires; the next item does not."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        running = await cluster.give(a, "s", timeouts=LONG_ITEM_LOCK)
        await cluster.pass_time(SESSION_LOCK + 1)
        (key,) = await cluster.enqueue("s")
        assert [item.lock.key for item in await b.take(10)] == [key]
        assert await a.ack(running) == [True]

    async def test_the_items_of_a_dead_worker_are_free_when_its_lease_ends(self, cluster: Cluster) -> None:
        """Locked items are free when their worker's lease ends, whatever their own lock (contract: live token)."""
        a, b = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b")
        await cluster.enqueue("s", None)
        assert len(await a.take_all(timeouts=LONG_ITEM_LOCK)) == 2
        assert await b.take(10) == []
        await cluster.pass_time(SHORT_LEASE + 1)
        assert [item.attempts for item in await b.take_all()] == [2, 2]
