"""Holds: a session stays with its holder while an orchestration waits, for a time, and no longer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from affinity.provider.contract import InstanceUpdate, SessionHold
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import SESSION_LOCK, about
from affinity_conformance.providers.cluster import Cluster

HOLD: Final = 1_000.0

ENDS: Final = {
    "completed": InstanceUpdate(status="completed", output="1"),
    "failed": InstanceUpdate(status="failed", error="1"),
    "cancelled": InstanceUpdate(status="cancelled", error="1"),
    "continued": InstanceUpdate(status="running", continued=True),
}


class HoldRules(Rules):
    """`Turn.holds` and `Turn.ended_holds`: when a hold begins, and when it ends."""

    async def test_a_held_session_outlives_its_lock_but_not_its_hold(self, cluster: Cluster) -> None:
        """A hold keeps the session for its seconds from the commit (contract: SessionHold)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await a.hold("i", "s", HOLD)
        assert about((await cluster.session("s")).expires_in, HOLD)
        await cluster.enqueue("s")
        await cluster.pass_time(HOLD - 20)
        assert await b.take() == []
        assert await cluster.holders() == {"s": "a"}
        await cluster.pass_time(30)
        assert (await b.take_one()).session_id == "s"

    async def test_the_held_session_is_idle_and_its_holder_has_room(self, cluster: Cluster) -> None:
        """A held session occupies no slot of work, and its new items go to the holder (contract: SessionHold)."""
        a = await cluster.worker("a")
        first = await cluster.use(a, "s")
        await a.hold("i", "s", HOLD)
        await cluster.pass_time(HOLD - 20)
        assert (await cluster.session("s")).queued == 0
        await cluster.enqueue("s", None)
        items = {item.session_id: item for item in await a.take_all()}
        assert set(items) == {"s", None}
        assert items["s"].session_epoch == first.session_epoch

    async def test_who_holds_need_not_be_who_waits(self, cluster: Cluster) -> None:
        """An instance may hold a session that another worker than its owner holds (contract: SessionHold)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await b.hold("i", "s", HOLD)
        await cluster.enqueue("s")
        await cluster.pass_time(HOLD - 20)
        assert await b.take() == []
        assert (await a.take_one()).session_id == "s"

    async def test_a_short_hold_shortens_nothing(self, cluster: Cluster) -> None:
        """A hold shorter than the lock leaves the lock unchanged (contract: SessionHold)."""
        a = await cluster.holder("a", "s")
        await a.hold("i", "s", 1.0)
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)

    async def test_a_session_without_a_holder_is_not_held_by_it(self, cluster: Cluster) -> None:
        """A hold of a session without a holder creates no row and extends no expired lock (contract: SessionHold)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.hold("i", "never used", HOLD)
        await cluster.use(a, "s")
        await cluster.advance(SESSION_LOCK + 1)
        await a.hold("j", "s", HOLD)
        assert set(await cluster.sessions()) == {"s"}
        assert await cluster.holders() == {}
        assert (await cluster.use(b, "s")).session_id == "s"

    async def test_ending_a_hold_cuts_the_lock_back(self, cluster: Cluster) -> None:
        """The end of a hold shortens the lock to the session lock timeout from now (contract: SessionHold)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        at = await a.hold("i", "s", HOLD)
        await cluster.advance(100)
        await a.go_on(at, ended_holds=[1])
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)
        await cluster.enqueue("s")
        await cluster.pass_time(SESSION_LOCK - 20)
        assert await b.take() == []
        await cluster.pass_time(30)
        assert (await b.take_one()).session_id == "s"

    async def test_the_latest_of_several_holds_governs(self, cluster: Cluster) -> None:
        """The hold that ends last decides, in whatever order they began (contract: SessionHold)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        long = await a.hold("i", "s", 3 * HOLD)
        middle = await b.hold("j", "s", 2 * HOLD)
        short = await b.hold("k", "s", HOLD)
        assert about((await cluster.session("s")).expires_in, 3 * HOLD)
        await b.go_on(short, ended_holds=[1])
        assert about((await cluster.session("s")).expires_in, 3 * HOLD)
        await a.go_on(long, ended_holds=[1])
        assert about((await cluster.session("s")).expires_in, 2 * HOLD)
        await b.go_on(middle, ended_holds=[1])
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)

    async def test_holds_of_one_instance_are_told_apart(self, cluster: Cluster) -> None:
        """Holds of one instance end by their ids; an unknown id or one of another instance ends nothing (contract:
        Turn.ended_holds).
        """
        a = await cluster.holder("a", "s", "t")
        holds = [SessionHold("s", 1, HOLD), SessionHold("s", 2, 2 * HOLD), SessionHold("t", 3, HOLD)]
        at = await a.go_on(await a.own("i"), holds=holds)
        other = await a.go_on(await a.own("j"), ended_holds=[1, 2, 3])
        at = await a.go_on(at, ended_holds=[9])
        assert about((await cluster.session("s")).expires_in, 2 * HOLD)
        await a.go_on(at, ended_holds=[2])
        assert about((await cluster.session("s")).expires_in, HOLD)
        assert about((await cluster.session("t")).expires_in, HOLD)
        await a.go_on(other, ended_holds=[1])
        assert about((await cluster.session("s")).expires_in, HOLD)

    async def test_a_hold_that_is_over_cuts_nothing_short(self, cluster: Cluster) -> None:
        """The session lock timeout is left from the end of the longer of two holds (contract: SessionHold)."""
        a = await cluster.holder("a", "s")
        await a.hold("i", "s", 400.0)
        long = await a.hold("j", "s", HOLD)
        await cluster.advance(500)
        await a.go_on(long, ended_holds=[1])
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)

    async def test_ending_a_hold_after_the_time_is_over_extends_nothing(self, cluster: Cluster) -> None:
        """Ending a hold whose time is over does not extend the lock (contract: SessionHold)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        at = await a.hold("i", "s", HOLD)
        await cluster.advance(HOLD + 10)
        await a.go_on(at, ended_holds=[1])
        assert await cluster.holders() == {}
        assert (await cluster.use(b, "s")).session_id == "s"

    async def test_cutting_back_extends_nothing(self, cluster: Cluster) -> None:
        """Ending a hold does not extend a lock that is shorter than the session lock timeout (contract:
        SessionHold).
        """
        a = await cluster.holder("a", "s")
        at = await a.hold("i", "s", SESSION_LOCK + 50)
        await cluster.advance(200)
        await a.go_on(at, ended_holds=[1])
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK - 150)

    async def test_a_turn_may_touch_hold_and_end_holds(self, cluster: Cluster) -> None:
        """One turn may end a hold, begin another and ack a result of the session (contract: Turn)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", "s", "s")
        items = await a.take(10)
        at = await a.go_on(await a.own("i"), acks=[items[0].lock], holds=[SessionHold("s", 1, 3 * HOLD)])
        assert about((await cluster.session("s")).expires_in, 3 * HOLD)
        at = await a.go_on(at, acks=[items[1].lock], ended_holds=[1], holds=[SessionHold("s", 2, HOLD)])
        assert about((await cluster.session("s")).expires_in, HOLD)
        await a.go_on(at, acks=[items[2].lock], ended_holds=[2])
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)

    async def test_a_hold_that_ends_in_its_own_turn_holds_nothing(self, cluster: Cluster) -> None:
        """A hold that the same turn ends has no effect (contract: Turn.ended_holds)."""
        a = await cluster.holder("a", "s")
        await a.go_on(await a.own("i"), holds=[SessionHold("s", 1, HOLD)], ended_holds=[1])
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)

    @pytest.mark.parametrize("update", ENDS.values(), ids=ENDS.keys())
    async def test_a_hold_of_the_turn_that_ends_its_execution_holds_nothing(
        self, cluster: Cluster, update: InstanceUpdate
    ) -> None:
        """A hold of the last turn of an execution has no effect (contract: SessionHold)."""
        a = await cluster.holder("a", "s")
        await a.go_on(await a.own("i"), holds=[SessionHold("s", 1, HOLD)], update=update)
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)

    async def test_ending_a_hold_leaves_a_session_that_moved_alone(self, cluster: Cluster) -> None:
        """Ending a hold does not shorten the lock of a new holder (contract: SessionHold)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        at = await a.hold("i", "s", SESSION_LOCK + 100)
        await cluster.pass_time(SESSION_LOCK + 110)
        await cluster.use(b, "s")
        await cluster.advance(100)
        await a.go_on(at, ended_holds=[1])
        assert await cluster.holders() == {"s": "b"}
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK - 100)

    @pytest.mark.parametrize("update", ENDS.values(), ids=ENDS.keys())
    async def test_a_hold_ends_with_its_execution(self, cluster: Cluster, update: InstanceUpdate) -> None:
        """Holds end with their execution, however it ends; holds of other instances stay (contract: SessionHold)."""
        a = await cluster.holder("a", "s", "t")
        at = await a.go_on(await a.own("i"), holds=[SessionHold("s", 1, HOLD), SessionHold("t", 2, HOLD)])
        await a.hold("j", "t", HOLD)
        await a.go_on(at, update=update)
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)
        assert about((await cluster.session("t")).expires_in, HOLD)

    async def test_a_hold_ends_with_its_instance(self, cluster: Cluster) -> None:
        """Holds end when their instance is deleted by force (contract: delete_instance)."""
        a = await cluster.holder("a", "s")
        await a.hold("i", "s", HOLD)
        long = await a.hold("j", "s", 2 * HOLD)
        assert list(await a.provider.delete_instance(["i"], force=True)) == ["deleted"]
        assert about((await cluster.session("s")).expires_in, 2 * HOLD)
        await a.go_on(long, ended_holds=[1])
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)
        await a.hold("k", "s", HOLD)
        assert list(await a.provider.delete_instance(["k"], force=True)) == ["deleted"]
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)

    async def test_the_next_execution_may_hold_under_the_same_id(self, cluster: Cluster) -> None:
        """The next execution may use a hold id again (contract: SessionHold)."""
        a = await cluster.holder("a", "s")
        at = await a.hold("i", "s", HOLD)
        await a.go_on(at, update=ENDS["continued"])
        at = await a.go_on(
            replace(at, execution_id=at.execution_id + 1, event_count=0), holds=[SessionHold("s", 1, 2 * HOLD)]
        )
        assert about((await cluster.session("s")).expires_in, 2 * HOLD)
        await a.go_on(at, ended_holds=[1])
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)

    async def test_a_refused_turn_holds_nothing_and_ends_nothing(self, cluster: Cluster) -> None:
        """A refused turn begins and ends no hold (contract: Turn)."""
        a, b = await cluster.holder("a", "s", "t"), await cluster.worker("b")
        at = await a.hold("i", "s", HOLD)
        assert not (await b.commit_one(at, holds=[SessionHold("t", 2, HOLD)], ended_holds=[1])).committed
        assert about((await cluster.session("s")).expires_in, HOLD)
        assert about((await cluster.session("t")).expires_in, SESSION_LOCK)
