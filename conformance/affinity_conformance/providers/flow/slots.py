"""Slots: work takes all of them or none, keeps them until it is done, and whatever ends it frees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import anyio
import pytest

from affinity.flow.store.contract import Admitted, limits_of
from affinity.limits import UNTAKEN_SECONDS
from affinity.orchestration.gates import LimitUse
from affinity.provider.contract import InstanceUpdate, OrchestrationItem, WorkItem
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ITEM_LOCK, SHORT_LEASE, message_ids, turn, work_item
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.flow.driver import MODEL, Limits, gate, rate, slots, tenant
from affinity_conformance.providers.peer import Peer

BOTH: Final = (LimitUse("disk"), MODEL)


class LimitSlotRules(Rules):
    """`LimitProvider.admit` and `return_slots`: which work has slots."""

    async def test_work_waits_until_it_is_admitted(self, cluster: Cluster) -> None:
        """No fetch delivers work with a limit that was not admitted, and a commit does not lock it (contract:
        NewWorkItem.gate).
        """
        limits = await Limits.declare(cluster, slots(0))
        keys = await limits.queue(MODEL, times=3, lock_here=True)
        assert await limits.worker.take_all() == []
        assert (await limits.worker.fetch()).next_due is None
        await limits.open(2)
        assert await limits.admit() == 2
        items = await limits.worker.take_all()
        assert [(item.lock.key, item.limited, item.attempts) for item in items] == [
            (keys[0], True, 1),
            (keys[1], True, 1),
        ]
        assert await limits.take() == []

    async def test_a_look_admits_what_waits(self, cluster: Cluster) -> None:
        """With ``if_waiting`` a call admits as any other while work waits, is due or is charged for; else it says when
        work is due (contract: LimitProvider.admit).
        """
        limits = await Limits.declare(cluster, slots(0))
        assert (await limits.look()).waits is False
        await limits.queue(MODEL, times=2)
        looked = await limits.look()
        assert (looked.admitted, looked.waits) == (0, True)
        await limits.change(concurrency=1)
        looked = await limits.look()
        assert (looked.admitted, looked.waits) == (1, True)
        (first,) = await limits.worker.take_all()
        assert (await limits.look()).admitted == 0
        await limits.worker.ack(first)
        looked = await limits.look()
        assert (looked.admitted, looked.waits, looked.more) == (1, False, False)
        (second,) = await limits.worker.take_all()
        await limits.worker.ack(second)
        assert await limits.look() == Admitted(admitted=0, routes=[], more=False, next_due=None, waits=False)
        await limits.queue(MODEL, delay=5.0)
        looked = await limits.look()
        assert looked.next_due is not None
        assert (looked.admitted, 4.0 < looked.next_due <= 5.0) == (0, True)
        await cluster.advance(6)
        assert (await limits.look()).admitted == 1
        assert (await limits.row()).in_use == 1

    async def test_work_that_a_commit_locks_has_passed_its_gate(self, cluster: Cluster) -> None:
        """It has its slots from then on, and frees them as other work does; a commit locks no more than there are
        slots, and none while other work waits (contract: NewWorkItem.gate).
        """
        limits = await Limits.declare(cluster, slots(2), slots(5, "disk"))
        a = limits.worker
        at = await a.own("i")
        items = [replace(work_item(at, number), gate=gate(*BOTH), lock_here=True) for number in (1, 2, 3)]
        result = await a.commit_one(at, consumed=message_ids(at), work_items=items)
        locked = [place.item for place in result.placed if place.item is not None]
        assert all(item.limited for item in locked)
        at = replace(at, event_count=at.event_count + 1, messages=())
        running = [*locked, *await limits.take()]
        assert len(running) == 2
        assert [(await limits.row(name)).in_use for name in ("disk", "model")] == [2, 2]
        (late,) = [replace(work_item(at, 4), gate=gate(*BOTH), lock_here=True)]
        result = await a.commit_one(at, acks=[running[0].lock], work_items=[late])
        assert result.committed
        assert result.placed[0].item is None, "other work waits"
        assert {item.lock.key.activity_id for item in await limits.take()} == {3}
        assert await a.give_back(running[1], failed=True, delay=100.0) == [True]
        assert {item.lock.key.activity_id for item in await limits.take()} == {4}
        assert [(await limits.row(name)).in_use for name in ("disk", "model")] == [2, 2]

    async def test_a_commit_counts_what_it_has_passed(self, cluster: Cluster) -> None:
        """The work of one commit shares the slots and the rate, whichever turn of it brings the work (contract:
        NewWorkItem.gate).
        """
        limits = await Limits.declare(cluster, rate(3, per=1_000.0, concurrency=2))
        a = limits.worker
        ats = [await a.own(f"i{number}") for number in range(4)]
        turns = [
            turn(
                at,
                consumed=message_ids(at),
                work_items=[replace(work_item(at, 1), gate=gate(MODEL), lock_here=True)],
            )
            for at in ats
        ]
        results = await a.commit(*turns)
        locked = [place.item for result in results for place in result.placed if place.item is not None]
        running = [*locked, *await limits.take()]
        assert len(running) == 2
        await a.ack(*running)
        last = await limits.take()
        assert len(last) == 1
        await a.ack(*last)
        assert await limits.take() == []
        assert (await limits.row()).admitted == 3

    async def test_work_takes_all_its_slots_or_none(self, cluster: Cluster) -> None:
        """Work that lacks a slot of one limit takes none of another, and does not delay work that needs this one alone
        (contract: LimitProvider).
        """
        limits = await Limits.declare(cluster, slots(1, "disk"), slots(1))
        (first,) = await limits.queue(LimitUse("disk"))
        (item,) = await limits.take()
        assert item.lock.key == first
        (both,) = await limits.queue(*BOTH)
        (alone,) = await limits.queue(MODEL)
        (other,) = await limits.take()
        assert other.lock.key == alone
        assert await limits.worker.ack(item) == [True]
        assert await limits.take() == []
        assert [(await limits.row(name)).in_use for name in ("disk", "model")] == [0, 1]
        assert await limits.worker.ack(other) == [True]
        assert await limits.taken() == [both]
        assert [(await limits.row(name)).in_use for name in ("disk", "model")] == [1, 1]

    @pytest.mark.parametrize(
        "end", ["ack", "give_back", "cancel", "lock", "lease", "instance", "turn", "delete", "restart"]
    )
    async def test_whatever_ends_work_frees_its_slots(self, cluster: Cluster, end: str) -> None:
        """A result, a give-back, a cancellation, the end of the lock, of the worker's lease, or of the instance, and
        its deletion: then other work takes the slots (contract: LimitProvider).
        """
        limits = await Limits.declare(cluster, slots(1, "disk"), slots(1))
        b = await cluster.worker("b", SHORT_LEASE)
        at = await limits.worker.own("i")
        item = replace(work_item(at, 1), gate=gate(*BOTH))
        at = await limits.worker.go_on(at, work_items=[item])
        await limits.admit()
        held = await b.take_one()
        (waiting,) = await limits.queue(*BOTH)
        assert await limits.take() == []
        await _end(limits, b, held, at, end)
        items = await limits.take()
        assert waiting in {item.lock.key for item in items}
        assert len(items) == 1
        assert [(await limits.row(name)).in_use for name in ("disk", "model")] == [1, 1]

    async def test_waiting_work_that_is_cancelled_has_no_place(self, cluster: Cluster) -> None:
        """It is counted no longer, and the next one takes the slot (contract: LimitProvider)."""
        limits = await Limits.declare(cluster, slots(1))
        at = await limits.worker.own("i")
        items = [replace(work_item(at, number), gate=gate(MODEL)) for number in (1, 2, 3)]
        at = await limits.worker.go_on(at, work_items=items)
        (held,) = await limits.take()
        assert (await limits.row()).waiting == 2
        at = await limits.worker.go_on(at, cancel_activities=[2])
        await limits.admit()
        assert (await limits.row()).waiting == 1
        await limits.worker.ack(held)
        assert [key.activity_id for key in await limits.taken()] == [3]

    async def test_a_lock_that_has_expired_keeps_the_slot_until_it_is_returned(self, cluster: Cluster) -> None:
        """No other worker gets the item meanwhile. Returned, it is the next one again, and its lock is worth nothing
        (contract: return_slots).
        """
        limits = await Limits.declare(cluster, slots(1))
        (key,) = await limits.queue(MODEL)
        (lost,) = await limits.take()
        await limits.queue(MODEL)
        await cluster.advance(ITEM_LOCK + 1)
        assert await limits.take() == []
        assert await limits.store.return_slots() == 1
        assert await limits.store.return_slots() == 0
        (again,) = await limits.take()
        assert (again.lock.key, again.attempts) == (key, 2)
        assert await limits.worker.ack(lost) == [False]
        assert await limits.worker.ack(again) == [True]

    async def test_a_lock_that_is_renewed_keeps_the_slot(self, cluster: Cluster) -> None:
        """Work that runs for long is not returned (contract: return_slots)."""
        limits = await Limits.declare(cluster, slots(1))
        await limits.queue(MODEL, times=2)
        (item,) = await limits.take()
        for _ in range(3):
            await cluster.advance(ITEM_LOCK - 1)
            assert await limits.worker.renew(item) == [True]
            assert await limits.store.return_slots() == 0
            assert await limits.take() == []

    async def test_work_that_no_worker_takes_makes_room(self, cluster: Cluster) -> None:
        """It gives its slots to work that waits, and goes behind it; alone it keeps them (contract: return_slots)."""
        limits = await Limits.declare(cluster, slots(1))
        (untaken,) = await limits.queue(MODEL, tag="gpu")
        await limits.admit()
        await cluster.advance(UNTAKEN_SECONDS + 1)
        assert await limits.store.return_slots() == 0
        (waiting,) = await limits.queue(MODEL)
        await limits.admit()
        assert await limits.store.return_slots() == 1
        (item,) = await limits.take()
        assert item.lock.key == waiting
        await limits.worker.ack(item)
        await cluster.advance(UNTAKEN_SECONDS + 1)
        assert await limits.admit() == 1
        assert untaken.activity_id == 1

    async def test_urgent_work_that_no_worker_takes_makes_room_too(self, cluster: Cluster) -> None:
        """It asks for its slots after a pause that grows, so that other work has them for most of the time (contract:
        return_slots).
        """
        limits = await Limits.declare(cluster, slots(1))
        await limits.queue(MODEL, tag="gpu", priority=9)
        await limits.admit()
        await limits.queue(MODEL, times=100)
        taken = [await _run_for(limits, 1) for _ in range(45)]
        assert sum(taken[:10]) >= 4
        assert sum(taken[-20:]) >= 15

    async def test_work_that_no_worker_takes_fails_in_time(self, cluster: Cluster) -> None:
        """Its bounds count from its first admission, whether it had its slots or paused (contract: return_slots)."""
        limits = await Limits.declare(cluster, slots(1))
        (late,) = await limits.queue(MODEL, tag="gpu", priority=9, fail_after=20.0)
        await limits.admit()
        await limits.queue(MODEL, times=100)
        seconds = 0
        while not (failed := (await limits.worker.end_waits()).failed):
            assert (seconds := seconds + 1) < 25
            await _run_for(limits, 1)
        assert [(item.lock.key, why) for item, why in failed] == [(late, "busy")]
        assert seconds >= 18  # the clock goes on too

    async def test_a_tag_that_no_worker_has_fails_work_that_gives_up_its_slots(self, cluster: Cluster) -> None:
        """As work that no worker takes (contract: return_slots, end_waits)."""
        limits = await Limits.declare(cluster, slots(1))
        (stranded,) = await limits.queue(MODEL, tag="gpu", priority=9)
        await limits.admit()
        await limits.queue(MODEL, times=100)
        seconds = 0
        while not (failed := (await limits.worker.end_waits(tag_timeout=30.0)).failed):
            assert (seconds := seconds + 1) < 80
            await _run_for(limits, 1)
        assert [(item.lock.key, why) for item, why in failed] == [(stranded, "no_worker_with_tag")]
        assert seconds >= 28

    async def test_a_priority_does_not_shorten_a_wait_for_a_worker(self, cluster: Cluster) -> None:
        """Work that passes its gate with its commit, or has a priority alone, fails no earlier (contract:
        NewWorkItem.fail_after).
        """
        limits = await Limits.declare(cluster, slots(1))
        await limits.queue(MODEL, tag="gpu", priority=9, fail_after=20.0)
        await limits.queue(tag="gpu", priority=9, fail_after=20.0)
        await limits.admit()
        await cluster.advance(15)
        assert list((await limits.worker.end_waits()).failed) == []
        await cluster.advance(6)
        assert len((await limits.worker.end_waits()).failed) == 2

    async def test_an_unknown_lock_that_is_released_keeps_the_slot(self, cluster: Cluster) -> None:
        """The item is delivered again without an admission, and no other work beside it (contract:
        release_unknown_locks).
        """
        limits = await Limits.declare(cluster, slots(1))
        await limits.queue(MODEL, times=2)
        (item,) = await limits.take()
        assert await limits.worker.release_unknown() == 1
        assert (await limits.row()).in_use == 1
        assert await limits.taken() == [item.lock.key]

    async def test_workers_that_admit_at_the_same_time_share_the_slots(self, cluster: Cluster) -> None:
        """However their calls meet, no more work runs than there are slots, and all runs (contract: admit)."""
        limits = await Limits.declare(cluster, slots(3))
        await limits.queue(MODEL, times=40)
        running: set[int] = set()
        done: set[int] = set()

        async def work(peer: Peer) -> None:
            mine = replace(limits, worker=peer, store=limits_of(peer.provider))
            for _ in range(400):
                if len(done) == 40:
                    return
                items = await mine.take()
                running.update(item.lock.key.activity_id for item in items)
                assert len(running) <= 3
                await anyio.sleep(0.001)
                for item in items:
                    running.discard(item.lock.key.activity_id)
                    done.add(item.lock.key.activity_id)
                    assert await peer.ack(item) == [True]

        peers = [await cluster.worker(f"w{number}") for number in range(4)]
        await concurrently(*[lambda peer=peer: work(peer) for peer in peers])
        assert len(done) == 40

    async def test_a_limit_that_no_code_declares_holds_nothing_back(self, cluster: Cluster) -> None:
        """Its work goes on; it counts as soon as code declares the limit (contract: declare_limits)."""
        limits = await Limits.declare(cluster)
        await limits.queue(MODEL, times=3)
        running = await limits.take()
        assert len(running) == 3
        await limits.redeclare(slots(4))
        assert (await limits.row()).in_use == 3
        await limits.queue(MODEL, times=3)
        assert len(await limits.take()) == 1

    async def test_work_without_limits_passes_by(self, cluster: Cluster) -> None:
        """Work without a gate is delivered whatever waits at limits (contract: NewWorkItem.gate)."""
        limits = await Limits.declare(cluster, slots(0))
        await limits.queue(MODEL, times=3)
        await limits.admit()
        keys = await cluster.enqueue(None, "s")
        assert {item.lock.key for item in await limits.worker.take_all()} == {*keys}

    async def test_a_call_admits_no_more_than_it_is_asked_to(self, cluster: Cluster) -> None:
        """The rest is admitted by the next calls, which the answer asks for (contract: admit)."""
        limits = await Limits.declare(cluster, slots(0))
        await limits.queue(MODEL, times=25)
        await limits.open(100)
        counts: list[int] = []
        more = True
        while more:
            admitted = await limits.store.admit(most=10)
            assert admitted.admitted <= 10
            counts.append(admitted.admitted)
            more = admitted.more
        assert sum(counts) == 25
        assert len(counts) <= 6
        assert (await limits.store.admit(most=10)).routes == []

    async def test_the_routes_tell_which_workers_have_work(self, cluster: Cluster) -> None:
        """An answer names the holder of a session, and otherwise any worker (contract: Admitted.routes)."""
        limits = await Limits.declare(cluster, slots(0))
        await cluster.holder("b", "s")
        await limits.queue(MODEL, session="s")
        await limits.open(1)
        assert list((await limits.store.admit(most=10)).routes) == ["w:b"]
        await limits.queue(MODEL, session="t")
        await limits.queue(MODEL)
        await limits.open(100)
        assert sorted((await limits.store.admit(most=10)).routes) == ["free", "new"]

    async def test_a_key_has_slots_of_its_own(self, cluster: Cluster) -> None:
        """The bounds of a limit with keys count for each key (contract: LimitSpec.keyed)."""
        limits = await Limits.declare(cluster, slots(2, "tenant", keyed=True))
        await limits.queue(tenant("acme"), times=3)
        await limits.queue(tenant("globex"), times=3)
        items = await limits.take()
        assert len(items) == 4
        assert [(await limits.key(key)).in_use for key in ("acme", "globex")] == [2, 2]
        assert (await limits.row("tenant")).in_use == 4


async def _end(limits: Limits, b: Peer, held: WorkItem, at: OrchestrationItem, how: str) -> None:
    """End a work item of an instance in one of many ways, of which some let it come back later."""
    a, cluster = limits.worker, limits.cluster
    if how == "ack":
        assert await b.ack(held) == [True]
    elif how == "give_back":
        assert await b.give_back(held, failed=True, delay=60.0) == [True]
    elif how == "cancel":
        assert (await a.commit_one(at, cancel_activities=[1])).committed
    elif how == "lock":
        await b.register()
        await cluster.advance(ITEM_LOCK + 1)
        assert await _returned(limits) == 1
        await a.commit_one(at, cancel_activities=[1])
    elif how == "lease":
        await cluster.advance(SHORT_LEASE + 1)
        assert await _returned(limits) == 1
        await a.commit_one(at, cancel_activities=[1])
    elif how == "instance":
        assert (await a.commit_one(at, update=InstanceUpdate(status="failed", error="{}"))).committed
    elif how == "turn":
        assert (await a.commit_one(at, acks=[held.lock])).committed
    elif how == "delete":
        assert list(await a.provider.delete_instance(["i"], force=True)) == ["deleted"]
    else:
        assert await b.release_unknown() == 1
        again = await b.take_one()
        assert await b.ack(again) == [True]


async def _returned(limits: Limits) -> int:
    return await limits.store.return_slots()


async def _run_for(limits: Limits, seconds: float) -> int:
    """Let time pass, return slots and run one piece of work, if there is one; return how many were run."""
    await limits.cluster.advance(seconds)
    await limits.store.return_slots()
    items = await limits.take()
    assert all(await limits.worker.ack(*items)) if items else True
    return len(items)
