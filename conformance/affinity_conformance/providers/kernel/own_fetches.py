"""Fetches of items of sessions that the caller holds, and of nothing else."""

from __future__ import annotations

from functools import partial

from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import SESSION_LOCK, SHORT_LEASE, about
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.kernel.byte_limits import ROOM, SIZE
from affinity_conformance.providers.kernel.tags import GPU
from affinity_conformance.providers.peer import Peer


class OwnFetchRules(Rules):
    """`FetchOptions.only_own`."""

    async def test_only_own_items_are_fetched(self, cluster: Cluster) -> None:
        """It takes items of sessions that the caller holds, oldest first, and leaves all others to other fetches."""
        a, b = await cluster.holder("a", "s"), await cluster.holder("b", "t")
        before, _, _, own = await cluster.enqueue("s", "t", None, "s")
        await cluster.enqueue("new")
        await cluster.offer(a, "offered")
        assert [item.lock.key for item in await a.take(10, only_own=True)] == [before, own]
        assert await a.take(10, only_own=True) == []
        assert [item.session_id for item in await b.take(10, only_own=True)] == ["t"]
        assert {item.session_id for item in await a.take_all()} == {None, "new", "offered"}

    async def test_an_own_item_is_as_another_fetch_delivers_it(self, cluster: Cluster) -> None:
        """Its fields, its attempts and its lock are as in any fetch; the session is touched."""
        a = await cluster.worker("a")
        epoch = (await cluster.use(a, "s")).session_epoch
        await cluster.advance(100)
        (key,) = await cluster.enqueue("s", name="other", ordered=True)
        item = await a.take_one(only_own=True)
        assert (item.lock.key, item.name, item.payload) == (key, "other", f"input {key.activity_id}")
        assert (item.session_id, item.session_epoch, item.session_tag) == ("s", epoch, None)
        assert (item.attempts, item.failures, item.unknown_for, item.ordered) == (1, 0, None, True)
        assert about((await cluster.session("s")).expires_in, SESSION_LOCK)
        assert await a.give_back(item, failed=True) == [True]
        item = await a.take_one(only_own=True)
        assert (item.attempts, item.failures) == (2, 1)
        assert await a.ack(item) == [True]

    async def test_attempts_that_are_counted_later_are_not_counted(self, cluster: Cluster) -> None:
        """`FetchOptions.uncounted_after`."""
        a = await cluster.holder("a", "s")
        await cluster.enqueue("s")
        for attempts in (1, 2, 2):
            item = await a.take_one(only_own=True, uncounted_after=1)
            assert item.attempts == attempts
            assert await a.release_unknown(delivered=[item]) == 1

    async def test_an_unknown_item_is_known_again(self, cluster: Cluster) -> None:
        """An item that was given back as unknown comes too, with the time since; it is known if the caller knows it."""
        a = await cluster.holder("a", "s")
        await cluster.enqueue("s", name="other")
        assert await a.give_back(await a.take_one(only_own=True), unknown=True) == [True]
        for names in ((), ("other",)):
            item = await a.take_one(only_own=True, names=names)
            assert item.unknown_for is not None
            assert await a.give_back(item) == [True]
        assert (await a.take_one(only_own=True)).unknown_for is None

    async def test_an_own_fetch_takes_no_more_than_its_limit(self, cluster: Cluster) -> None:
        """It says whether more waits."""
        a = await cluster.holder("a", "s")
        keys = await cluster.enqueue("s", "s", "s", "s")
        for limit, expected in ((1, keys[:1]), (2, keys[1:3]), (1, keys[3:])):
            fetched = await a.fetch(limit, only_own=True)
            assert [item.lock.key for item in fetched.items] == expected
            assert fetched.limit_reached == (keys[3] not in expected)
        assert not (await a.fetch(1, only_own=True)).limit_reached

    async def test_an_own_fetch_brings_so_many_bytes(self, cluster: Cluster) -> None:
        """It brings as many items as fit, and at least one; it says whether more waits."""
        a = await cluster.holder("a", "s")
        keys = await cluster.enqueue(*["s"] * 5, payload="é" * (SIZE // 2))
        for max_bytes, expected in ((ROOM, keys[:3]), (1, keys[3:4]), (1, keys[4:])):
            fetched = await a.fetch(10, max_bytes=max_bytes, only_own=True)
            assert [item.lock.key for item in fetched.items] == expected
            assert fetched.limit_reached == (keys[4] not in expected)

    async def test_what_is_not_visible_or_in_hand_is_not_fetched(self, cluster: Cluster) -> None:
        """It leaves an item with a delay, and an item that the caller has; neither counts as a lost claim."""
        a = await cluster.holder("a", "s")
        await cluster.enqueue("s", delay=10.0)
        await cluster.enqueue("s")
        assert len(await a.take(10, only_own=True)) == 1
        fetched = await a.fetch(10, only_own=True)
        assert (list(fetched.items), fetched.claim_lost, fetched.limit_reached) == ([], False, False)
        await cluster.advance(11)
        assert len(await a.take(10, only_own=True)) == 1

    async def test_an_own_fetch_leaves_the_work_of_a_planned_move(self, cluster: Cluster) -> None:
        """That is for the named worker, which fetches it so once it has the session."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await cluster.enqueue("s")
        assert await a.plan("s", "b") == "planned"
        for worker in (a, b):
            fetched = await worker.fetch(10, only_own=True)
            assert (list(fetched.items), fetched.claim_lost) == ([], False)
        assert await b.take_moved("s") == ["s"]
        assert [item.session_id for item in await b.take(10, only_own=True)] == ["s"]

    async def test_a_session_that_is_lost_is_not_own(self, cluster: Cluster) -> None:
        """Such a fetch does not claim it either, after its lock has ended or it was released."""
        a = await cluster.holder("a", "s", "t")
        await cluster.enqueue("s", "t")
        assert await a.provider.release_session(["t"]) == ["released"]
        assert [item.session_id for item in await a.take(10, only_own=True)] == ["s"]
        await cluster.enqueue("s")
        await cluster.advance(SESSION_LOCK + 1)
        assert await a.take(10, only_own=True) == []
        assert await cluster.holders() == {}
        await cluster.sweep_all()
        assert len(await a.take_all()) == 3

    async def test_an_own_fetch_needs_the_lease(self, cluster: Cluster) -> None:
        """A worker that is dead, or was replaced, gets nothing, and no lost claim."""
        a = await cluster.holder("a", "s", lease=SHORT_LEASE)
        await cluster.enqueue("s")
        again = await cluster.worker("a", SHORT_LEASE)
        await _finds_nothing(a)
        item = await again.take_one(only_own=True)
        assert await again.give_back(item) == [True]
        await cluster.advance(SHORT_LEASE + 1)
        await _finds_nothing(again)

    async def test_a_draining_worker_fetches_work_of_what_it_holds(self, cluster: Cluster) -> None:
        """A drain frees idle sessions only (contract: drain_worker)."""
        a = await cluster.holder("a", "idle")
        await cluster.give(a, "busy")
        assert await a.drain() == 1
        await cluster.enqueue("idle", "busy")
        assert [item.session_id for item in await a.take(10, only_own=True)] == ["busy"]

    async def test_an_own_fetch_of_a_worker_with_tags(self, cluster: Cluster) -> None:
        """It brings the tag of the session, with an item that has none too."""
        gpu = await cluster.worker("gpu", tags=GPU)
        await cluster.enqueue("s", tag="gpu")
        assert await gpu.ack(await gpu.take_one()) == [True]
        await cluster.enqueue(None, "new", tag="gpu")
        await cluster.enqueue("s")
        assert [(item.session_id, item.session_tag) for item in await gpu.take(10, only_own=True)] == [("s", "gpu")]

    async def test_an_own_fetch_beside_other_fetches(self, cluster: Cluster) -> None:
        """Every item is delivered once."""
        a = await cluster.worker("a")
        peers = [await cluster.same_worker(a) for _ in range(3)]
        await cluster.use(a, "s")
        for _ in range(10):
            keys = await cluster.enqueue(*["s"] * 6)
            fetches = zip(peers, (True, True, False), strict=True)
            taken = await concurrently(*(partial(peer.take, 3, only_own=own) for peer, own in fetches))
            items = [item for fetched in taken for item in fetched] + await a.take(10, only_own=True)
            assert sorted(item.lock.key for item in items) == keys
            assert all(await a.ack(*items))


async def _finds_nothing(worker: Peer) -> None:
    fetched = await worker.fetch(10, only_own=True)
    assert (list(fetched.items), fetched.claim_lost) == ([], False)
