"""Reused ids: what was meant for one instance does not reach its successor under the id (contract: generation)."""

from __future__ import annotations

from dataclasses import replace

from affinity.provider.contract import NewMessage, OrchestrationItem
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, new_instance, payloads, turn, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer


class GenerationRules(Rules):
    """Deletion, and creation under the same id."""

    async def test_each_instance_has_a_generation_token(self, cluster: Cluster) -> None:
        """An instance keeps its generation, and its successor under the same id has another (contract: Generation)."""
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("j")])
        first = await a.own("i")
        await a.commit_one(first)
        (same,) = [item for item in await a.take_instances() if item.instance_id == "i"]
        second = await recreated(a, first)
        (other,) = [item for item in await a.take_instances() if item.instance_id == "j"]
        assert first.generation == same.generation
        assert len({first.generation, second.generation, other.generation}) == 3

    async def test_a_turn_of_a_deleted_instance_is_refused_by_its_successor(self, cluster: Cluster) -> None:
        """A turn of a deleted instance is refused even if its successor is at the same event and the caller owns it
        (contract: Turn).
        """
        a, old = await cluster.owner("a", "i")
        await a.commit_one(old, work_items=[work_item(old, 1)])
        new = await recreated(a, old)
        await a.commit_one(new, history=["new"])
        stale = await a.commit_one(replace(old, event_count=1), history=["old"])
        assert (stale.committed, list(stale.lost_acks), list(stale.conflicts)) == (False, [], [])
        assert await a.history(new) == ["new"]
        assert (await a.commit_one(replace(new, event_count=1))).committed

    async def test_other_turns_of_the_batch_pass(self, cluster: Cluster) -> None:
        """A turn of a deleted instance is refused alone (contract: rules for every verb)."""
        a = await cluster.worker("a")
        old, other = await a.own("i"), await a.own("j")
        await recreated(a, old)
        results = await a.commit(turn(old), turn(other))
        assert [result.committed for result in results] == [False, True]

    async def test_a_message_to_a_deleted_instance_does_not_reach_its_successor(self, cluster: Cluster) -> None:
        """A message with the generation of a deleted instance is dropped, from a turn and from a client (contract:
        NewMessage.generation).
        """
        a = await cluster.worker("a")
        sender, old = await a.own("sender"), await a.own("i")
        new = await recreated(a, old)
        messages = [
            NewMessage(instance_id="i", payload=text, generation=generation)
            for text, generation in (("old", old.generation), ("new", new.generation), ("any", None))
        ]
        await a.commit_one(sender, consumed=message_ids(sender), messages=messages)
        assert list(await a.provider.send_message(messages)) == ["unknown", "delivered", "delivered"]
        (found,) = await a.take_instances()
        assert payloads(found) == [*payloads(new), "new", "any", "new", "any"]

    async def test_a_turn_consumes_messages_of_its_own_instance_only(self, cluster: Cluster) -> None:
        """A turn cannot consume a message of another instance by its id (contract: Turn.consumed)."""
        a = await cluster.worker("a")
        first, second = await a.own("i"), await a.own("j")
        assert (await a.commit_one(first, consumed=[*message_ids(first), *message_ids(second)])).committed
        assert [item.instance_id for item in await a.take_instances()] == ["j"]


async def recreated(peer: Peer, old: OrchestrationItem) -> OrchestrationItem:
    """Another instance under the id of ``old``, which the same worker owns."""
    assert list(await peer.provider.delete_instance([old.instance_id], force=True)) == ["deleted"]
    return await peer.own(old.instance_id)
