"""Ordered items of one session run one after the other, in the order in which they were committed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from affinity.provider.contract import (
    InstanceUpdate,
    NewWorkItem,
    OrchestrationItem,
    Timeouts,
    WorkerTags,
    WorkItem,
    WorkKey,
)
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    ITEM_LOCK,
    SESSION_LOCK,
    SHORT_LEASE,
    fetch_options,
    message_ids,
    work_item,
)
from affinity_conformance.providers.cluster import Cluster, concurrently, retried
from affinity_conformance.providers.kernel.resets import replace_execution, reset
from affinity_conformance.providers.kernel.trees import child_of
from affinity_conformance.providers.peer import Peer


def ordered(at: OrchestrationItem, activity_id: int, session_id: str = "s", **fields: Any) -> NewWorkItem:
    """An ordered activity of the execution that ``at`` shows."""
    return replace(work_item(at, activity_id, session_id), ordered=True, **fields)


async def queue(peer: Peer, at: OrchestrationItem, *activity_ids: int, session_id: str = "s") -> OrchestrationItem:
    """Commit a turn with ordered items."""
    return await peer.go_on(at, work_items=[ordered(at, number, session_id) for number in activity_ids])


async def drained(worker: Peer) -> list[WorkKey]:
    """Take and ack until nothing is left; the keys in the order of the deliveries. Never is there more than one."""
    keys: list[WorkKey] = []
    while items := await worker.take(10):
        (item,) = items
        keys.append(item.lock.key)
        assert await worker.ack(item) == [True]
    return keys


class OrderRules(Rules):
    """``NewWorkItem.ordered``."""

    async def test_ordered_items_come_one_after_the_other(self, cluster: Cluster) -> None:
        """The next ordered item of a session is delivered when the one before it is gone (contract:
        NewWorkItem.ordered).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        keys = await cluster.enqueue("s", "s", "s", ordered=True)
        for key in keys:
            (item,) = await a.take(10)
            assert (item.lock.key, item.session_id, item.ordered, item.attempts) == (key, "s", True, 1)
            assert await a.take(10) == []
            assert await b.take(10) == []
            assert await a.ack(item) == [True]
        assert await a.take(10) == []

    async def test_the_order_is_of_all_instances_that_share_the_session(self, cluster: Cluster) -> None:
        """Ordered items of several instances come in the order of their commits (contract: NewWorkItem.ordered)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        at, other = await a.own("z"), await b.own("i")
        at = await queue(a, at, 1)
        other = await queue(b, other, 1, 2)
        await queue(a, at, 2)
        assert [(key.instance_id, key.activity_id) for key in await drained(a)] == [
            ("z", 1),
            ("i", 1),
            ("i", 2),
            ("z", 2),
        ]

    async def test_other_items_run_beside_them(self, cluster: Cluster) -> None:
        """Items that are not ordered, and ordered ones of other sessions, wait for none (contract:
        NewWorkItem.ordered).
        """
        a = await cluster.worker("a")
        first, blocked = await cluster.enqueue("s", "s", ordered=True)
        beside = await cluster.enqueue("s", None, "s")
        beside += (await cluster.enqueue("t", "t", ordered=True))[:1]
        items = await a.take(20)
        assert {item.lock.key for item in items} == {first, *beside}
        assert {item.lock.key for item in items if item.ordered} == {first, beside[-1]}
        await a.ack(*[item for item in items if not item.ordered])
        assert await a.take(20) == []
        await a.ack(*[item for item in items if item.lock.key == first])
        assert [item.lock.key for item in await a.take(20)] == [blocked]

    async def test_only_the_first_is_locked_here(self, cluster: Cluster) -> None:
        """A commit locks an ordered item to the committer if none is before it (contract: commit_turn)."""
        a, at = await cluster.owner("a", "i")
        await cluster.use(a, "s")
        two = [ordered(at, number, lock_here=True) for number in (1, 2)]
        free = replace(work_item(at, 3), lock_here=True)
        result = await a.commit_one(at, work_items=[*two, free])
        first, second, third = result.placed
        assert first.item is not None
        assert (first.item.lock.key.activity_id, first.item.ordered) == (1, True)
        assert (second.item, second.holder) == (None, "a")
        assert third.item is not None
        assert await a.take(10) == []
        assert await a.ack(first.item) == [True]
        assert [item.lock.key.activity_id for item in await a.take(10)] == [2]

    async def test_the_fused_turn_goes_on_where_none_waits(self, cluster: Cluster) -> None:
        """A turn that acks an ordered item locks the next one here, unless another instance's is before it (contract:
        commit_turn).
        """
        a = await cluster.worker("a")
        at, other = await a.own("i"), await a.own("j")
        await cluster.use(a, "s")
        result = await a.commit_one(at, work_items=[ordered(at, 1, lock_here=True)])
        for number in range(2, 5):
            at, running = replace(at, event_count=at.event_count + 1), result.placed[0].item
            assert running is not None
            result = await a.commit_one(at, acks=[running.lock], work_items=[ordered(at, number, lock_here=True)])
        at, running = replace(at, event_count=at.event_count + 1), result.placed[0].item
        assert running is not None
        await queue(a, other, 1)
        result = await a.commit_one(at, acks=[running.lock], work_items=[ordered(at, 5, lock_here=True)])
        assert result.placed[0].item is None
        assert [(key.instance_id, key.activity_id) for key in await drained(a)] == [("j", 1), ("i", 5)]

    async def test_a_refused_turn_changes_no_order(self, cluster: Cluster) -> None:
        """The ordered items of a turn that is not committed take no place (contract: Turn)."""
        a, at = await cluster.owner("a", "i")
        now = await queue(a, at, 1)
        assert not (await a.commit_one(at, work_items=[ordered(at, 2)])).committed
        await queue(a, now, 3)
        assert [key.activity_id for key in await drained(a)] == [1, 3]

    # -- ways to leave the queue

    async def test_a_cancelled_item_gives_way(self, cluster: Cluster) -> None:
        """Cancelling the first item, in hand or not, or a waiting item keeps the others in order (contract:
        Turn.cancel_activities).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        at = await queue(a, await a.own("i"), 1, 2, 3, 4, 5)
        at = await a.go_on(at, cancel_activities=[1, 4])
        (running,) = await b.take(10)
        assert running.lock.key.activity_id == 2
        at = await a.go_on(at, cancel_activities=[2])
        assert await b.check(running) == [False]
        assert [key.activity_id for key in await drained(b)] == [3, 5]
        await queue(a, at, 6)
        assert [key.activity_id for key in await drained(b)] == [6]

    async def test_an_item_that_its_own_turn_cancels_takes_no_place(self, cluster: Cluster) -> None:
        """A turn that cancels the first item lets an item run that it queues, unless it cancels that one too (contract:
        Turn.cancel_activities).
        """
        a = await cluster.worker("a")
        at = await queue(a, await a.own("i"), 1)
        await a.go_on(at, cancel_activities=[1, 2], work_items=[ordered(at, 2), ordered(at, 3)])
        assert [key.activity_id for key in await drained(a)] == [3]

    async def test_items_of_an_instance_that_ends_give_way(self, cluster: Cluster) -> None:
        """Items of other instances go on in their order (contract: commit_turn)."""
        a = await cluster.worker("a")
        at, other = await a.own("i"), await a.own("j")
        at = await queue(a, at, 1, 2)
        other = await queue(a, other, 1)
        at = await queue(a, at, 3)
        other = await queue(a, other, 2)
        await a.go_on(at, update=InstanceUpdate(status="completed", output="1"))
        assert [(key.instance_id, key.activity_id) for key in await drained(a)] == [("j", 1), ("j", 2)]

    async def test_items_of_a_deleted_instance_give_way(self, cluster: Cluster) -> None:
        """Items of others go on when an instance or a tree is deleted by force (contract: delete_instance)."""
        a, parent = await cluster.owner("a", "parent")
        parent = await a.go_on(parent, consumed=message_ids(parent), instances=[child_of(parent, "child")])
        (child,) = [item for item in await a.take_instances() if item.instance_id == "child"]
        lone, other = await a.own("lone"), await a.own("j")
        await queue(a, lone, 1)
        parent = await queue(a, parent, 1)
        other = await queue(a, other, 1)
        await queue(a, child, 1, 2)
        other = await queue(a, other, 2)
        (running,) = await a.take(10)
        assert list(await a.provider.delete_instance(["lone"], force=True)) == ["deleted"]
        assert await a.check(running) == [False]
        assert list(await a.provider.delete_instance(["parent"], force=True)) == ["deleted"]
        assert [(key.instance_id, key.activity_id) for key in await drained(a)] == [("j", 1), ("j", 2)]

    async def test_a_reset_queues_items_last(self, cluster: Cluster) -> None:
        """Items that a reset queues stand behind all that wait; earlier items are gone (contract: Reset)."""
        a = await cluster.worker("a")
        at, other = await a.own("i"), await a.own("j")
        at = await queue(a, at, 1, 2)
        other = await queue(a, other, 1)
        again = replace_execution(at)
        beside = work_item(again, 3, "s")
        assert await reset(a, at, 1, work_items=[ordered(again, 1), beside, ordered(again, 2)])
        items = await a.take(10)
        assert {(item.lock.key.instance_id, item.lock.key.activity_id) for item in items} == {("j", 1), ("i", 3)}
        await a.ack(*items)
        assert [(key.execution_id, key.activity_id) for key in await drained(a)] == [(2, 1), (2, 2)]
        await a.provider.delete_instance(["i"], force=True)
        fresh = await a.own("i")
        await queue(a, fresh, 1)
        assert await reset(a, replace(fresh, event_count=1), 0, work_items=[ordered(replace_execution(fresh), 1)])
        assert [(key.execution_id, key.activity_id) for key in await drained(a)] == [(2, 1)]

    async def test_items_of_a_suspended_instance_run(self, cluster: Cluster) -> None:
        """Items of a suspended instance run in their order, and give way to others (contract: suspend_instance)."""
        a = await cluster.worker("a")
        at, other = await a.own("i"), await a.own("j")
        at = await queue(a, at, 1)
        await queue(a, other, 1)
        assert await a.suspend(at)
        (running,) = await a.take(10)
        assert running.lock.key.instance_id == "i"
        await a.provider.resume_instance(["i"])
        assert await a.ack(running) == [True]
        assert [key.instance_id for key in await drained(a)] == ["j"]

    # -- keeping the place

    async def test_a_retry_keeps_its_place(self, cluster: Cluster) -> None:
        """An item that is given back, with a delay or without, is still the first (contract: WorkAbandon)."""
        a = await cluster.worker("a")
        keys = await cluster.enqueue("s", "s", ordered=True)
        (running,) = await a.take(10)
        await a.give_back(running, count_attempt=False)
        (running,) = await a.take(10)
        assert running.lock.key == keys[0]
        await a.give_back(running, delay=60.0, failed=True)
        early = await a.fetch(10)
        assert list(early.items) == []
        assert early.next_due is not None
        await cluster.pass_time(61)
        assert await drained(a) == keys

    async def test_an_expired_lock_keeps_the_place(self, cluster: Cluster) -> None:
        """An item whose lock has ended is delivered again before the next; its late ack counts for nothing (contract:
        live token).
        """
        a = await cluster.worker("a")
        keys = await cluster.enqueue("s", "s", ordered=True)
        (late,) = await a.take(10)
        await cluster.pass_time(ITEM_LOCK + 1)
        (again,) = await a.take(10)
        assert (again.lock.key, again.attempts) == (keys[0], 2)
        assert await a.ack(late) == [False]
        assert await a.take(10) == []
        assert await a.ack(again) == [True]
        assert await drained(a) == keys[1:]

    async def test_unknown_locks_keep_the_place(self, cluster: Cluster) -> None:
        """An item whose delivery was lost is delivered again before the next (contract: release_unknown_locks)."""
        a = await cluster.worker("a")
        keys = await cluster.enqueue("s", "s", ordered=True)
        await a.take(10)
        assert await a.release_unknown() == 1
        assert await drained(a) == keys

    async def test_the_order_survives_a_takeover(self, cluster: Cluster) -> None:
        """Another worker that takes the session over goes on with the item that ran, then with the next (contract: held
        session).
        """
        a, b = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b")
        keys = await cluster.enqueue("s", "s", "s", ordered=True)
        (first,) = await a.take(10)
        await a.ack(first)
        (running,) = await a.take(10)
        await cluster.pass_time(SHORT_LEASE + 1)
        more = await cluster.enqueue("s", ordered=True)
        (again,) = await b.take(10)
        assert (again.lock.key, again.attempts) == (running.lock.key, 2)
        assert again.session_epoch is not None
        assert running.session_epoch is not None
        assert again.session_epoch > running.session_epoch
        assert await b.take(10) == []
        await b.ack(again)
        assert await drained(b) == [keys[2], *more]

    async def test_the_order_survives_a_drain(self, cluster: Cluster) -> None:
        """A holder that drains and leaves gives the first item back; the next holder gets them in order (contract:
        drain_worker).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        keys = await cluster.enqueue("s", "s", "s", ordered=True)
        (running,) = await a.take(10)
        await a.drain()
        await a.give_back(running, count_attempt=False, release_session=True)
        await a.leave()
        await cluster.sweep_all()
        assert await drained(b) == keys

    async def test_an_ack_of_a_holder_of_before_lets_the_next_one_run_on_the_new_one(self, cluster: Cluster) -> None:
        """The session has moved while its first item ran; its ack makes way on the new holder (contract:
        ack_work_item).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        _, second = await cluster.enqueue("s", "s", ordered=True)
        (running,) = await a.take(10, timeouts=Timeouts(work_item_lock=1_000.0, session_lock=10.0))
        await cluster.pass_time(11)
        await cluster.enqueue("s")
        (beside,) = await b.take(10)
        assert not beside.ordered
        assert await a.ack(running) == [True]
        await cluster.sweep_all()
        assert await a.take(10) == []
        assert [item.lock.key for item in await b.take(10)] == [second]

    async def test_a_planned_move_takes_the_order_along(self, cluster: Cluster) -> None:
        """The holder ends the first item of a session that is to move, and the next one runs on the new holder
        (contract: PlannedMove).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        keys = await cluster.enqueue("s", "s", "s", ordered=True)
        (running,) = await a.take(10)
        assert await a.plan("s", "b") == "planned"
        keys += await cluster.enqueue("s", ordered=True)
        assert await b.take_moved("s") == []
        assert await a.ack(running) == [True]
        assert await a.take(10) == []
        assert await b.take_moved("s") == ["s"]
        assert await drained(b) == keys[1:]
        assert await cluster.holders() == {"s": "b"}

    async def test_a_session_with_a_tag_keeps_its_order(self, cluster: Cluster) -> None:
        """Ordered items of a session with a tag run on workers with that tag, one after the other (contract:
        NewWorkItem.tag).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b", tags=WorkerTags(tags=("gpu",)))
        at = await a.own("i")
        at = await a.go_on(at, work_items=[ordered(at, number, tag="gpu") for number in (1, 2, 3, 4)])
        assert await a.take(10) == []
        await a.go_on(at, cancel_activities=[1])
        assert await a.take(10) == []
        (running,) = await b.take(10)
        assert await b.ack(running) == [True]
        await cluster.pass_time(SESSION_LOCK + 1)
        assert await a.take(10) == []
        assert [running.lock.key.activity_id, *(key.activity_id for key in await drained(b))] == [2, 3, 4]

    async def test_a_sweep_leaves_the_order_alone(self, cluster: Cluster) -> None:
        """Sweeps, and claims of sessions with many items, deliver nothing before its turn (contract: sweep)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        keys = await cluster.enqueue("s", "s", "s", ordered=True)
        await cluster.pass_time(100)
        (first,) = await a.take(10)
        await cluster.pass_time(5)
        for peer in (a, b):
            assert await peer.take(10) == []
        await a.ack(first)
        await cluster.pass_time(SESSION_LOCK + 1)  # no worker holds it
        assert await drained(b) == keys[1:]

    async def test_a_session_with_items_that_wait_is_not_idle(self, cluster: Cluster) -> None:
        """A session is not released while ordered items of it wait, and its row stays (contract: sweep,
        release_session).
        """
        a = await cluster.worker("a")
        keys = await cluster.enqueue("s", "s", ordered=True)
        (running,) = await a.take(10)
        assert list(await a.provider.release_session(["s"])) == ["busy"]
        await a.give_back(running, delay=10_000.0)
        await cluster.pass_time(SESSION_LOCK + 1)
        await cluster.sweep(session_retention=0.0)
        assert "s" in await cluster.sessions()
        await cluster.pass_time(10_000)
        assert await drained(a) == keys

    async def test_a_delayed_item_delays_later_items(self, cluster: Cluster) -> None:
        """An ordered item with a delay keeps its place, and later items wait (contract: NewWorkItem)."""
        a = await cluster.worker("a")
        first = await cluster.enqueue("s", ordered=True, delay=60.0)
        second = await cluster.enqueue("s", ordered=True)
        assert await a.take(10) == []
        await cluster.pass_time(61)
        assert await drained(a) == first + second

    # -- reading

    async def test_items_that_wait_are_listed(self, cluster: Cluster) -> None:
        """Lists and statistics show an item behind another as blocked, with its session (contract: WorkItemState)."""
        a = await cluster.worker("a")
        await queue(a, await a.own("i"), 1, 2, 3)
        await a.take(10)
        found = await a.provider.list_work_items("i", 10)
        assert [(row.key.activity_id, row.state, row.session_id) for row in found] == [
            (1, "running", "s"),
            (2, "blocked", "s"),
            (3, "blocked", "s"),
        ]
        await cluster.advance(5)
        measured = await a.provider.measure_queues(100)
        assert measured.work_items == {"running": 1, "waiting": 0, "delayed": 0, "blocked": 2}
        assert measured.oldest_work_item is None

    # -- together

    async def test_the_order_is_that_of_the_commits(self, cluster: Cluster) -> None:
        """Many workers commit at the same time while the holder works: items of an earlier commit come first, and no
        item is lost or delivered beside another (contract: NewWorkItem.ordered).
        """
        a = await cluster.worker("a")
        peers = [await cluster.worker(f"b{number}") for number in range(4)]
        owned = [await peer.own(f"of {peer.worker_id}") for peer in peers]
        committed: list[tuple[int, int, WorkKey]] = []
        clock = count()

        async def append(peer: Peer, at: OrchestrationItem) -> None:
            for number in range(1, 16):
                begun = next(clock)
                at = await retried(partial(queue, peer, at, number))
                committed.append((begun, next(clock), WorkKey(at.instance_id, 1, number)))

        done: list[WorkKey] = []

        async def work() -> None:
            while len(done) < 60:
                items = await a.take(10)
                assert len(items) <= 1
                for item in items:
                    assert await retried(partial(a.ack, item)) == [True]
                    done.append(item.lock.key)

        await concurrently(work, *(partial(append, peer, at) for peer, at in zip(peers, owned, strict=True)))
        place = {key: number for number, key in enumerate(done)}
        assert len(place) == len(done) == 60
        for _, end, key in committed:
            assert all(place[key] < place[later] for begin, _, later in committed if end < begin)

    async def test_removals_and_commits_at_the_same_time_strand_nothing(self, cluster: Cluster) -> None:
        """Acks, cancellations, deletions and commits of one order at the same time leave a first item that can be
        fetched (contract: NewWorkItem.ordered).
        """
        a = await cluster.worker("a")
        peers = [await cluster.worker(f"b{number}") for number in range(3)]
        for round_ in range(8):
            owned = [await peer.own(f"{peer.worker_id} {round_}") for peer in peers]
            owned = [await queue(peer, at, 1, 2) for peer, at in zip(peers, owned, strict=True)]
            (first,) = await a.take(10)
            assert first.lock.key.instance_id == owned[0].instance_id
            await concurrently(
                partial(self._done, a, first),
                partial(self._cancelled, peers[0], owned[0]),
                partial(self._deleted, peers[1], owned[1]),
                partial(self._queued, peers[2], owned[2]),
            )
            left = {key.activity_id for key in await drained(a)}
            assert left == {1, 2, 3}

    async def test_items_that_wait_cost_a_fetch_nothing(self, cluster: Cluster) -> None:
        """The work of a fetch does not grow with 10,000 items behind the first of their session."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", ordered=True)
        (running,) = await a.take(10)
        await cluster.enqueue(None, "s")
        await cluster.aclose()
        alone = await cluster.harness.fetch_cost(a.identity, fetch_options())
        await cluster.enqueue(*["s"] * 10_000, ordered=True)
        await cluster.aclose()
        crowded = await cluster.harness.fetch_cost(a.identity, fetch_options())
        assert alone > 0
        assert crowded <= 3 * max(alone, 100)
        assert await (await cluster.same_worker(a)).ack(running) == [True]

    @staticmethod
    async def _done(peer: Peer, item: WorkItem) -> None:
        await peer.ack(item)

    @staticmethod
    async def _cancelled(peer: Peer, at: OrchestrationItem) -> None:
        await peer.go_on(at, cancel_activities=[1, 2])

    @staticmethod
    async def _deleted(peer: Peer, at: OrchestrationItem) -> None:
        await peer.provider.delete_instance([at.instance_id], force=True)

    @staticmethod
    async def _queued(peer: Peer, at: OrchestrationItem) -> None:
        await queue(peer, at, 3)
