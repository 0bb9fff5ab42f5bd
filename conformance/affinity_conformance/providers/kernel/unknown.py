"""Unknown names: work goes to a worker that registers its name, also during a rolling deploy."""

from __future__ import annotations

from typing import TypedDict, Unpack

from affinity.provider.contract import InstanceUpdate, NewMessage, OrchestrationItem, Release
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ACTIVITY, UNKNOWN_AFTER, new_instance, turn
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer

OTHERS = ("something else",)


class _Needs(TypedDict, total=False):
    needs: str


class UnknownRules(Rules):
    """``names``, ``unknown`` and ``unknown_after`` of items and instances."""

    async def test_an_unregistered_name_is_delivered_until_somebody_says_so(self, cluster: Cluster) -> None:
        """An item is delivered to any worker until one gives it back as unknown (contract: fetch_work_item)."""
        a = await cluster.worker("a")
        await cluster.enqueue(None, "s")
        assert len(await a.take_all(names=OTHERS)) == 2

    async def test_an_item_given_back_as_unknown_is_passed_over_by_workers_that_do_not_know_it(
        self, cluster: Cluster
    ) -> None:
        """An unknown item goes to a worker that registers its name, with or without a session (contract:
        fetch_work_item).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        for session_id in (None, "s"):
            await cluster.enqueue(session_id)
            await self._disclaim(a)
            assert await a.take(names=OTHERS) == []
            known = await b.take_one()
            assert (known.session_id, known.attempts) == (session_id, 1)

    async def test_an_item_that_no_worker_knows_is_delivered_to_any_in_the_end(self, cluster: Cluster) -> None:
        """Any worker gets it after ``unknown_after``, with the time for which it was unknown (contract:
        FetchOptions.unknown_after).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s")
        await self._disclaim(a)
        await cluster.pass_time(UNKNOWN_AFTER - 10)
        assert await b.take(names=OTHERS) == []
        await cluster.pass_time(11)
        item = await b.take_one(names=OTHERS)
        assert item.unknown_for is not None
        assert UNKNOWN_AFTER <= item.unknown_for < UNKNOWN_AFTER + 10

    async def test_the_time_runs_from_the_first_who_did_not_know(self, cluster: Cluster) -> None:
        """A second give-back as unknown does not restart ``unknown_for`` (contract: WorkAbandon.unknown)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue(None)
        await self._disclaim(a)
        await cluster.advance(UNKNOWN_AFTER + 1)
        await self._disclaim(b)
        item = await a.take_one(names=OTHERS)
        assert (item.unknown_for or 0) > UNKNOWN_AFTER

    async def test_a_worker_that_knows_the_name_ends_the_time(self, cluster: Cluster) -> None:
        """A delivery to a worker that registers the name ends ``unknown_for`` (contract: WorkItem.unknown_for)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue(None)
        await self._disclaim(a)
        await b.give_back(await b.take_one(), failed=True)
        await cluster.pass_time(UNKNOWN_AFTER + 1)
        assert (await a.take_one(names=OTHERS)).unknown_for is None

    async def test_an_item_that_needs_more_waits_for_one_who_has_both(self, cluster: Cluster) -> None:
        """An item with ``needs`` goes to a worker that registers both its name and its needs (contract:
        WorkAbandon.needs).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        for session_id in (None, "s"):
            await cluster.enqueue(session_id)
            await self._disclaim(a, needs="more")
            for names in ((ACTIVITY,), ("more",), OTHERS):
                assert await b.take(names=names) == []
            known = await b.take_one(names=(ACTIVITY, "more"))
            assert (known.session_id, known.attempts) == (session_id, 1)

    async def test_what_an_item_needs_is_no_end_of_its_waiting(self, cluster: Cluster) -> None:
        """A delivery to a worker that registers only the name does not end ``unknown_for`` (contract:
        WorkAbandon.needs).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s")
        await self._disclaim(a, needs="more")
        await cluster.advance(UNKNOWN_AFTER + 1)
        item = await b.take_one()
        assert (item.unknown_for or 0) > UNKNOWN_AFTER
        await b.give_back(item, failed=True)
        await cluster.pass_time(1)
        assert ((await b.take_one()).unknown_for or 0) > UNKNOWN_AFTER

    async def test_an_item_needs_what_was_said_last(self, cluster: Cluster) -> None:
        """The last ``needs`` counts, and a worker that does not register the name does not change it (contract:
        WorkAbandon.needs).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue(None)
        await self._disclaim(a, needs="more")
        await cluster.advance(UNKNOWN_AFTER + 1)
        await self._disclaim(b)
        assert len(await a.take()) == 1

    async def test_a_holder_gets_the_items_of_its_sessions_whatever_their_name(self, cluster: Cluster) -> None:
        """A holder gets all items of its sessions, so that it can give them back with the session (contract:
        fetch_work_item).
        """
        a = await cluster.worker("a")
        first = await cluster.give(a, "s", names=OTHERS)
        await a.give_back(first, unknown=True, count_attempt=False)
        assert (await a.take_one(names=OTHERS)).lock.key == first.lock.key

    async def test_an_unknown_item_does_not_stop_the_queue(self, cluster: Cluster) -> None:
        """Items behind an unknown one are fetched (contract: fetch_work_item)."""
        a = await cluster.worker("a")
        await cluster.enqueue(None, "s", name="strange")
        for _ in range(2):
            await self._disclaim(a)
        keys = await cluster.enqueue(None, "t")
        assert sorted(item.lock.key for item in await a.take_all(names=OTHERS)) == keys

    async def test_an_unknown_instance_waits_for_one_who_knows_it(self, cluster: Cluster) -> None:
        """Workers that do not register an instance pass it over until ``unknown_after`` (contract:
        fetch_orchestration_item).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.own("i")
        await a.provider.release_instance(a.identity, [Release(instance_id="i", unknown=True)])
        assert await a.take_instances(names=OTHERS) == []
        assert [item.instance_id for item in await b.take_instances()] == ["i"]

    async def test_an_instance_that_no_worker_knows_is_delivered_to_any_in_the_end(self, cluster: Cluster) -> None:
        """Any worker gets it after ``unknown_after``, with the time for which it was unknown (contract:
        fetch_orchestration_item).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.own("i")
        await a.provider.release_instance(a.identity, [Release(instance_id="i", unknown=True)])
        await cluster.pass_time(UNKNOWN_AFTER - 10)
        assert await b.take_instances(names=OTHERS) == []
        await cluster.pass_time(11)
        (item,) = await b.take_instances(names=OTHERS)
        assert UNKNOWN_AFTER <= (item.unknown_for or 0) < UNKNOWN_AFTER + 10

    async def test_a_pinned_instance_is_known_by_name_and_version(self, cluster: Cluster) -> None:
        """An instance with a pinned version goes to a worker that registers name and version (contract:
        fetch_orchestration_item).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await self._pin(a, await a.own("i"), "2")
        await a.provider.release_instance(a.identity, [Release(instance_id="i", unknown=True)])
        assert await b.take_instances(names=("flow", "flow@1")) == []
        (item,) = await b.take_instances(names=("flow@2",))
        assert item.version == "2"

    async def test_an_instance_that_ran_is_delivered_to_anyone_in_the_end_too(self, cluster: Cluster) -> None:
        """Any worker gets it after ``unknown_after`` (contract: fetch_orchestration_item)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        first = await a.own("i")
        update = InstanceUpdate(status="running", version="2", continued=True)
        start = NewMessage(instance_id="i", payload="start")
        (result,) = await a.commit(turn(first, history=("continued",), messages=(start,), update=update))
        assert result.committed
        await a.take_instances(names=OTHERS)
        await a.provider.release_instance(a.identity, [Release(instance_id="i", unknown=True)])
        await cluster.pass_time(UNKNOWN_AFTER - 10)
        assert await b.take_instances(names=OTHERS) == []
        await cluster.pass_time(11)
        (item,) = await b.take_instances(names=OTHERS)
        assert (item.execution_id, item.event_count) == (2, 0)
        assert UNKNOWN_AFTER <= (item.unknown_for or 0) < UNKNOWN_AFTER + 10

    async def test_giving_an_instance_back_is_no_claim(self, cluster: Cluster) -> None:
        """A release takes its claim out of ``claims`` (contract: Release)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.provider.create_instance([new_instance("i")])
        for _ in range(3):
            await a.take_instances(names=OTHERS)
            await a.provider.release_instance(a.identity, [Release(instance_id="i")])
        (item,) = await b.take_instances()
        assert item.claims == 1

    async def test_an_instance_may_be_created_with_its_version(self, cluster: Cluster) -> None:
        """An instance that is created with a version needs a worker that registers it (contract:
        NewInstance.version).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.provider.create_instance([new_instance("i", version="2")])
        (item,) = await a.take_instances(names=OTHERS)
        assert item.version == "2"
        await a.provider.release_instance(a.identity, [Release(instance_id="i", unknown=True)])
        assert await a.take_instances(names=("flow",)) == []
        assert len(await b.take_instances(names=("flow@2",))) == 1

    @staticmethod
    async def _disclaim(peer: Peer, **needs: Unpack[_Needs]) -> None:
        """Take an item, and give it back as a worker does that does not register the activity, or cannot run it."""
        item = await peer.take_one(names=OTHERS)
        release = item.session_id is not None
        await peer.give_back(item, unknown=True, count_attempt=False, release_session=release, **needs)

    @staticmethod
    async def _pin(peer: Peer, at: OrchestrationItem, version: str) -> None:
        (result,) = await peer.commit(turn(at, update=InstanceUpdate(status="running", version=version)))
        assert result.committed
