"""Placing: where the new work items of a committed turn go, above all those that the committer wants to run itself."""

from __future__ import annotations

from dataclasses import replace

from affinity.provider.conformance.base import Rules
from affinity.provider.conformance.builders import ITEM_LOCK, SESSION_LOCK, SHORT_LEASE, work_item
from affinity.provider.conformance.peer import Peer
from affinity.provider.conformance.world import World
from affinity.provider.contract import NewWorkItem, OrchestrationItem, Placed


class PlacingRules(Rules):
    """``TurnResult.placed`` and ``NewWorkItem.lock_here`` (design 5.4)."""

    async def test_a_session_free_item_is_locked_here(self, world: World) -> None:
        """With a fresh token, as a first attempt (contract: commit_turn)."""
        a, b = await world.worker("a"), await world.worker("b")
        instance = await a.own("i")
        placed = await place(a, instance, lock_here(instance, 1))
        assert placed.item is not None
        assert placed.item.lock.key == (instance.instance_id, instance.execution_id, 1)
        assert (placed.item.name, placed.item.payload) == ("work", "input")
        assert (placed.item.session_id, placed.item.session_epoch) == (None, None)
        assert (placed.item.attempts, placed.item.failures, placed.item.unknown_for) == (1, 0, None)
        assert await b.take_all() == []
        assert await a.ack(placed.item) == [True]

    async def test_an_item_of_a_session_held_here_is_locked_here(self, world: World) -> None:
        """Under the epoch of the lease, which is touched (contract: commit_turn)."""
        a = await world.worker("a")
        instance = await a.own("i")
        held = await hold(world, a, "s")
        await world.advance(SESSION_LOCK / 2)
        placed = await place(a, instance, lock_here(instance, 1, "s"))
        assert placed.item is not None
        assert (placed.item.session_id, placed.item.session_epoch) == ("s", held)
        assert (await world.session("s")).expires_in > SESSION_LOCK - 10
        assert await a.renew(placed.item) == [True]

    async def test_the_fused_turn_takes_the_place_of_ack_and_fetch(self, world: World) -> None:
        """The result of one activity in, the next one out, in one transaction (design 5.4)."""
        a = await world.worker("a")
        instance = await a.own("i")
        await world.enqueue("s")
        running = await a.take_one()
        for number in range(1, 6):
            at = replace(instance, event_count=number - 1)
            result = await a.commit_one(at, acks=[running.lock], work_items=[lock_here(at, number, "s")])
            following = result.placed[0].item
            assert following is not None
            assert following.session_epoch == running.session_epoch
            running = following
        assert await a.check(running) == [True]

    async def test_an_item_of_a_session_held_elsewhere_goes_to_its_holder(self, world: World) -> None:
        """Whom the answer names (contract: Placed.holder)."""
        a, b = await world.worker("a"), await world.worker("b")
        instance = await a.own("i")
        epoch = await hold(world, b, "s")
        for number, wanted in enumerate((lock_here(instance, 1, "s"), work_item(instance, 2, "s"))):
            placed = await place(a, replace(instance, event_count=number), wanted)
            assert placed == Placed(item=None, holder="b")
        assert await a.take_all() == []
        assert [item.session_epoch for item in await b.take_all()] == [epoch, epoch]

    async def test_an_item_of_a_session_that_nobody_holds_is_for_anyone(self, world: World) -> None:
        """A commit claims nothing, even where it may lock (contract: Placed)."""
        a, b = await world.worker("a"), await world.worker("b")
        instance = await a.own("i")
        assert await place(a, instance, lock_here(instance, 1, "s")) == Placed(item=None, holder=None)
        assert await world.sessions() == {}
        assert (await b.take_one()).session_id == "s"

    async def test_an_expired_session_is_held_by_nobody(self, world: World) -> None:
        """Not even here (contract: held session)."""
        a = await world.worker("a")
        instance = await a.own("i")
        await hold(world, a, "s")
        await world.advance(SESSION_LOCK + 1)
        assert await place(a, instance, lock_here(instance, 1, "s")) == Placed(item=None, holder=None)
        assert await world.holders() == {}

    async def test_a_session_of_a_dead_worker_is_held_by_nobody(self, world: World) -> None:
        """Its lock may run, its worker does not (design 4.2)."""
        a, b = await world.worker("a"), await world.worker("b", SHORT_LEASE)
        instance = await a.own("i")
        await hold(world, b, "s")
        await world.advance(SHORT_LEASE + 1)
        assert await place(a, instance, lock_here(instance, 1, "s")) == Placed(item=None, holder=None)
        await world.sweep_all()
        assert (await a.take_one()).session_id == "s"

    async def test_an_item_that_is_not_wanted_here_is_queued(self, world: World) -> None:
        """Though it could have been locked; its holder is named (contract: NewWorkItem.lock_here)."""
        a, b = await world.worker("a"), await world.worker("b")
        instance = await a.own("i")
        await hold(world, a, "s")
        items = [work_item(instance, 1), work_item(instance, 2, "s")]
        result = await a.commit_one(instance, work_items=items)
        assert list(result.placed) == [Placed(item=None, holder=None), Placed(item=None, holder="a")]
        assert [item.session_id for item in await b.take_all()] == [None]
        assert [item.session_id for item in await a.take_all()] == ["s"]

    async def test_a_draining_worker_locks_nothing_here(self, world: World) -> None:
        """Its turns are committed, the work is for others (design 4.10; contract: commit_turn)."""
        a, b = await world.worker("a"), await world.worker("b")
        instance = await a.own("i")
        await a.drain()
        assert await place(a, instance, lock_here(instance, 1)) == Placed(item=None, holder=None)
        assert (await b.take_one()).attempts == 1

    async def test_a_dead_worker_commits_nothing(self, world: World) -> None:
        """It owns no instance any more, so it locks nothing either (contract: owned instance)."""
        a = await world.worker("a", SHORT_LEASE)
        instance = await a.own("i")
        await world.advance(SHORT_LEASE + 1)
        assert not (await a.commit_one(instance, work_items=[lock_here(instance, 1)])).committed
        assert (await a.provider.count_work())["work_items"] == 0

    async def test_a_delayed_item_is_not_locked_here(self, world: World) -> None:
        """It waits in the queue until it is visible, then goes to the holder (contract: commit_turn)."""
        a = await world.worker("a")
        instance = await a.own("i")
        await hold(world, a, "s")
        items = [replace(lock_here(instance, 1), delay=60), replace(lock_here(instance, 2, "s"), delay=60)]
        result = await a.commit_one(instance, work_items=items)
        assert [placed.item for placed in result.placed] == [None, None]
        assert await a.take_all() == []
        await world.advance(60)
        assert len(await a.take_all()) == 2

    async def test_an_item_locked_here_is_an_item_like_any_other(self, world: World) -> None:
        """Its lock expires and it is delivered again, the attempt counted (contract: commit_turn)."""
        a, b = await world.worker("a"), await world.worker("b")
        instance = await a.own("i")
        await place(a, instance, lock_here(instance, 1))
        await world.pass_time(ITEM_LOCK - 10)
        assert await b.take() == []
        await world.pass_time(11)
        assert (await b.take_one()).attempts == 2

    async def test_the_answer_has_a_place_for_each_item_in_order(self, world: World) -> None:
        """A mix of all cases in one turn (contract: TurnResult.placed)."""
        a, b = await world.worker("a"), await world.worker("b")
        instance = await a.own("i")
        await hold(world, a, "mine")
        await hold(world, b, "other")
        wanted = [lock_here(instance, n, s) for n, s in enumerate((None, "other", "mine", "nobody", "mine", None), 1)]
        result = await a.commit_one(instance, work_items=wanted)
        assert [placed.holder for placed in result.placed if placed.item is None] == ["b", None]
        here = [placed.item.lock.key.activity_id for placed in result.placed if placed.item is not None]
        assert here == [1, 3, 5, 6]

    async def test_a_lost_reply_of_a_commit_is_disowned(self, world: World) -> None:
        """Items locked here that the worker has never heard of are freed, uncounted (contract: disown_work_item)."""
        a, b = await world.worker("a"), await world.worker("b")
        instance = await a.own("i")
        await place(a, instance, lock_here(instance, 1))
        assert await a.disown() == 1
        assert (await b.take_one()).attempts == 1


def lock_here(at: OrchestrationItem, activity_id: int, session_id: str | None = None) -> NewWorkItem:
    """An activity that the committer would like to run itself."""
    return replace(work_item(at, activity_id, session_id), lock_here=True)


async def place(peer: Peer, at: OrchestrationItem, item: NewWorkItem) -> Placed:
    """Commit a turn with one work item; where it went."""
    result = await peer.commit_one(at, work_items=[item])
    assert result.committed
    (placed,) = result.placed
    return placed


async def hold(world: World, peer: Peer, session_id: str) -> int:
    """Let the worker claim a session; its epoch."""
    await world.enqueue(session_id)
    item = await peer.take_one()
    assert await peer.ack(item) == [True]
    return item.session_epoch or 0
