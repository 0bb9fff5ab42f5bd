"""Limits of work that is also ordered, tagged, bound to a session, held, delayed, reset, or has bounds of its wait."""

from __future__ import annotations

from dataclasses import replace

from affinity.provider.contract import InstanceUpdate, WorkerTags
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ITEM_LOCK, message_ids, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.flow.driver import MODEL, Limits, gate, slots
from affinity_conformance.providers.kernel.resets import reset


class LimitedKindRules(Rules):
    """`NewWorkItem.gate` beside its other fields."""

    async def test_work_of_a_session_goes_to_its_holder(self, cluster: Cluster) -> None:
        """Admitted, it is delivered to the worker that holds the session by then (contract: NewWorkItem.gate)."""
        limits = await Limits.declare(cluster, slots(1))
        b = await cluster.holder("b", "s", "t")
        keys = await limits.queue(MODEL, session="s") + await limits.queue(MODEL, session="t")
        await limits.admit()
        assert await limits.worker.take_all() == []
        (item,) = await b.take_all()
        assert (item.lock.key, item.session_id) == (keys[0], "s")
        assert item.session_epoch == (await cluster.session("s")).epoch
        assert await b.ack(item) == [True]
        await b.leave()
        (moved,) = await limits.take()
        assert (moved.lock.key, moved.session_id) == (keys[1], "t")

    async def test_waiting_work_does_not_keep_its_session(self, cluster: Cluster) -> None:
        """While it waits it does not count as work of its session, which its holder may release (contract:
        NewWorkItem.gate).
        """
        limits = await Limits.declare(cluster, slots(0))
        b = await cluster.holder("b", "s")
        await limits.queue(MODEL, session="s")
        await limits.admit()
        assert (await cluster.session("s")).queued == 0
        assert list(await b.provider.release_session(["s"])) == ["released"]
        await limits.change(concurrency=1)
        (item,) = await limits.take()
        assert item.session_id == "s"

    async def test_a_new_session_is_claimed_after_the_admission(self, cluster: Cluster) -> None:
        """Work of a session that no worker holds goes to whichever worker claims it (contract: NewWorkItem.gate)."""
        limits = await Limits.declare(cluster, slots(0))
        await limits.queue(MODEL, session="s", claim_here=True)
        assert await cluster.sessions() == {}
        await limits.open(1)
        (item,) = await limits.take()
        assert (item.session_id, (await cluster.holders())["s"]) == ("s", "a")

    async def test_tagged_work_goes_to_a_worker_with_the_tag(self, cluster: Cluster) -> None:
        """Admitted, also when it comes back (contract: NewWorkItem.tag)."""
        limits = await Limits.declare(cluster, slots(2))
        gpu = await cluster.worker("gpu", tags=WorkerTags(tags=("gpu",)))
        keys = await limits.queue(MODEL, tag="gpu") + await limits.queue(MODEL, tag="gpu", session="s")
        for _ in range(2):
            await limits.admit()
            assert await limits.worker.take_all() == []
            items = await gpu.take_all()
            assert {item.lock.key for item in items} == {*keys}
            await gpu.give_back(*items)

    async def test_ordered_work_waits_in_its_order_and_then_at_its_gate(self, cluster: Cluster) -> None:
        """The first of an order has a place at its gate, the ones behind it have none; a later one cannot pass it
        (contract: NewWorkItem.ordered).
        """
        limits = await Limits.declare(cluster, slots(5))
        plain = await cluster.enqueue("s", ordered=True)
        keys = await limits.queue(MODEL, times=2, session="s", ordered=True)
        last = await cluster.enqueue("s", ordered=True)
        await limits.admit()
        assert (await limits.row()).in_use == 0
        assert await limits.states() == ["waiting", "blocked", "blocked", "blocked"]
        for key in [*plain, *keys, *last]:
            (item,) = await limits.take()
            assert (item.lock.key, item.session_id, item.ordered) == (key, "s", True)
            await limits.worker.ack(item)

    async def test_ordered_work_that_waits_keeps_its_order(self, cluster: Cluster) -> None:
        """While the first waits at its gate, or for a retry, none behind it is delivered; cancelled, it lets the next
        go (contract: NewWorkItem.ordered).
        """
        limits = await Limits.declare(cluster, slots(1))
        (held,) = await limits.queue(MODEL)
        (item,) = await limits.take()
        assert item.lock.key == held
        at = await limits.worker.own("i")
        first = replace(work_item(at, 1, "s"), ordered=True, gate=gate(MODEL))
        second = replace(work_item(at, 2, "s"), ordered=True)
        third = replace(work_item(at, 3, "s"), ordered=True, gate=gate(MODEL))
        at = await limits.worker.go_on(at, work_items=[first, second, third])
        assert await limits.take() == []
        await limits.worker.ack(item)
        (one,) = await limits.take()
        assert one.lock.key.activity_id == 1
        await limits.worker.give_back(one, failed=True, delay=10.0)
        assert await limits.take() == []
        at = await limits.worker.go_on(at, cancel_activities=[1])
        (two,) = await limits.take()
        assert two.lock.key.activity_id == 2
        await limits.worker.ack(two)
        assert [key.activity_id for key in await limits.taken()] == [3]

    async def test_a_retry_waits_for_its_pause_without_a_slot(self, cluster: Cluster) -> None:
        """Work in the pause of a retry has no slots; behind the pause it needs them again (contract: abandon)."""
        limits = await Limits.declare(cluster, slots(1))
        keys = await limits.queue(MODEL, times=2)
        (item,) = await limits.take()
        await limits.worker.give_back(item, failed=True, error="KeyError: 1", delay=100.0)
        (other,) = await limits.take()
        assert other.lock.key == keys[1]
        await cluster.advance(20)
        assert await limits.worker.renew(other) == [True]
        assert await limits.states() == ["delayed", "running"]
        await limits.worker.ack(other)
        assert await limits.take() == []
        await cluster.advance(100)
        (again,) = await limits.take()
        assert (again.lock.key, again.attempts, again.failures) == (keys[0], 2, 1)

    async def test_a_wait_for_a_worker_begins_with_the_admission(self, cluster: Cluster) -> None:
        """Time at a gate does not count in the bounds of a wait for a slot of the holder (contract:
        NewWorkItem.fail_after).
        """
        limits = await Limits.declare(cluster, slots(0))
        (key,) = await limits.queue(MODEL, session="s", fail_after=50.0)
        await limits.admit()
        await cluster.advance(100)
        assert list((await limits.worker.end_waits()).failed) == []
        await limits.change(concurrency=1)
        assert await limits.admit() == 1
        await cluster.advance(40)
        assert list((await limits.worker.end_waits()).failed) == []
        await cluster.advance(11)
        ((failed, why),) = (await limits.worker.end_waits()).failed
        assert (failed.lock.key, why, failed.limited) == (key, "busy", True)
        assert await limits.worker.ack(failed) == [True]
        await limits.admit()
        assert (await limits.row()).in_use == 0

    async def test_a_reset_queues_work_at_its_gate(self, cluster: Cluster) -> None:
        """What a reset queues waits as new work does; what it removes frees its slots (contract: Reset.work_items)."""
        limits = await Limits.declare(cluster, slots(1))
        at = await limits.worker.own("i")
        item = replace(work_item(at, 1, "s"), gate=gate(MODEL))
        at = await limits.worker.go_on(at, consumed=message_ids(at), work_items=[item])
        (held,) = await limits.take()
        (waiting,) = await limits.queue(MODEL)
        again = replace(item, key=item.key._replace(execution_id=at.execution_id + 1))
        assert await reset(limits.worker, at, 1, work_items=[again])
        assert await limits.worker.ack(held) == [False]
        first = await limits.take()
        assert len(first) == 1
        await limits.worker.ack(*first)
        second = await limits.take()
        assert {work.lock.key for work in [*first, *second]} == {waiting, again.key}

    async def test_work_of_an_ended_execution_has_no_place(self, cluster: Cluster) -> None:
        """A turn that ends an instance removes waiting work too (contract: Turn)."""
        limits = await Limits.declare(cluster, slots(1))
        at = await limits.worker.own("i")
        items = [replace(work_item(at, number), gate=gate(MODEL)) for number in range(1, 4)]
        at = await limits.worker.go_on(at, consumed=message_ids(at), work_items=items)
        await limits.take()
        assert (await limits.worker.commit_one(at, update=InstanceUpdate(status="completed"))).committed
        await limits.admit()
        row = await limits.row()
        assert (row.in_use, row.waiting) == (0, 0)

    async def test_work_of_a_held_session_waits_too(self, cluster: Cluster) -> None:
        """A hold keeps the session, and admits no work (contract: SessionHold)."""
        limits = await Limits.declare(cluster, slots(0))
        await cluster.use(limits.worker, "s")
        await limits.worker.hold("i", "s", 1_000.0)
        await limits.queue(MODEL, session="s")
        assert await limits.take() == []
        await limits.change(concurrency=1)
        assert [item.session_id for item in await limits.take()] == ["s"]

    async def test_a_lost_worker_loses_its_slots_and_not_its_work(self, cluster: Cluster) -> None:
        """Work of a session whose holder is lost comes back, is admitted again and goes to a new holder (contract:
        return_slots).
        """
        limits = await Limits.declare(cluster, slots(1))
        b = await cluster.worker("b", lease=15.0)
        await limits.queue(MODEL, session="s")
        await limits.admit()
        lost = await b.take_one()
        await cluster.pass_time(ITEM_LOCK / 2 + 1)
        assert await limits.take() == []
        assert await limits.store.return_slots() == 1
        (again,) = await limits.take()
        assert (again.lock.key, again.session_id, again.attempts) == (lost.lock.key, "s", 2)
        assert again.session_epoch != lost.session_epoch
