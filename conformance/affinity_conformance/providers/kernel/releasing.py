"""Sessions that are released early: by hand, with a turn, or to make room for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from affinity.provider.contract import OFFER_SECONDS, IdleSession, InstanceUpdate, SessionWatch
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import SESSION_LOCK, fetch_options, turn, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer

REST = 30.0
"""Seconds for which work waits in a test, far longer than others would need to take it."""


class ReleaseRules(Rules):
    """`release_session`, `Turn.release_sessions` and `release_idle_session`."""

    # -- by hand

    async def test_a_released_session_is_for_any_worker(self, cluster: Cluster) -> None:
        """Another worker claims a released session at a greater epoch, with its waiting items (contract:
        release_session).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        before = await cluster.use(a, "s")
        await cluster.enqueue("s")
        assert await a.provider.release_session(["s", "never"]) == ["released", "not_held"]
        assert await a.holds_for("s") == [None]
        item = await b.take_one()
        assert (item.session_id, item.session_epoch or 0) > ("s", before.session_epoch or 0)
        assert await cluster.holders() == {"s": "b"}

    async def test_a_session_with_work_in_hand_is_busy(self, cluster: Cluster) -> None:
        """A session with a locked item is not released until that item ends (contract: release_session)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "s")
        item = await a.take_one()
        assert await b.provider.release_session(["s"]) == ["busy"]
        assert await b.take(10) == []
        assert await a.ack(item) == [True]
        assert await b.provider.release_session(["s"]) == ["released"]
        assert len(await b.take(10)) == 1

    async def test_a_release_ends_no_hold_for_ever(self, cluster: Cluster) -> None:
        """A session can be released in spite of a hold (contract: SessionHold)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await a.hold("i", "s", 10 * SESSION_LOCK)
        assert await b.provider.release_session(["s"]) == ["released"]
        await cluster.use(b, "s")
        assert await cluster.holders() == {"s": "b"}

    async def test_a_release_is_no_change_of_holder_until_another_claims(self, cluster: Cluster) -> None:
        """The same incarnation gets its epoch back after a release; a claim by another one is reported (contract:
        SessionWatch).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        first = await cluster.use(a, "s")
        at = await a.own("i")
        await a.go_on(at, consumed=[m.id for m in at.messages], watches=[SessionWatch("s", "moved")])
        await a.provider.release_session(["s"])
        assert (await cluster.use(a, "s")).session_epoch == first.session_epoch
        assert await a.take_instances() == []
        await a.provider.release_session(["s"])
        await cluster.use(b, "s")
        (notified,) = await a.take_instances()
        assert [message.payload for message in notified.messages] == ["moved"]

    # -- with a turn

    async def test_a_turn_releases_sessions(self, cluster: Cluster) -> None:
        """A turn releases sessions, its own acked one and one of another worker included (contract:
        Turn.release_sessions).
        """
        a, _ = await cluster.worker("a"), await cluster.holder("b", "theirs")
        await cluster.enqueue("s", "other")
        items = {item.session_id: item for item in await a.take_all()}
        await a.ack(items["other"])
        at = await a.own("i")
        release = ["s", "theirs", "never"]
        assert (await a.commit_one(at, acks=[items["s"].lock], release_sessions=release)).committed
        assert await cluster.holders() == {"other": "a"}

    async def test_a_turn_keeps_a_session_that_has_work_in_hand(self, cluster: Cluster) -> None:
        """An item that the turn locks here keeps the session; an item that it cancels does not (contract:
        Turn.release_sessions).
        """
        a = await cluster.holder("a", "s")
        at = await a.own("i")
        here = replace(work_item(at, 1, "s"), lock_here=True)
        assert (await a.commit_one(at, work_items=[here], release_sessions=["s"])).committed
        assert await cluster.holders() == {"s": "a"}
        at = replace(at, event_count=1)
        assert (await a.commit_one(at, cancel_activities=[1], release_sessions=["s"])).committed
        assert await cluster.holders() == {}

    async def test_a_turn_that_is_refused_releases_nothing(self, cluster: Cluster) -> None:
        """A refused turn releases no session, and other turns of the batch do (contract: Turn)."""
        a = await cluster.holder("a", "s", "t")
        first, second = await a.own("i"), await a.own("j")
        turns = [
            turn(replace(first, event_count=7), release_sessions=["s"]),
            turn(second, release_sessions=["t"]),
        ]
        assert [result.committed for result in await a.commit(*turns)] == [False, True]
        assert await cluster.holders() == {"s": "a"}

    # -- to make room

    async def test_sessions_make_room_in_the_order_of_their_holder(self, cluster: Cluster) -> None:
        """A session at rest is freed immediately if no other worker has room, in the order that its holder gives, and
        the work is offered to the holder (contract: release_idle_session).
        """
        a = await cluster.worker("a", capacity=3)
        await cluster.worker("full", capacity=0)
        for name in ("dear", "cheap", "in use"):
            await cluster.use(a, name)
        order = _order("cheap", "dear", in_use=["in use"])
        assert await make_room(a, 3, order=order) == []
        await cluster.enqueue("new")
        assert await make_room(a, 4, order=order) == []
        assert await make_room(a, 3, order=order) == ["cheap"]
        assert await make_room(a, 3, order=order) == []
        assert (await a.take_one(max_sessions=3)).session_id == "new"
        assert set(await cluster.holders()) == {"dear", "in use", "new"}

    async def test_sessions_that_the_holder_does_not_know_make_room_first(self, cluster: Cluster) -> None:
        """Nothing of a session that its holder does not know is in memory: it is freed first, then the least recently
        touched (contract: release_idle_session).
        """
        a = await cluster.worker("a")
        for name in ("known", "older", "old"):
            await cluster.use(a, name)
            await cluster.pass_time(1.0)
        await cluster.enqueue("new", "newer")
        assert await make_room(a, 3, limit=1, order=_order("known")) == ["older"]
        assert await make_room(a, 2, limit=1, order=_order("known")) == ["old"]

    async def test_room_of_other_workers_is_used_first(self, cluster: Cluster) -> None:
        """Work waits up to `OFFER_SECONDS` for another worker of the app that has room. Room of other apps, and of
        workers that drain, does not count (contract: release_idle_session).
        """
        a, b = await cluster.worker("a", capacity=1), await cluster.worker("b", capacity=1)
        await cluster.worker("other app", capacity=9, app="other")
        await (await cluster.worker("drains", capacity=9)).drain()
        await cluster.use(a, "s")
        await cluster.enqueue("new")
        assert await make_room(a, 1) == []
        await cluster.pass_time(OFFER_SECONDS)
        assert await make_room(a, 1) == ["s"]
        await a.ack(await a.take_one(max_sessions=1))
        await cluster.enqueue("newer")
        assert await make_room(a, 1) == []
        assert (await b.take_one(max_sessions=1)).session_id == "newer"
        await cluster.enqueue("newest")
        assert await make_room(a, 1) == ["new"]

    async def test_there_is_room_for_as_many_as_wait(self, cluster: Cluster) -> None:
        """The number of freed sessions is that of the waiting work, oldest first, and two workers do not free sessions
        for the same work (contract: release_idle_session).
        """
        a, b = await cluster.worker("a", capacity=3), await cluster.worker("b", capacity=3)
        for number in range(3):
            await cluster.use(a, f"a{number}")
            await cluster.use(b, f"b{number}")
        await cluster.enqueue("s", "t", "t", "u")
        assert await make_room(a, 3, limit=3) == ["a0", "a1"]
        assert await make_room(b, 3) == ["b0"]
        assert await make_room(a, 3) == await make_room(b, 3) == []
        assert {item.session_id for item in await a.take_all(max_sessions=3)} == {"s", "t"}
        assert {item.session_id for item in await b.take_all(max_sessions=3)} == {"u"}

    async def test_a_session_that_something_keeps_makes_no_room(self, cluster: Cluster) -> None:
        """A session with locked, waiting or delayed work, or with a hold, is not freed, however long others wait
        (contract: release_idle_session).
        """
        a = await cluster.worker("a")
        for name in ("in hand", "later", "held", "queued", "rested"):
            await cluster.use(a, name)
        await a.hold("i", "held", 10 * SESSION_LOCK)
        await cluster.give(a, "in hand")
        await cluster.enqueue("queued")
        await cluster.enqueue("later", delay=SESSION_LOCK)
        await cluster.enqueue("new", "newer")
        await cluster.pass_time(REST)
        order = _order("in hand", "later", "held", "queued", "rested")
        assert await make_room(a, 5, order=order) == ["rested"]

    async def test_a_session_in_use_makes_room_only_for_what_has_waited(self, cluster: Cluster) -> None:
        """A session that is in use is the last to be freed, and for work that has waited for `OFFER_SECONDS` (contract:
        release_idle_session).
        """
        a = await cluster.worker("a")
        for name in ("busy", "busier", "rested"):
            await cluster.use(a, name)
        order = _order("rested", in_use=["busy", "busier"])
        await cluster.enqueue("late")
        await cluster.pass_time(OFFER_SECONDS)
        await cluster.enqueue("new", "newer")
        assert await make_room(a, 3, order=order) == ["rested"]
        await a.take_one(max_sessions=3)
        assert await make_room(a, 3, order=order) == []
        await cluster.pass_time(OFFER_SECONDS)
        assert await make_room(a, 3, limit=1, order=order) == ["busy"]

    async def test_a_session_whose_only_user_has_ended_makes_room_first(self, cluster: Cluster) -> None:
        """A session whose only user has ended is freed before others, also if it is in use (contract:
        release_idle_session).
        """
        a = await cluster.worker("a")
        for name in ("of none", "of j", "of i"):
            await cluster.use(a, name)
        at = await a.own("i")
        await a.own("j")
        await cluster.enqueue("new")
        users = {"of j": "j", "of i": "i"}
        busy = [IdleSession(session_id=name, only_user=user, in_use=True) for name, user in users.items()]
        await a.go_on(at, update=InstanceUpdate(status="completed"))
        assert await make_room(a, 3, order=[*_order("of none"), *busy]) == ["of i"]
        await a.take_one(max_sessions=3)
        await cluster.enqueue("newer")
        last = IdleSession(session_id="of none", only_user="no such")
        assert await make_room(a, 3, order=[*busy, last]) == ["of none"]

    async def test_no_room_is_made_for_what_the_caller_could_not_have(self, cluster: Cluster) -> None:
        """No session is freed for unknown or foreign work, nor for a caller that drains, is dead or has capacity 0
        (contract: release_idle_session).
        """
        a, b = await cluster.holder("a", "s"), await cluster.holder("b", "theirs")
        await cluster.enqueue("theirs")
        await cluster.enqueue("unknown", name="unheard of")
        await cluster.pass_time(REST + 1)
        assert await make_room(a, 1) == []
        await cluster.enqueue("new")
        await cluster.pass_time(REST + 1)
        assert await make_room(a, 0) == []
        other = Peer(a.provider, replace(a.identity, incarnation=b.identity.incarnation))
        assert await make_room(other, 1) == []
        await b.drain()
        assert await make_room(b, 1) == []
        assert await make_room(a, 1) == ["s"]


async def make_room(
    peer: Peer, max_sessions: int, *, limit: int = 10, order: Sequence[IdleSession] = ()
) -> Sequence[str]:
    """The sessions that the worker releases for others; sorted."""
    options = fetch_options(limit, max_sessions=max_sessions)
    return sorted(await peer.provider.release_idle_session(peer.identity, options, order=order))


def _order(*rested: str, in_use: Sequence[str] = ()) -> list[IdleSession]:
    return [IdleSession(session_id=name, in_use=name in in_use) for name in (*rested, *in_use)]
