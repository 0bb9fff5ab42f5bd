"""Routing: which worker gets which work item, and what a fetch costs."""

from __future__ import annotations

from itertools import permutations

from affinity.provider.contract import WorkKey
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import SESSION_LOCK, fetch_options
from affinity_conformance.providers.cluster import Cluster, concurrently


class RoutingRules(Rules):
    """`fetch_work_item` by one worker, and by several at the same time."""

    async def test_any_worker_gets_session_free_items(self, cluster: Cluster) -> None:
        """Any worker can fetch session-free items (contract: fetch_work_item)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        keys = await cluster.enqueue(None, None)
        items = [await a.take_one(), await b.take_one()]
        assert [item.lock.key for item in items] == keys
        assert [item.session_epoch for item in items] == [None, None]
        assert await cluster.sessions() == {}

    async def test_an_item_is_delivered_as_it_was_queued(self, cluster: Cluster) -> None:
        """A delivered item has its queued fields, and its first delivery is attempt 1 (contract: WorkItem)."""
        a = await cluster.worker("a")
        (key,) = await cluster.enqueue("s", name="other")
        item = await a.take_one()
        assert (item.lock.key, item.name, item.session_id) == (key, "other", "s")
        assert item.payload == f"input {key.activity_id}"
        assert (item.attempts, item.failures, item.unknown_for) == (1, 0, None)

    async def test_an_item_in_hand_is_not_delivered_again(self, cluster: Cluster) -> None:
        """A locked item is delivered neither to its worker nor to another (contract: live token)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue(None, "s")
        assert len(await a.take_all()) == 2
        assert await a.take(10) == []
        assert await b.take(10) == []

    async def test_the_first_fetch_claims_an_unclaimed_session(self, cluster: Cluster) -> None:
        """A fetch of an item of an unclaimed session writes the session's row (contract: fetch_work_item)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s")
        assert await cluster.sessions() == {}
        item = await a.take_one()
        row = await cluster.session("s")
        assert (row.worker_id, row.incarnation) == ("a", a.identity.incarnation)
        assert row.held
        assert row.epoch == item.session_epoch
        assert SESSION_LOCK - 5 < row.expires_in <= SESSION_LOCK

    async def test_only_the_holder_gets_further_items(self, cluster: Cluster) -> None:
        """Only the holder gets further items of a held session."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        first = await cluster.give(a, "s")
        await cluster.enqueue("s", "s")
        assert await b.take(10) == []
        further = await a.take(10)
        assert [item.session_id for item in further] == ["s", "s"]
        assert {item.session_epoch for item in further} == {first.session_epoch}

    async def test_items_that_waited_go_to_the_one_who_claims_first(self, cluster: Cluster) -> None:
        """All items queued before a claim go to the worker that claims the session."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "s", "s")
        first = await a.take_one()
        assert await b.take(10) == []
        assert [item.session_epoch for item in await a.take(10)] == [first.session_epoch] * 2

    async def test_two_workers_hold_two_sessions(self, cluster: Cluster) -> None:
        """Each worker claims the next unclaimed session (contract: fetch_work_item)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "t")
        await a.take_one()
        await b.take_one()
        assert await cluster.holders() == {"s": "a", "t": "b"}
        await cluster.enqueue("t", "s")
        assert [item.session_id for item in await a.take(10)] == ["s"]
        assert [item.session_id for item in await b.take(10)] == ["t"]

    async def test_a_mix_flows_to_both(self, cluster: Cluster) -> None:
        """Two workers empty a queue of session-free and session items together (contract: fetch_work_item)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        keys = await cluster.enqueue(None, "s", "t", None, "s", "t", None)
        taken = [await a.take_one(), await b.take_one()]
        for _ in keys:
            taken += await a.take() + await b.take()
        assert sorted(item.lock.key for item in taken) == keys
        assert len({item.lock.token for item in taken}) == len(keys)
        holders = await cluster.holders()
        assert set(holders) == {"s", "t"}

    async def test_a_fetch_takes_no_more_than_its_limit(self, cluster: Cluster) -> None:
        """A fetch returns as many items of all kinds together as its limit allows (contract: fetch_work_item)."""
        a = await cluster.worker("a")
        await cluster.give(a, "s")
        await cluster.enqueue("s", None, "t", "s", None, "u")
        assert [len(await a.take(4)), len(await a.take(4)), len(await a.take(4))] == [4, 2, 0]

    async def test_the_oldest_comes_first_over_all_kinds(self, cluster: Cluster) -> None:
        """Items of all kinds come in one order by age, one at a time and several at a time (contract:
        fetch_work_item).
        """
        a = await cluster.holder("a", "s")
        for limit in (1, 3):
            keys: list[WorkKey] = []
            for number, order in enumerate(permutations(("s", None, "new", "offered"))):
                for kind in order:
                    if kind == "offered":
                        keys.append(await cluster.offer(a, f"offered {limit} {number}"))
                    else:
                        keys += await cluster.enqueue(f"new {limit} {number}" if kind == "new" else kind)
            while items := await a.take(limit):
                oldest, keys = keys[:limit], keys[limit:]
                assert {item.lock.key for item in items} == set(oldest)
            assert keys == []

    async def test_older_work_of_a_session_that_is_not_for_the_caller_keeps_nothing_back(
        self, cluster: Cluster
    ) -> None:
        """Older items of foreign sessions, or beyond the capacity, do not delay the caller's items (contract:
        fetch_work_item).
        """
        a, _ = await cluster.holder("a", "s"), await cluster.holder("b", "theirs")
        await cluster.enqueue("theirs", "new")
        keys = await cluster.enqueue("s", None)
        fetched = await a.fetch(2, max_sessions=1)
        assert [item.lock.key for item in fetched.items] == keys
        assert fetched.crowded

    async def test_a_fetch_says_who_else_takes_work(self, cluster: Cluster) -> None:
        """A fetch reports how many workers take work, and whether it could get more with fewer sessions (contract:
        WorkFetch.workers, crowded).
        """
        a = await cluster.worker("a")
        enqueuer = await cluster.enqueuer()
        await cluster.use(a, "s")
        assert (await a.fetch()).workers == 2
        await cluster.enqueue("t")
        assert [(await a.fetch(max_sessions=most)).crowded for most in (0, 1, 2)] == [False, True, False]
        await cluster.enqueue("t")
        assert not (await a.fetch(max_sessions=1)).crowded
        await enqueuer.drain()
        assert (await a.fetch()).workers == 1

    async def test_a_delayed_item_becomes_visible_in_time(self, cluster: Cluster) -> None:
        """A delayed item is not fetched before its time, and ``next_due`` reports it (contract: WorkFetch)."""
        a = await cluster.worker("a")
        for session_id in (None, "s", "s"):  # free, unclaimed, held
            await cluster.enqueue(session_id, delay=60)
            early = await a.fetch()
            assert list(early.items) == []
            assert early.next_due is not None
            assert 50 < early.next_due <= 60
            await cluster.advance(60)
            item = await a.take_one()
            assert item.attempts == 1
            await a.ack(item)

    async def test_the_nearest_of_several_is_due_next(self, cluster: Cluster) -> None:
        """``next_due`` is the smallest remaining delay (contract: WorkFetch)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", delay=90)
        await cluster.enqueue(None, delay=30)
        await cluster.enqueue("t", delay=60)
        next_due = (await a.fetch()).next_due
        assert next_due is not None
        assert 20 < next_due <= 30

    async def test_nothing_is_due_in_an_empty_queue(self, cluster: Cluster) -> None:
        """``next_due`` is None, and no claim is lost (contract: WorkFetch)."""
        fetched = await (await cluster.worker("a")).fetch()
        assert (list(fetched.items), fetched.claim_lost, fetched.next_due) == ([], False, None)

    async def test_what_another_holder_waits_for_is_not_due_here(self, cluster: Cluster) -> None:
        """``next_due`` ignores items of sessions that other workers hold (contract: WorkFetch)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.give(a, "s")
        await cluster.enqueue("s", delay=60)
        assert (await b.fetch()).next_due is None

    async def test_a_claim_race_has_one_winner(self, cluster: Cluster) -> None:
        """One of the racing workers gets all items of the session."""
        peers = [await cluster.worker(name) for name in "abcd"]
        await cluster.enqueue(*["s", "t", "u"] * 5)
        taken = await concurrently(*(peer.take_all for peer in peers))
        winners = {
            (item.session_id, peer.worker_id) for peer, items in zip(peers, taken, strict=True) for item in items
        }
        assert winners == set((await cluster.holders()).items())
        assert sum(len(items) for items in taken) == 15

    async def test_the_loser_of_a_race_gets_other_work_immediately(self, cluster: Cluster) -> None:
        """A worker that loses a race gets other work with its next fetch."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        for attempt in range(10):
            keys = await cluster.enqueue(f"s{attempt}", f"t{attempt}")
            first, second = await concurrently(a.take_one, b.take_one)
            assert {first.lock.key, second.lock.key} == set(keys)

    async def test_concurrent_fetches_deliver_each_item_once(self, cluster: Cluster) -> None:
        """Four processes that fetch forty items at the same time get each item once (contract: live token)."""
        peers = [await cluster.worker(name) for name in "abcd"]
        keys = await cluster.enqueue(*[None, "s", "t", "u"] * 10)
        taken = await concurrently(*(peer.take_all for peer in peers))
        assert sorted(item.lock.key for items in taken for item in items) == keys

    async def test_foreign_work_does_not_make_a_fetch_dearer(self, cluster: Cluster) -> None:
        """The work of a fetch does not grow with 10,000 items of other workers' sessions."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        sessions = [f"s{number}" for number in range(100)]
        await cluster.enqueue(*sessions)
        await a.take_all()
        await cluster.enqueue(None, None)
        await cluster.aclose()
        alone = await cluster.harness.fetch_cost(b.identity, fetch_options())
        await cluster.enqueue(*sessions * 100)
        await cluster.aclose()
        crowded = await cluster.harness.fetch_cost(b.identity, fetch_options())
        assert alone > 0
        assert crowded <= 3 * max(alone, 100)
