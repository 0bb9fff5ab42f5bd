"""Parents and children: what a deletion removes and reports; and limits of unread messages."""

from __future__ import annotations

from typing import Any

from affinity.provider.contract import Delivery, InstanceUpdate, NewInstance, NewMessage, OrchestrationItem
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import count_rows, message_ids, new_instance, payloads, timer
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer

DONE = InstanceUpdate(status="completed")


def child_of(parent: OrchestrationItem, name: str, **fields: Any) -> NewInstance:
    """A child as a turn of its parent creates it. The keywords are fields of it."""
    of = {"parent_id": parent.instance_id, "parent_generation": parent.generation}
    return new_instance(name, **of, on_deleted=f"{name} was deleted", **fields)


class TreeRules(Rules):
    """`delete_instance` of parents and children, and ``unread_limit``."""

    async def test_a_tree_is_deleted_as_a_whole(self, cluster: Cluster) -> None:
        """Deleting a tree removes children and theirs with all rows, and nothing else (contract: delete_instance)."""
        a = await cluster.worker("a")
        before = await count_rows(a.provider)
        await self._family(a)
        assert list(await a.provider.delete_instance(["parent"], force=True)) == ["deleted"]
        found = await a.provider.get_instance(["parent", "child", "grandchild", "stranger"])
        assert [None if row is None else row.instance_id for row in found] == [None, None, None, "stranger"]
        after = await count_rows(a.provider)
        assert {kind: after[kind] - before[kind] for kind in ("messages", "instances")} == {
            "messages": 1,
            "instances": 1,
        }

    async def test_a_tree_in_which_something_runs_stays_without_force(self, cluster: Cluster) -> None:
        """A tree with a running member is deleted by force only (contract: delete_instance)."""
        a = await cluster.worker("a")
        parent = await self._family(a)
        assert (await a.commit_one(parent, update=DONE)).committed
        assert list(await a.provider.delete_instance(["parent", "missing"])) == ["running", "unknown"]
        assert None not in await a.provider.get_instance(["parent", "child", "grandchild"])
        assert list(await a.provider.delete_instance(["parent"], tree=False)) == ["deleted"]
        assert None not in await a.provider.get_instance(["child", "grandchild"])

    async def test_a_finished_tree_needs_no_force(self, cluster: Cluster) -> None:
        """A finished tree is deleted without force, also among several (contract: delete_instance)."""
        a = await cluster.worker("a")
        for name in ("i", "j"):
            parent = await a.own(name)
            at = await a.go_on(parent, consumed=message_ids(parent), instances=[child_of(parent, f"{name}'s child")])
            for item in (at, *await a.take_instances()):
                assert (await a.commit_one(item, update=DONE)).committed
        await a.own("k")
        assert list(await a.provider.delete_instance(["i", "k", "j"])) == ["deleted", "running", "deleted"]
        assert await a.provider.get_instance(["i's child", "j's child"]) == [None, None]

    async def test_a_parent_that_stays_is_notified(self, cluster: Cluster) -> None:
        """A parent gets one ``on_deleted`` message for its child, and none for grandchildren (contract:
        NewInstance.on_deleted).
        """
        a = await cluster.worker("a")
        await self._family(a)
        assert list(await a.provider.delete_instance(["child"], force=True)) == ["deleted"]
        (notified,) = [item for item in await a.take_instances() if item.instance_id == "parent"]
        assert payloads(notified) == ["child was deleted"]

    async def test_a_parent_is_not_notified_of_a_child_that_had_ended(self, cluster: Cluster) -> None:
        """A parent gets no message for a child that had ended (contract: NewInstance.on_deleted)."""
        a, parent = await cluster.owner("a", "parent")
        await a.go_on(parent, consumed=message_ids(parent), instances=[child_of(parent, "child")])
        (child,) = await a.take_instances()
        await a.commit_one(child, update=DONE)
        assert list(await a.provider.delete_instance(["child"])) == ["deleted"]
        assert await a.take_instances() == []

    async def test_another_parent_of_that_name_is_not_notified(self, cluster: Cluster) -> None:
        """Another instance under the parent's id gets no message and keeps no child of it (contract: generation)."""
        a = await cluster.worker("a")
        await self._family(a)
        await a.provider.delete_instance(["parent"], force=True, tree=False)
        again = await a.own("parent")
        await a.go_on(again, consumed=message_ids(again))
        assert list(await a.provider.delete_instance(["grandchild"], force=True)) == ["deleted"]
        assert list(await a.provider.delete_instance(["parent"], force=True)) == ["deleted"]
        assert list(await a.provider.delete_instance(["child"], force=True)) == ["deleted"]

    async def test_a_suspended_parent_is_notified_too(self, cluster: Cluster) -> None:
        """A suspended parent gets the message when it continues (contract: suspended instance)."""
        a = await cluster.worker("a")
        parent = await self._family(a)
        await a.suspend(parent)
        await a.provider.delete_instance(["child"], force=True)
        await a.provider.resume_instance(["parent"])
        (notified,) = [item for item in await a.take_instances() if item.instance_id == "parent"]
        assert payloads(notified) == ["child was deleted"]

    async def test_unread_messages_are_limited_where_the_sender_asks(self, cluster: Cluster) -> None:
        """``unread_limit`` counts queued messages within a call and over calls; timers do not count (contract:
        send_message).
        """
        a, instance = await cluster.owner("a", "i")
        at = await a.go_on(instance, consumed=message_ids(instance), messages=[timer(instance, 2, 60)])
        assert await self._send(a, 4, limit=3) == ["delivered"] * 3 + ["full"]
        assert await self._send(a, 1, limit=3) == ["full"]
        assert await self._send(a, 1, limit=None) == ["delivered"]
        (item,) = await a.take_instances()
        assert len(item.messages) == 4
        await a.go_on(at, consumed=message_ids(item))
        assert await self._send(a, 1, limit=3) == ["delivered"]

    async def test_what_a_turn_says_of_unread_messages_counts(self, cluster: Cluster) -> None:
        """The number of the last turn that set ``unread`` counts (contract: Turn.unread)."""
        a, instance = await cluster.owner("a", "i")
        at = await a.go_on(instance, consumed=message_ids(instance), unread=2)
        assert await self._send(a, 2, limit=3) == ["delivered", "full"]
        (item,) = await a.take_instances()
        at = await a.go_on(at, consumed=message_ids(item))
        assert await self._send(a, 2, limit=3) == ["delivered", "full"]
        (item,) = await a.take_instances()
        await a.go_on(at, consumed=message_ids(item), unread=0)
        assert await self._send(a, 4, limit=3) == ["delivered"] * 3 + ["full"]

    @staticmethod
    async def _send(peer: Peer, number: int, limit: int | None) -> list[Delivery]:
        message = NewMessage(instance_id="i", payload="event", unread_limit=limit)
        return list(await peer.provider.send_message([message] * number))

    @staticmethod
    async def _family(a: Peer) -> OrchestrationItem:
        """A parent that waits for a child, which waits for another; and one of the same name as theirs."""
        parent = await a.own("parent")
        at = await a.go_on(parent, consumed=message_ids(parent), instances=[child_of(parent, "child")])
        (child,) = await a.take_instances()
        await a.go_on(child, consumed=message_ids(child), instances=[child_of(child, "grandchild")])
        (grandchild,) = await a.take_instances()
        await a.go_on(grandchild, consumed=message_ids(grandchild))
        await a.provider.create_instance([new_instance("stranger", parent_id="unknown")])
        return at
