"""Batches: every verb takes many, each element on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from affinity.errors import InvalidOptions
from affinity.provider.contract import InstanceUpdate, NewMessage, Release, Token, WorkAck, WorkItem, WorkLock
from affinity.records import CommitPart, frozen
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    ITEM_LOCK,
    TIMEOUTS,
    count_rows,
    fetch_options,
    message_ids,
    new_instance,
    payloads,
    turn,
    work_item,
)
from affinity_conformance.providers.cluster import Cluster


@frozen(kw_only=True)
class UnknownPart(CommitPart):
    """A part of a guest that no provider knows."""

    guest = "nobody"
    noun = "parts of nobody"

    session_id: str = "s"

    @property
    def sessions(self) -> Sequence[str]:
        """The session."""
        return [self.session_id]

    @property
    def size(self) -> int:
        """Nothing."""
        return 0


class BatchRules(Rules):
    """One refused element changes nothing and does not disturb the others (contract: rules for every verb)."""

    async def test_renewals_answer_one_by_one(self, cluster: Cluster) -> None:
        """A bad lock in a batch of renewals fails alone (contract: renew_work_item_lock)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", None, "t")
        first, bad, last = await a.take_all()
        await cluster.advance(ITEM_LOCK - 10)
        assert await a.renew(first, forged(bad), last) == [True, False, True]
        await cluster.pass_time(11)
        assert await a.check(first, bad, last) == [True, True, True]
        taken = await b.take_all() + await a.take_all()
        assert [item.lock.key for item in taken] == [bad.lock.key]

    async def test_acks_answer_one_by_one(self, cluster: Cluster) -> None:
        """A bad lock in a batch of acks fails alone, and results come in the order of the batch (contract:
        ack_work_item).
        """
        a = await cluster.worker("a")
        await cluster.enqueue("s", None, "t")
        first, bad, last = await a.take_all()
        assert await a.ack(first, forged(bad), last) == [True, False, True]
        assert len(await cluster.results()) == 2
        assert await a.check(first, bad, last) == [False, True, False]

    async def test_gifts_back_answer_one_by_one(self, cluster: Cluster) -> None:
        """A bad lock in a batch of give-backs fails alone (contract: abandon_work_item)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", None, "t")
        first, bad, last = await a.take_all()
        assert await a.give_back(first, forged(bad), last) == [True, False, True]
        assert sorted(item.lock.key for item in await a.take_all()) == sorted([first.lock.key, last.lock.key])

    async def test_parts_of_an_unknown_guest_are_refused_with_their_batch(self, cluster: Cluster) -> None:
        """Rather than lost: nothing of the batch is written (contract: easy to get wrong, parts of guests)."""
        a = await cluster.worker("a")
        first, second = await a.own("i"), await a.own("k")
        await cluster.enqueue(None)
        item = await a.take_one()
        ack = WorkAck(lock=item.lock, message="done", parts=[UnknownPart()])
        for batch in ([turn(first, parts=[UnknownPart()])], [turn(second), turn(first, parts=[UnknownPart()])]):
            with pytest.raises(InvalidOptions):
                await a.commit(*batch)
        with pytest.raises(InvalidOptions):
            await a.provider.ack_work_item(a.identity, [ack], TIMEOUTS)
        assert [result.committed for result in await a.commit(turn(first), turn(second))] == [True, True]
        assert await a.ack(item) == [True]

    async def test_turns_are_committed_one_by_one(self, cluster: Cluster) -> None:
        """A refused turn of a commit changes nothing of the other turns (contract: commit_turn)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        mine = [await a.own(f"i{number}") for number in range(3)]
        other = await b.own("other")
        stale = replace(mine[1], event_count=5)
        turns = [turn(at, work_items=[work_item(at, 1)]) for at in (mine[0], stale, other, mine[2])]
        results = await a.commit(*turns)
        assert [result.committed for result in results] == [True, False, False, True]
        assert [len(result.placed) for result in results] == [1, 0, 0, 1]
        assert [item.lock.key.instance_id for item in await a.take_all()] == ["i0", "i2"]
        assert [await a.history(at) for at in (*mine, other)] == [["event"], [], ["event"], []]

    async def test_a_dead_ack_refuses_its_own_turn_only(self, cluster: Cluster) -> None:
        """A dead ack refuses only the turn that it belongs to (contract: TurnResult.lost_acks)."""
        a = await cluster.worker("a")
        first, second = await a.own("i"), await a.own("j")
        await cluster.enqueue(None, "s")
        items = await a.take_all()
        bad = forged(items[0])
        results = await a.commit(turn(first, acks=[bad.lock]), turn(second, acks=[items[1].lock]))
        assert [result.committed for result in results] == [False, True]
        assert [list(result.lost_acks) for result in results] == [[bad.lock], []]
        assert await a.check(*items) == [True, False]

    async def test_turns_of_one_commit_may_send_to_each_other(self, cluster: Cluster) -> None:
        """Messages and children of one turn reach the instances of other turns of the same commit (contract:
        commit_turn).
        """
        a = await cluster.worker("a")
        ids = [f"i{number}" for number in range(4)]
        owned = [await a.own(name) for name in ids]
        turns = [
            turn(
                at,
                consumed=message_ids(at),
                messages=[NewMessage(instance_id=name, payload=at.instance_id) for name in ids],
                instances=[new_instance("child", parent_id=at.instance_id, on_exists="taken")],
            )
            for at in owned
        ]
        assert all(result.committed for result in await a.commit(*turns))
        found = {item.instance_id: payloads(item) for item in await a.take_instances()}
        assert found.pop("child") == ["start"]
        assert [text for texts in found.values() for text in texts].count("taken") == 3
        assert all(sorted(text for text in texts if text != "taken") == ids for texts in found.values())

    async def test_a_message_to_an_instance_that_finishes_in_the_same_commit_is_gone(self, cluster: Cluster) -> None:
        """A message to an instance that finishes in the same commit is removed, wherever it is in the batch (contract:
        Turn.update).
        """
        a = await cluster.worker("a")
        owned = [await a.own(name) for name in ("first", "ending", "last")]
        done = InstanceUpdate(status="completed")
        message = NewMessage(instance_id="ending", payload="x")
        turns = [
            turn(owned[0], consumed=message_ids(owned[0]), messages=[message]),
            turn(owned[1], consumed=message_ids(owned[1]), update=done),
            turn(owned[2], consumed=message_ids(owned[2]), messages=[message]),
        ]
        assert all(result.committed for result in await a.commit(*turns))
        assert await a.take_instances() == []
        assert (await count_rows(a.provider))["messages"] == 0

    async def test_instances_are_created_one_by_one(self, cluster: Cluster) -> None:
        """Instances that exist are left unchanged, and a duplicate within the batch counts as existing (contract:
        create_instance).
        """
        client = await cluster.open()
        await client.create_instance([new_instance("b", name="old")])
        created = await client.create_instance([new_instance(name) for name in ("a", "b", "c", "a")])
        assert list(created) == [True, False, True, False]
        rows = await client.get_instance(["c", "missing", "b", "a", "c"])
        assert [row and row.name for row in rows] == ["flow", None, "old", "flow", "flow"]
        assert (await count_rows(client))["messages"] == 3

    async def test_deletions_answer_one_by_one(self, cluster: Cluster) -> None:
        """One call can return deleted, unknown and running (contract: delete_instance)."""
        a = await cluster.worker("a")
        for name in ("x", "z"):
            await a.commit_one(await a.own(name), update=InstanceUpdate(status="completed"))
        await a.own("y")
        assert list(await a.provider.delete_instance(["x", "y", "missing", "z"])) == [
            "deleted",
            "running",
            "unknown",
            "deleted",
        ]

    async def test_a_duplicate_has_its_effect_once(self, cluster: Cluster) -> None:
        """A lock that is twice in a batch sends one result and counts one failure (contract: rules for every verb)."""
        a = await cluster.worker("a")
        await cluster.enqueue(None, None, None)
        acked, returned, renewed = await a.take_all()
        assert (await a.ack(acked, acked))[0]
        assert await cluster.results() == ["done"]
        assert (await a.give_back(returned, returned, failed=True))[0]
        assert await a.renew(renewed, renewed) == [True, True]
        assert await a.check(renewed, renewed) == [True, True]
        again = await a.take_one()
        assert (again.lock.key, again.attempts, again.failures) == (returned.lock.key, 2, 1)

    async def test_an_empty_batch_is_nothing(self, cluster: Cluster) -> None:
        """Every batch verb accepts an empty batch (contract: rules for every verb)."""
        a = await cluster.worker("a")
        provider, identity = a.provider, a.identity
        assert list(await provider.renew_work_item_lock(identity, [], TIMEOUTS)) == []
        assert list(await provider.check_work_item([])) == []
        assert list(await provider.ack_work_item(identity, [], TIMEOUTS)) == []
        assert list(await provider.abandon_work_item(identity, [])) == []
        assert list(await provider.commit_turn(identity, [], TIMEOUTS)) == []
        assert list(await provider.read_history([])) == []
        assert list(await provider.create_instance([])) == []
        assert list(await provider.send_message([])) == []
        assert list(await provider.get_instance([])) == []
        assert list(await provider.delete_instance([])) == []
        assert await provider.release_unknown_locks(identity, []) == 0
        await provider.release_instance(identity, [])
        await provider.notify_workers({})

    async def test_releases_are_made_one_by_one(self, cluster: Cluster) -> None:
        """One call can free instances, hand them over, and ignore foreign ones (contract: release_instance)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        for name in ("free", "given", "kept"):
            await a.own(name)
        releases = [Release(instance_id="free"), Release(instance_id="missing"), Release(instance_id="given", to="b")]
        await a.provider.release_instance(a.identity, releases)
        assert {item.instance_id for item in await b.take_instances()} == {"free", "given"}
        assert [item.instance_id for item in await a.take_instances()] == ["kept"]

    async def test_a_worker_that_registers_nothing_fetches_too(self, cluster: Cluster) -> None:
        """A worker without names gets every item that no worker has given back as unknown (contract: names)."""
        a = await cluster.worker("a")
        await cluster.enqueue(None)
        fetched = await a.provider.fetch_work_item(a.identity, fetch_options(names=()))
        assert len(fetched.items) == 1


def forged(item: WorkItem) -> WorkItem:
    """The item under a token that does not exist."""
    return replace(item, lock=WorkLock(item.lock.key, Token("forged")))
