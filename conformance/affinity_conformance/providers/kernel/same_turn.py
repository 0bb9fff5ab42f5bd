"""Parts of one turn that meet: items that it queues and cancels, instances that it creates and sends messages to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinity.provider.contract import NewMessage, SessionHold
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    count_rows,
    message_ids,
    new_instance,
    payloads,
    timer,
    turn,
    work_item,
)
from affinity_conformance.providers.cluster import Cluster


class SameTurnRules(Rules):
    """`commit_turn`: the parts of one turn see each other."""

    @pytest.mark.parametrize("lock_here", [True, False])
    async def test_an_activity_that_its_own_turn_cancels_never_runs(self, cluster: Cluster, lock_here: bool) -> None:
        """A work item that the same turn cancels is neither queued nor locked; the turn's other items are (contract:
        Turn).
        """
        a, instance = await cluster.owner("a", "i")
        items = [replace(work_item(instance, number), lock_here=lock_here) for number in (1, 2, 3)]
        result = await a.commit_one(instance, work_items=items, cancel_activities=[2], consumed=message_ids(instance))
        assert result.committed
        here = [place.item.lock.key.activity_id for place in result.placed if place.item is not None]
        assert here == ([1, 3] if lock_here else [])
        assert len(result.placed) == 3
        found = here or [item.lock.key.activity_id for item in await a.take_all()]
        assert found == [1, 3]
        assert (await count_rows(a.provider))["work_items"] == 2

    async def test_a_timer_that_its_own_turn_cancels_never_fires(self, cluster: Cluster) -> None:
        """A timer that the same turn cancels is not queued; the turn's other timers are (contract:
        Turn.cancel_timers).
        """
        a, instance = await cluster.owner("a", "i")
        timers = [timer(instance, number, 60) for number in (1, 2)]
        await a.commit_one(instance, consumed=message_ids(instance), messages=timers, cancel_timers=[1])
        await cluster.advance(60)
        assert payloads((await a.take_instances())[0]) == ["timer 2"]

    async def test_a_hold_that_its_own_turn_ends_holds_nothing(self, cluster: Cluster) -> None:
        """A hold that the same turn ends leaves the session's lock unchanged (contract: SessionHold)."""
        a, instance = await cluster.owner("a", "i")
        await a.commit_one(instance, work_items=[work_item(instance, 1, "s")])
        await a.take_one()
        (before,) = await a.holds_for("s")
        hold = SessionHold("s", 7, 10_000.0)
        await a.commit_one(replace(instance, event_count=1), holds=[hold], ended_holds=[7])
        (after,) = await a.holds_for("s")
        assert before is not None
        assert after is not None
        assert after < before + 60

    async def test_a_message_to_a_child_of_the_same_turn_arrives(self, cluster: Cluster) -> None:
        """A message to a child of the same turn arrives after the child's start message (contract: Turn.instances,
        Turn.messages).
        """
        a, instance = await cluster.owner("a", "i")
        child = new_instance("child", parent_id="i", start="begin")
        stop = NewMessage(instance_id="child", payload="stop")
        await a.commit_one(instance, consumed=message_ids(instance), instances=[child], messages=[stop])
        (item,) = await a.take_instances()
        assert (item.instance_id, payloads(item)) == ("child", ["begin", "stop"])

    async def test_a_message_to_a_child_of_another_turn_of_the_batch_arrives(self, cluster: Cluster) -> None:
        """A message to a child of another turn of the batch arrives, in whatever order the turns are given (contract:
        commit_turn).
        """
        a = await cluster.worker("a")
        first, second = await a.own("i"), await a.own("j")
        for number, (creator, sender) in enumerate(((first, second), (second, first))):
            name = f"child{number}"
            child = new_instance(name, parent_id=creator.instance_id, start="begin")
            hello = NewMessage(instance_id=name, payload="hello")
            at = [replace(item, event_count=number) for item in (creator, sender)]
            results = await a.commit(
                turn(at[0], instances=[child], consumed=message_ids(at[0])),
                turn(at[1], messages=[hello], consumed=message_ids(at[1])),
            )
            assert [result.committed for result in results] == [True, True]
        found = {item.instance_id: payloads(item) for item in await a.take_instances()}
        assert found == {"child0": ["begin", "hello"], "child1": ["begin", "hello"]}
