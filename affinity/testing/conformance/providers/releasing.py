"""Sessions that are released early: by hand, with a turn, or to make room for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from affinity.provider.contract import OFFER_SECONDS, InstanceUpdate, SessionWatch
from affinity.testing.conformance.providers.base import Rules
from affinity.testing.conformance.providers.builders import SESSION_LOCK, fetch_options, turn, work_item
from affinity.testing.conformance.providers.cluster import Cluster
from affinity.testing.conformance.providers.peer import Peer

REST = 30.0
"""Seconds without work after which the worker of a test lets a session go."""


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

    async def test_the_least_recently_used_idle_session_makes_room(self, cluster: Cluster) -> None:
        """The least recently used idle session is freed for work that no worker took in time, and that work is offered
        to its holder (contract: release_idle_session).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        for name in ("old", "older", "young"):
            await cluster.use(a, name)
        await cluster.pass_time(REST)
        await cluster.use(a, "young")
        await cluster.use(a, "old")
        await cluster.pass_time(REST - 10)
        await cluster.enqueue("new")
        assert await make_room(a, 3) == []
        await cluster.pass_time(OFFER_SECONDS)
        assert await make_room(a, 4) == []
        assert await make_room(a, 3) == ["older"]
        assert await b.take() == []
        assert (await a.take_one(max_sessions=3)).session_id == "new"
        assert set(await cluster.holders()) == {"old", "young", "new"}

    async def test_there_is_room_for_as_many_as_wait(self, cluster: Cluster) -> None:
        """As many sessions are freed as there is work, and two workers do not free sessions for the same work
        (contract: release_idle_session).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        for number in range(3):
            await cluster.use(a, f"a{number}")
            await cluster.use(b, f"b{number}")
        await cluster.enqueue("s", "t", "t", "u")
        await cluster.pass_time(REST + 1)
        assert await make_room(a, 3, limit=3) == ["a0", "a1"]
        assert await make_room(b, 3) == ["b0"]
        assert await make_room(a, 3) == await make_room(b, 3) == []
        assert {item.session_id for item in await a.take_all(max_sessions=3)} == {"s", "t"}
        assert {item.session_id for item in await b.take_all(max_sessions=3)} == {"u"}

    async def test_a_session_that_something_keeps_makes_no_room(self, cluster: Cluster) -> None:
        """A session with locked or delayed work, with a hold, or touched lately is not freed (contract:
        release_idle_session).
        """
        a = await cluster.worker("a")
        for name in ("in hand", "later", "held", "rested"):
            await cluster.use(a, name)
        await a.hold("i", "held", 10 * SESSION_LOCK)
        await cluster.give(a, "in hand")
        await cluster.enqueue("later", delay=SESSION_LOCK)
        await cluster.pass_time(REST - 1)
        await cluster.enqueue("new")
        await cluster.pass_time(OFFER_SECONDS)
        assert await make_room(a, 4, min_idle=REST + 5) == []
        assert await make_room(a, 4) == ["rested"]

    async def test_a_session_whose_only_user_has_ended_makes_room_first(self, cluster: Cluster) -> None:
        """A session whose only user has ended is freed before others and without being idle for a while (contract:
        release_idle_session).
        """
        a = await cluster.worker("a")
        for name in ("of i", "of j", "of none"):
            await cluster.use(a, name)
        at = await a.own("i")
        await a.own("j")
        await cluster.enqueue("new")
        await cluster.pass_time(OFFER_SECONDS)
        users = {"of j": "j", "of i": "i"}
        assert await make_room(a, 3, only_users=users) == []
        await a.go_on(at, update=InstanceUpdate(status="completed"))
        assert await make_room(a, 3, only_users=users) == ["of i"]
        await a.take_one(max_sessions=3)
        await cluster.enqueue("newer")
        await cluster.pass_time(OFFER_SECONDS)
        assert await make_room(a, 3, only_users={"of none": "no such"}) == ["of none"]

    async def test_who_is_alone_makes_room_immediately(self, cluster: Cluster) -> None:
        """A worker that is alone frees a session without waiting for others to take the work (contract:
        release_idle_session).
        """
        a = await cluster.holder("a", "s")
        await cluster.enqueue("new")
        assert await make_room(a, 1, min_idle=0.0) == []
        await (await cluster.enqueuer()).drain()
        assert await make_room(a, 1, min_idle=0.0) == ["s"]

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
    peer: Peer,
    max_sessions: int,
    *,
    limit: int = 10,
    min_idle: float = REST,
    only_users: Mapping[str, str] | None = None,
) -> Sequence[str]:
    """The sessions that the worker releases for others; sorted."""
    options = fetch_options(limit, max_sessions=max_sessions)
    freed = await peer.provider.release_idle_session(
        peer.identity, options, min_idle=min_idle, only_users=only_users or {}
    )
    return sorted(freed)
