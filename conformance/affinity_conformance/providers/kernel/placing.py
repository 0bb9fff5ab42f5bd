"""Placing: where a committed turn queues its work items, above all those that the committer asks for."""

from __future__ import annotations

from dataclasses import replace

from affinity.limits import MIN_SHARE
from affinity.provider.contract import OFFER_SECONDS, NewWorkItem, OrchestrationItem, Placed
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ITEM_LOCK, SESSION_LOCK, SHORT_LEASE, count_rows, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer


class PlacingRules(Rules):
    """``TurnResult.placed``, ``NewWorkItem.lock_here`` and ``claim_here``."""

    async def test_a_session_free_item_is_locked_here(self, cluster: Cluster) -> None:
        """A session-free item with ``lock_here`` is locked to the committer with a fresh token and attempt 1 (contract:
        commit_turn).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        placed = await place(a, instance, lock_here(instance, 1))
        assert placed.item is not None
        assert placed.item.lock.key == (instance.instance_id, instance.execution_id, 1)
        assert (placed.item.name, placed.item.payload) == ("work", "input")
        assert (placed.item.session_id, placed.item.session_epoch) == (None, None)
        assert (placed.item.attempts, placed.item.failures, placed.item.unknown_for) == (1, 0, None)
        assert await b.take_all() == []
        assert await a.ack(placed.item) == [True]

    async def test_an_item_of_a_session_held_here_is_locked_here(self, cluster: Cluster) -> None:
        """An item of a session that the committer holds is locked under its epoch, and the session is touched
        (contract: commit_turn).
        """
        a, instance = await cluster.owner("a", "i")
        held = await hold(cluster, a, "s")
        await cluster.advance(SESSION_LOCK / 2)
        placed = await place(a, instance, lock_here(instance, 1, "s"))
        assert placed.item is not None
        assert (placed.item.session_id, placed.item.session_epoch) == ("s", held)
        assert (await cluster.session("s")).expires_in > SESSION_LOCK - 10
        assert await a.renew(placed.item) == [True]

    async def test_the_fused_turn_takes_the_place_of_ack_and_fetch(self, cluster: Cluster) -> None:
        """One transaction acks a result, records it and returns the next item locked."""
        a, instance = await cluster.owner("a", "i")
        running = await cluster.give(a, "s")
        for number in range(1, 6):
            at = replace(instance, event_count=number - 1)
            result = await a.commit_one(at, acks=[running.lock], work_items=[lock_here(at, number, "s")])
            following = result.placed[0].item
            assert following is not None
            assert following.session_epoch == running.session_epoch
            running = following
        assert await a.check(running) == [True]

    async def test_an_item_of_a_session_held_elsewhere_goes_to_its_holder(self, cluster: Cluster) -> None:
        """An item of a session that another worker holds is queued, and the result names the holder (contract:
        Placed.holder).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        epoch = await hold(cluster, b, "s")
        for number, wanted in enumerate((lock_here(instance, 1, "s"), work_item(instance, 2, "s"))):
            placed = await place(a, replace(instance, event_count=number), wanted)
            assert placed == Placed(item=None, holder="b")
        assert await a.take_all() == []
        assert [item.session_epoch for item in await b.take_all()] == [epoch, epoch]

    async def test_an_item_of_a_session_without_a_holder_is_for_any_worker(self, cluster: Cluster) -> None:
        """A commit claims no session: any worker can fetch the item (contract: Placed)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        assert await place(a, instance, lock_here(instance, 1, "s")) == Placed(item=None, holder=None)
        assert await cluster.sessions() == {}
        assert (await b.take_one()).session_id == "s"

    async def test_an_expired_session_has_no_holder(self, cluster: Cluster) -> None:
        """An expired session of the committer itself counts as not held (contract: held session)."""
        a, instance = await cluster.owner("a", "i")
        await hold(cluster, a, "s")
        await cluster.advance(SESSION_LOCK + 1)
        assert await place(a, instance, lock_here(instance, 1, "s")) == Placed(item=None, holder=None)
        assert await cluster.holders() == {}

    async def test_a_session_of_a_dead_worker_has_no_holder(self, cluster: Cluster) -> None:
        """A session of a dead worker counts as not held though its lock has time left."""
        a, b = await cluster.worker("a"), await cluster.worker("b", SHORT_LEASE)
        instance = await a.own("i")
        await hold(cluster, b, "s")
        await cluster.advance(SHORT_LEASE + 1)
        assert await place(a, instance, lock_here(instance, 1, "s")) == Placed(item=None, holder=None)
        await cluster.sweep_all()
        assert (await a.take_one()).session_id == "s"

    async def test_an_item_that_is_not_wanted_here_is_queued(self, cluster: Cluster) -> None:
        """An item is queued unless ``lock_here`` is set, and the result names the holder of its session (contract:
        NewWorkItem.lock_here).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await hold(cluster, a, "s")
        items = [work_item(instance, 1), work_item(instance, 2, "s")]
        result = await a.commit_one(instance, work_items=items)
        assert list(result.placed) == [Placed(item=None, holder=None), Placed(item=None, holder="a")]
        assert [item.session_id for item in await b.take_all()] == [None]
        assert [item.session_id for item in await a.take_all()] == ["s"]

    async def test_a_draining_worker_locks_nothing_here(self, cluster: Cluster) -> None:
        """Turns of a draining worker commit, and their items are queued for other workers (contract:
        commit_turn).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await a.drain()
        assert await place(a, instance, lock_here(instance, 1)) == Placed(item=None, holder=None)
        assert (await b.take_one()).attempts == 1

    async def test_a_dead_worker_commits_nothing(self, cluster: Cluster) -> None:
        """A worker whose lease has ended commits no turn and locks nothing (contract: owned instance)."""
        a, instance = await cluster.owner("a", "i", lease=SHORT_LEASE)
        await cluster.advance(SHORT_LEASE + 1)
        assert not (await a.commit_one(instance, work_items=[lock_here(instance, 1)])).committed
        assert (await count_rows(a.provider))["work_items"] == 0

    async def test_a_delayed_item_is_not_locked_here(self, cluster: Cluster) -> None:
        """A delayed item is queued and goes to the holder when it is visible (contract: commit_turn)."""
        a, instance = await cluster.owner("a", "i")
        await hold(cluster, a, "s")
        items = [replace(lock_here(instance, 1), delay=60), replace(lock_here(instance, 2, "s"), delay=60)]
        result = await a.commit_one(instance, work_items=items)
        assert [placed.item for placed in result.placed] == [None, None]
        assert await a.take_all() == []
        await cluster.advance(60)
        assert len(await a.take_all()) == 2

    async def test_an_item_locked_here_is_an_item_like_any_other(self, cluster: Cluster) -> None:
        """The lock of an item that was locked by a commit expires, and its attempt counts (contract: commit_turn)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await place(a, instance, lock_here(instance, 1))
        await cluster.pass_time(ITEM_LOCK - 10)
        assert await b.take() == []
        await cluster.pass_time(11)
        assert (await b.take_one()).attempts == 2

    async def test_the_answer_has_a_place_for_each_item_in_order(self, cluster: Cluster) -> None:
        """``placed`` has an entry for each new item, in order, for a mix of all cases (contract: TurnResult.placed)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await hold(cluster, a, "mine")
        await hold(cluster, b, "other")
        wanted = [lock_here(instance, n, s) for n, s in enumerate((None, "other", "mine", "free", "mine", None), 1)]
        result = await a.commit_one(instance, work_items=wanted)
        assert [placed.holder for placed in result.placed if placed.item is None] == ["b", None]
        here = [placed.item.lock.key.activity_id for placed in result.placed if placed.item is not None]
        assert here == [1, 3, 5, 6]

    async def test_items_of_a_lost_commit_reply_are_released(self, cluster: Cluster) -> None:
        """Items that a commit locked under unknown tokens are freed, uncounted (contract: release_unknown_locks)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await place(a, instance, lock_here(instance, 1))
        assert await a.release_unknown() == 1
        assert (await b.take_one()).attempts == 1

    # -- work of sessions that no worker holds, which the committer asks to claim

    async def test_an_item_can_be_offered_to_the_committer(self, cluster: Cluster) -> None:
        """An offered item is fetched by the committer only, whose fetch claims the session (contract:
        NewWorkItem.claim_here).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        assert await place(a, instance, claim_here(instance, 1)) == Placed(item=None, holder=None)
        assert await cluster.sessions() == {}
        await cluster.sweep_all()
        assert await b.take_all() == []
        item = await a.take_one()
        assert (item.session_id, item.attempts) == ("s", 1)
        assert await cluster.holders() == {"s": "a"}

    async def test_what_is_offered_comes_with_a_share_of_the_rest(self, cluster: Cluster) -> None:
        """Offered items come in addition to the share of unclaimed items (contract: fetch_work_item)."""
        a, _ = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        others = [f"s{number}" for number in range(2 * MIN_SHARE)]
        await cluster.enqueue(*others)
        await place(a, instance, claim_here(instance, 1, "mine"))
        assert {item.session_id for item in await a.take(100)} == {"mine", *others[:MIN_SHARE]}

    async def test_what_is_older_comes_before_what_is_offered(self, cluster: Cluster) -> None:
        """Older unclaimed items come before offered ones, also when only one session fits (contract:
        fetch_work_item).
        """
        a, instance = await cluster.owner("a", "i")
        await cluster.enqueue("older")
        await place(a, instance, claim_here(instance, 1, "mine"))
        assert [item.session_id for item in await a.take(10, max_sessions=1)] == ["older"]

    async def test_what_was_offered_and_not_taken_is_for_anyone(self, cluster: Cluster) -> None:
        """A sweep offers an item to all workers after `OFFER_SECONDS` (contract: OFFER_SECONDS)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await place(a, instance, claim_here(instance, 1))
        await cluster.pass_time(OFFER_SECONDS / 2)
        assert await b.take_all() == []
        await cluster.pass_time(OFFER_SECONDS)
        assert (await b.take_one()).session_id == "s"

    async def test_an_offer_to_a_full_worker_is_for_anyone_later(self, cluster: Cluster) -> None:
        """An item offered to a worker at its capacity goes to any worker after a sweep."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await hold(cluster, a, "other")
        await place(a, instance, claim_here(instance, 1))
        assert await a.take(max_sessions=1) == []
        await cluster.pass_time(OFFER_SECONDS + 1)
        assert (await b.take_one()).session_id == "s"

    async def test_an_offer_to_a_draining_worker_is_for_anyone_later(self, cluster: Cluster) -> None:
        """An item offered to a draining worker goes to any worker after a sweep."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await place(a, instance, claim_here(instance, 1))
        await a.drain()
        assert await a.take() == []
        await cluster.pass_time(OFFER_SECONDS + 1)
        assert (await b.take_one()).session_id == "s"

    async def test_an_offer_dies_with_its_worker(self, cluster: Cluster) -> None:
        """An offer ends when its worker dies or leaves."""
        a, b, c = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b"), await cluster.worker("c")
        first, second = await a.own("i"), await b.own("j")
        await place(a, first, claim_here(first, 1, "s"))
        await place(b, second, claim_here(second, 1, "t"))
        await b.leave()
        await cluster.pass_time(SHORT_LEASE + 1)
        assert {item.session_id for item in await c.take_all()} == {"s", "t"}

    async def test_an_offer_follows_the_session_that_somebody_else_claimed(self, cluster: Cluster) -> None:
        """An offered item goes to the worker that has claimed its session for another item."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await place(a, instance, claim_here(instance, 1))
        await cluster.enqueue("s")
        assert len(await b.take_all()) == 2
        assert await a.take_all() == []
        assert await cluster.holders() == {"s": "b"}

    async def test_nothing_is_offered_of_a_session_that_is_held(self, cluster: Cluster) -> None:
        """An item of a held session goes to the holder in spite of ``claim_here`` (contract:
        NewWorkItem.claim_here).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await hold(cluster, b, "s")
        await hold(cluster, a, "t")
        items = [replace(claim_here(instance, 1, "s"), lock_here=True), claim_here(instance, 2, "t")]
        result = await a.commit_one(
            instance, work_items=[*items, replace(claim_here(instance, 3, "t"), lock_here=True)]
        )
        assert [(placed.item is None, placed.holder) for placed in result.placed] == [
            (True, "b"),
            (True, "a"),
            (False, None),
        ]
        assert [item.lock.key.activity_id for item in await b.take_all()] == [1]

    async def test_a_delayed_item_is_offered_to_no_worker(self, cluster: Cluster) -> None:
        """A delayed item with ``claim_here`` goes to any worker when it is visible (contract:
        NewWorkItem.claim_here).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await place(a, instance, replace(claim_here(instance, 1), delay=60))
        await cluster.advance(60)
        assert (await b.take_one()).session_id == "s"

    async def test_a_session_free_item_is_offered_to_no_worker(self, cluster: Cluster) -> None:
        """A session-free item with ``claim_here`` goes to any worker (contract: NewWorkItem.claim_here)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await place(a, instance, replace(work_item(instance, 1), claim_here=True))
        assert (await b.take_one()).session_id is None


def claim_here(at: OrchestrationItem, activity_id: int, session_id: str = "s") -> NewWorkItem:
    """An activity with ``claim_here``."""
    return replace(work_item(at, activity_id, session_id), claim_here=True)


def lock_here(at: OrchestrationItem, activity_id: int, session_id: str | None = None) -> NewWorkItem:
    """An activity that the committer would like to run itself."""
    return replace(work_item(at, activity_id, session_id), lock_here=True)


async def place(peer: Peer, at: OrchestrationItem, item: NewWorkItem) -> Placed:
    """Commit a turn with one work item; where it went."""
    result = await peer.commit_one(at, work_items=[item])
    assert result.committed
    (placed,) = result.placed
    return placed


async def hold(cluster: Cluster, peer: Peer, session_id: str) -> int:
    """Let the worker claim a session; its epoch."""
    return (await cluster.use(peer, session_id)).session_epoch or 0
