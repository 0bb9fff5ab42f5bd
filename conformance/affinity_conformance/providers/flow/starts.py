"""Instances that wait to start: their start message and all others wait, and their slots are theirs until they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from affinity.orchestration.gates import LimitUse
from affinity.provider.contract import InstanceUpdate, NewMessage, OrchestrationItem, Restart
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, new_instance, payloads, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.flow.driver import MODEL, Limits, gate, slots, tenant
from affinity_conformance.providers.kernel.resets import reset

OVER: Final = InstanceUpdate(status="completed", output="null")
ENDS: Final = {
    "completed": OVER,
    "failed": InstanceUpdate(status="failed", error="{}"),
    "cancelled": InstanceUpdate(status="cancelled", error="{}"),
}


class LimitStartRules(Rules):
    """`NewInstance.gate`."""

    async def test_a_start_waits_for_its_slots(self, cluster: Cluster) -> None:
        """No worker gets the instance before it is admitted, also not for a message that comes meanwhile; then it has
        the start first (contract: NewInstance.gate).
        """
        limits = await Limits.declare(cluster, slots(1))
        await _start(limits, "i")
        await _start(limits, "j")
        await limits.worker.provider.send_message([NewMessage(instance_id="j", payload="event")])
        assert await limits.worker.take_instances() == []
        assert (await limits.worker.fetch_instances()).next_due is None
        (first,) = await _taken(limits)
        assert (first.instance_id, payloads(first)) == ("i", ["start"])
        await cluster.pass_time(100)
        await limits.worker.provider.send_message([NewMessage(instance_id="j", payload="event 2")])
        assert await _taken(limits) == [first]
        assert (await limits.worker.info("j")).status == "pending"
        assert (await limits.worker.commit_one(first, consumed=message_ids(first), update=OVER)).committed
        (second,) = await _taken(limits)
        assert (second.instance_id, payloads(second)) == ("j", ["start", "event", "event 2"])

    @pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "deleted"])
    async def test_an_instance_keeps_its_slots_until_it_ends(self, cluster: Cluster, end: str) -> None:
        """Through its turns, its suspension, its executions and a reset; its end and its deletion free them (contract:
        NewInstance.gate).
        """
        limits = await Limits.declare(cluster, slots(1), slots(1, "tenant", keyed=True))
        a = limits.worker
        for name in ("i", "j"):
            await _start(limits, name, tenant("acme"))
        (at,) = await _taken(limits)
        at = await a.go_on(at, consumed=message_ids(at))
        assert await a.suspend(at)
        assert await limits.admit() == 0
        assert list(await a.provider.resume_instance(["i"])) == ["resumed"]
        await a.provider.send_message([NewMessage(instance_id="i", payload="event")])
        (again,) = await _taken(limits)
        assert again.instance_id == "i"
        assert (await a.commit_one(again, update=InstanceUpdate(status="running", continued=True))).committed
        assert await limits.admit() == 0
        at = replace(again, execution_id=again.execution_id + 1, event_count=0)
        at = await a.go_on(at)
        assert await reset(a, at, 1)
        assert await limits.admit() == 0
        (at,) = await a.take_instances()
        if end == "deleted":
            assert list(await a.provider.delete_instance(["i"], force=True)) == ["deleted"]
        else:
            assert (await a.commit_one(at, update=ENDS[end])).committed
        assert await limits.admit() == 1
        assert [(await limits.row(name)).in_use for name in ("model", "tenant")] == [1, 1]
        assert "j" in {item.instance_id for item in await a.take_instances()}

    async def test_an_ended_instance_is_reset_without_a_slot(self, cluster: Cluster) -> None:
        """It runs beside the one that has the slot, and its end frees nothing (contract: Reset)."""
        limits = await Limits.declare(cluster, slots(1))
        for name in ("i", "j"):
            await _start(limits, name)
        (at,) = await _taken(limits)
        at = await limits.worker.go_on(at, consumed=message_ids(at))
        assert (await limits.worker.commit_one(at, update=OVER)).committed
        (other,) = await _taken(limits)
        other = await limits.worker.go_on(other, consumed=message_ids(other))
        ended = await limits.worker.info("i")
        assert await reset(limits.worker, replace(at, event_count=ended.event_count), 1)
        await limits.worker.provider.send_message([NewMessage(instance_id="i", payload="again")])
        (again,) = await _taken(limits)
        assert (again.instance_id, (await limits.row()).in_use) == ("i", 1)
        assert (await limits.worker.commit_one(again, update=OVER)).committed
        await limits.admit()
        assert (await limits.row()).in_use == 1
        assert (await limits.worker.commit_one(other, update=OVER)).committed
        await limits.admit()
        assert (await limits.row()).in_use == 0

    async def test_a_start_that_is_deleted_has_no_place(self, cluster: Cluster) -> None:
        """It is counted no longer, whether it was seen or not, and its id may be used again (contract:
        delete_instance).
        """
        limits = await Limits.declare(cluster, slots(0))
        for is_seen in (True, False):
            await _start(limits, "i")
            if is_seen:
                await limits.admit()
                assert (await limits.row()).waiting == 1
            assert list(await limits.worker.provider.delete_instance(["i"], force=True)) == ["deleted"]
            await limits.admit()
            assert (await limits.row()).waiting == 0
        await _start(limits, "i")
        await limits.admit()
        assert (await limits.row()).waiting == 1

    async def test_starts_and_activities_share_a_limit(self, cluster: Cluster) -> None:
        """Both take its slots, in one order (contract: LimitProvider)."""
        limits = await Limits.declare(cluster, slots(0))
        await _start(limits, "i")
        await limits.queue(MODEL, times=2)
        await _start(limits, "urgent", priority=3)
        await limits.open(2)
        await limits.admit()
        assert {item.instance_id for item in await limits.worker.take_instances()} == {"i", "urgent"}
        assert await limits.worker.take_all() == []
        assert (await limits.row()).waiting == 2

    async def test_a_start_with_a_delay_joins_its_line_then(self, cluster: Cluster) -> None:
        """Until then it takes no slot (contract: NewInstance.delay)."""
        limits = await Limits.declare(cluster, slots(1))
        await limits.worker.provider.create_instance([new_instance("late", gate=gate(MODEL), delay=100.0)])
        await _start(limits, "now")
        (first,) = await _taken(limits)
        assert first.instance_id == "now"
        await limits.worker.commit_one(first, consumed=message_ids(first), update=OVER)
        assert await _taken(limits) == []
        await cluster.advance(101)
        assert [item.instance_id for item in await _taken(limits)] == ["late"]

    async def test_a_restart_waits_at_its_gate(self, cluster: Cluster) -> None:
        """A new generation of an ended instance takes slots as a new instance does (contract: restart_instance)."""
        limits = await Limits.declare(cluster, slots(1))
        await _start(limits, "i")
        (at,) = await _taken(limits)
        await limits.worker.commit_one(at, consumed=message_ids(at), update=OVER)
        await _start(limits, "j")
        await limits.admit()
        restart = Restart(new=new_instance("i", gate=gate(MODEL)), ended=at.generation)
        assert list(await limits.worker.provider.restart_instance([restart])) == [True]
        (other,) = await _taken(limits)
        assert other.instance_id == "j"
        await limits.worker.commit_one(other, consumed=message_ids(other), update=OVER)
        assert [item.instance_id for item in await _taken(limits)] == ["i"]
        assert (await limits.row()).in_use == 1

    async def test_a_child_waits_at_its_gate(self, cluster: Cluster) -> None:
        """An instance that a turn creates waits as one that a client creates (contract: Turn.instances)."""
        limits = await Limits.declare(cluster, slots(0))
        at = await limits.worker.own("parent")
        child = new_instance("child", parent_id="parent", gate=gate(MODEL))
        await limits.worker.go_on(at, consumed=message_ids(at), instances=[child])
        assert await _taken(limits) == []
        await limits.change(concurrency=1)
        assert [item.instance_id for item in await _taken(limits)] == ["child"]

    async def test_a_priority_alone_goes_first(self, cluster: Cluster) -> None:
        """A start with a priority and no limits is fetched without an admission, before those without one (contract:
        Gate).
        """
        limits = await Limits.declare(cluster)
        await limits.worker.provider.create_instance([new_instance("plain")])
        await limits.worker.provider.create_instance([new_instance("urgent", gate=gate(priority=9))])
        (first,) = await limits.worker.take_instances(1)
        assert first.instance_id == "urgent"
        measured = await limits.worker.provider.measure_queues(100)
        assert measured.oldest_message is not None
        assert measured.oldest_message < 60

    async def test_the_work_of_an_instance_waits_on_its_own(self, cluster: Cluster) -> None:
        """An instance with a slot and its activity with a limit each have their own (contract: LimitProvider)."""
        limits = await Limits.declare(cluster, slots(1, "tenant", keyed=True), slots(1))
        await limits.worker.provider.create_instance([new_instance("i", gate=gate(tenant("acme")))])
        (at,) = await _taken(limits)
        item = replace(work_item(at, 1), gate=gate(MODEL))
        at = await limits.worker.go_on(at, consumed=message_ids(at), work_items=[item])
        assert len(await limits.take()) == 1
        assert [(await limits.row(name)).in_use for name in ("model", "tenant")] == [1, 1]
        assert (await limits.worker.commit_one(at, update=OVER)).committed
        await limits.admit()
        assert [(await limits.row(name)).in_use for name in ("model", "tenant")] == [0, 0]


async def _start(limits: Limits, instance_id: str, *more: LimitUse, priority: int = 0) -> None:
    """Create an instance that waits for a slot."""
    found = gate(MODEL, *more, priority=priority)
    assert list(await limits.worker.provider.create_instance([new_instance(instance_id, gate=found)])) == [True]


async def _taken(limits: Limits) -> list[OrchestrationItem]:
    await limits.admit()
    return await limits.worker.take_instances()
