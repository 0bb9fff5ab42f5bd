"""Holds and the worker that holds the session; `list_sessions` of some sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from affinity.provider.contract import SessionHold, Timeouts, WorkItem
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import LONG_LEASE, SESSION_LOCK, SHORT_LEASE, about
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.kernel.holds import HOLD
from affinity_conformance.providers.peer import Peer

LONG_ITEM_LOCK: Final = Timeouts(work_item_lock=LONG_LEASE, session_lock=SESSION_LOCK)


async def _fetch(cluster: Cluster, a: Peer, item: WorkItem) -> None:
    assert (await cluster.give(a, "s")).session_epoch == item.session_epoch


async def _renew(cluster: Cluster, a: Peer, item: WorkItem) -> None:
    assert await a.renew(item) == [True]


async def _ack(cluster: Cluster, a: Peer, item: WorkItem) -> None:
    assert await a.ack(item) == [True]


async def _commit(cluster: Cluster, a: Peer, item: WorkItem) -> None:
    assert (await a.commit_one(await a.own("touching"), acks=[item.lock])).committed


Touch = Callable[[Cluster, Peer, WorkItem], Awaitable[None]]
TOUCHES: Final[dict[str, Touch]] = {"fetch": _fetch, "renewal": _renew, "ack": _ack, "commit": _commit}


class HolderRules(Rules):
    """`SessionHold` and the worker that holds the session; `list_sessions` of some sessions."""

    @pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES.keys())
    async def test_a_touch_shortens_no_hold(self, cluster: Cluster, touch: Touch) -> None:
        """A touch does not shorten a lock that a hold has extended (contract: SessionHold)."""
        a = await cluster.worker("a")
        item = await cluster.give(a, "s", timeouts=LONG_ITEM_LOCK)
        await a.hold("i", "s", HOLD)
        await cluster.advance(100)
        await touch(cluster, a, item)
        assert about((await cluster.session("s")).expires_in, HOLD - 100)

    async def test_a_dead_holder_is_not_kept(self, cluster: Cluster) -> None:
        """A hold does not keep a session with a worker whose lease has ended (contract: SessionHold)."""
        _, b = await cluster.holder("a", "s", lease=SHORT_LEASE), await cluster.worker("b")
        await b.hold("i", "s", HOLD)
        await cluster.enqueue("s")
        await cluster.pass_time(SHORT_LEASE + 1)
        assert (await b.take_one()).session_id == "s"

    async def test_a_draining_holder_is_not_kept(self, cluster: Cluster) -> None:
        """A held session is free when its holder drains (contract: SessionHold)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await b.hold("i", "s", HOLD)
        assert await a.drain() == 0
        assert (await cluster.use(b, "s")).session_id == "s"

    async def test_a_holder_may_leave_or_give_the_session_up(self, cluster: Cluster) -> None:
        """A holder may release a session in spite of a hold (contract: SessionHold)."""
        a, b = await cluster.holder("a", "s", "t"), await cluster.worker("b")
        await b.go_on(await b.own("i"), holds=[SessionHold("s", 1, HOLD), SessionHold("t", 2, HOLD)])
        assert await a.give_back(await cluster.give(a, "s"), release_session=True) == [True]
        assert (await b.take_one()).session_id == "s"
        await a.leave()
        assert (await cluster.use(b, "t")).session_id == "t"

    async def test_a_restarted_holder_adopts_the_session_while_its_hold_lasts(self, cluster: Cluster) -> None:
        """A restarted worker keeps a session whose lock a hold has extended (contract: register_worker)."""
        old, b = await cluster.worker("a"), await cluster.worker("b")
        first = await cluster.use(old, "s")
        await b.hold("i", "s", HOLD)
        await cluster.advance(SESSION_LOCK + 100)
        new = await cluster.worker("a")
        await cluster.enqueue("s")
        assert await b.take() == []
        assert ((await new.take_one()).session_epoch or 0) > (first.session_epoch or 0)

    async def test_a_held_session_survives_the_sweep(self, cluster: Cluster) -> None:
        """A sweep keeps a held session and its holds, and the end of one hold leaves the other (contract: sweep)."""
        a = await cluster.holder("a", "s")
        await a.hold("i", "s", HOLD)
        longer = await a.hold("j", "s", 2 * HOLD)
        await cluster.advance(SESSION_LOCK + 100)
        assert (await cluster.sweep(session_retention=0)).sessions_removed == 0
        await a.go_on(longer, ended_holds=[1])
        assert about((await cluster.session("s")).expires_in, HOLD - SESSION_LOCK - 100)

    async def test_some_sessions_are_listed_with_the_time_of_their_locks(self, cluster: Cluster) -> None:
        """`list_sessions` of some sessions says who holds each, and for how long; it leaves unknown ones out (contract:
        list_sessions).
        """
        a, b = await cluster.holder("a", "s", "held"), await cluster.holder("b", "other")
        await b.hold("i", "held", HOLD)
        await cluster.advance(100)
        none, held, unknown, lock, again = await a.holds_for("other", "held", "unknown", "s", "s")
        assert (none, unknown) == (None, None)
        assert held is not None
        assert about(held, HOLD - 100)
        assert lock is not None
        assert again is not None
        assert about(lock, SESSION_LOCK - 100)
        assert about(again, SESSION_LOCK - 100)
        assert await a.holds_for() == []

    async def test_listing_a_session_reads_only(self, cluster: Cluster) -> None:
        """`list_sessions` extends no lock (contract: list_sessions)."""
        a = await cluster.holder("a", "s")
        await cluster.advance(200)
        for _ in range(3):
            await a.holds_for("s")
        assert (await cluster.session("s")).expires_in <= SESSION_LOCK - 200
        await cluster.advance(SESSION_LOCK - 199)
        assert await a.holds_for("s") == [None]
        assert await cluster.holders() == {}

    async def test_a_worker_that_has_ended_or_was_replaced_holds_nothing(self, cluster: Cluster) -> None:
        """A listed session is held by no worker whose lease has ended or that was replaced (contract: SessionInfo)."""
        a, late = await cluster.holder("a", "s"), await cluster.holder("late", "t", lease=SHORT_LEASE)
        successor = await cluster.worker("a")
        assert await a.holds_for("s") == [None]
        (seconds,) = await successor.holds_for("s")
        assert seconds is not None
        assert about(seconds, SESSION_LOCK)
        await cluster.advance(SHORT_LEASE + 1)
        assert await late.holds_for("t") == [None]
