"""Routing: who is given which work item, and what a fetch costs."""

from __future__ import annotations

from itertools import permutations

from affinity.provider.contract import WorkKey
from affinity.testing.conformance.providers.base import Rules
from affinity.testing.conformance.providers.builders import SESSION_LOCK, fetch_options
from affinity.testing.conformance.providers.world import World, at_once


class RoutingRules(Rules):
    """`fetch_work_item` when nothing goes wrong, and when several ask at once."""

    async def test_any_worker_gets_session_free_items(self, world: World) -> None:
        """They belong to nobody (contract: fetch_work_item)."""
        a, b = await world.worker("a"), await world.worker("b")
        keys = await world.enqueue(None, None)
        items = [await a.take_one(), await b.take_one()]
        assert [item.lock.key for item in items] == keys
        assert [item.session_epoch for item in items] == [None, None]
        assert await world.sessions() == {}

    async def test_an_item_is_delivered_as_it_was_queued(self, world: World) -> None:
        """Its first delivery counts as the first attempt (contract: WorkItem)."""
        a = await world.worker("a")
        (key,) = await world.enqueue("s", name="other")
        item = await a.take_one()
        assert (item.lock.key, item.name, item.session_id) == (key, "other", "s")
        assert item.payload == f"input {key.activity_id}"
        assert (item.attempts, item.failures, item.unknown_for) == (1, 0, None)

    async def test_an_item_in_hand_is_not_delivered_again(self, world: World) -> None:
        """Neither to the worker that has it nor to another (contract: live token)."""
        a, b = await world.worker("a"), await world.worker("b")
        await world.enqueue(None, "s")
        assert len(await a.take_all()) == 2
        assert await a.take(10) == []
        assert await b.take(10) == []

    async def test_the_first_fetch_claims_an_unclaimed_session(self, world: World) -> None:
        """With the row written (contract: fetch_work_item)."""
        a = await world.worker("a")
        await world.enqueue("s")
        assert await world.sessions() == {}
        item = await a.take_one()
        row = await world.session("s")
        assert (row.worker_id, row.incarnation) == ("a", a.identity.incarnation)
        assert row.held
        assert row.epoch == item.session_epoch
        assert SESSION_LOCK - 5 < row.expires_in <= SESSION_LOCK

    async def test_the_holder_gets_further_items_and_nobody_else_does(self, world: World) -> None:
        """While the session is held (design 4.11)."""
        a, b = await world.worker("a"), await world.worker("b")
        await world.enqueue("s")
        first = await a.take_one()
        await world.enqueue("s", "s")
        assert await b.take(10) == []
        further = await a.take(10)
        assert [item.session_id for item in further] == ["s", "s"]
        assert {item.session_epoch for item in further} == {first.session_epoch}

    async def test_items_that_waited_go_to_the_one_who_claims_first(self, world: World) -> None:
        """All of them: queued before the claim, they are the holder's after it (design 4.11)."""
        a, b = await world.worker("a"), await world.worker("b")
        await world.enqueue("s", "s", "s")
        first = await a.take_one()
        assert await b.take(10) == []
        assert [item.session_epoch for item in await a.take(10)] == [first.session_epoch] * 2

    async def test_two_workers_hold_two_sessions(self, world: World) -> None:
        """Each claims the next one that nobody holds (contract: fetch_work_item)."""
        a, b = await world.worker("a"), await world.worker("b")
        await world.enqueue("s", "t")
        await a.take_one()
        await b.take_one()
        assert await world.holders() == {"s": "a", "t": "b"}
        await world.enqueue("t", "s")
        assert [item.session_id for item in await a.take(10)] == ["s"]
        assert [item.session_id for item in await b.take(10)] == ["t"]

    async def test_a_mix_flows_to_both(self, world: World) -> None:
        """Nobody waits for the other; together they empty the queue (contract: fetch_work_item)."""
        a, b = await world.worker("a"), await world.worker("b")
        keys = await world.enqueue(None, "s", "t", None, "s", "t", None)
        taken = [await a.take_one(), await b.take_one()]
        for _ in keys:
            taken += await a.take() + await b.take()
        assert sorted(item.lock.key for item in taken) == keys
        assert len({item.lock.token for item in taken}) == len(keys)
        holders = await world.holders()
        assert set(holders) == {"s", "t"}

    async def test_a_fetch_takes_no_more_than_its_limit(self, world: World) -> None:
        """Of all kinds together, and as many as there are (contract: fetch_work_item)."""
        a = await world.worker("a")
        await world.enqueue("s")
        await a.take_one()
        await world.enqueue("s", None, "t", "s", None, "u")
        assert [len(await a.take(4)), len(await a.take(4)), len(await a.take(4))] == [4, 2, 0]

    async def test_the_oldest_comes_first_over_all_kinds(self, world: World) -> None:
        """Of sessions that the caller holds, session-free, offered to it, and of sessions that nobody holds; one after
        the other, and several at a time (contract: fetch_work_item).
        """
        a = await world.worker("a")
        await world.use(a, "s")
        for limit in (1, 3):
            keys: list[WorkKey] = []
            for number, order in enumerate(permutations(("s", None, "new", "offered"))):
                for kind in order:
                    if kind == "offered":
                        keys.append(await world.offer(a, f"offered {limit} {number}"))
                    else:
                        keys += await world.enqueue(f"new {limit} {number}" if kind == "new" else kind)
            while items := await a.take(limit):
                oldest, keys = keys[:limit], keys[limit:]
                assert {item.lock.key for item in items} == set(oldest)
            assert keys == []

    async def test_older_work_of_a_session_that_is_not_for_the_caller_keeps_nothing_back(self, world: World) -> None:
        """Of another's session, or of one that it has no room for (contract: fetch_work_item)."""
        a, b = await world.worker("a"), await world.worker("b")
        await world.use(a, "s")
        await world.use(b, "theirs")
        await world.enqueue("theirs", "new")
        keys = await world.enqueue("s", None)
        fetched = await a.fetch(2, max_sessions=1)
        assert [item.lock.key for item in fetched.items] == keys
        assert fetched.crowded

    async def test_a_fetch_says_who_else_takes_work(self, world: World) -> None:
        """And whether it could have had more, with fewer sessions (contract: WorkFetch.alone, crowded)."""
        a = await world.worker("a")
        clerk = await world.clerk()
        await world.use(a, "s")
        assert not (await a.fetch()).alone
        await world.enqueue("t")
        assert [(await a.fetch(max_sessions=most)).crowded for most in (0, 1, 2)] == [False, True, False]
        await world.enqueue("t")
        assert not (await a.fetch(max_sessions=1)).crowded
        await clerk.drain()
        assert (await a.fetch()).alone

    async def test_a_delayed_item_becomes_visible_in_time(self, world: World) -> None:
        """Not before, and ``next_due`` says when (contract: WorkFetch)."""
        a = await world.worker("a")
        for session_id in (None, "s", "s"):  # free, unclaimed, held
            await world.enqueue(session_id, delay=60)
            early = await a.fetch()
            assert list(early.items) == []
            assert early.next_due is not None
            assert 50 < early.next_due <= 60
            await world.advance(60)
            item = await a.take_one()
            assert item.attempts == 1
            await a.ack(item)

    async def test_the_nearest_of_several_is_due_next(self, world: World) -> None:
        """``next_due`` is the first (contract: WorkFetch)."""
        a = await world.worker("a")
        await world.enqueue("s", delay=90)
        await world.enqueue(None, delay=30)
        await world.enqueue("t", delay=60)
        next_due = (await a.fetch()).next_due
        assert next_due is not None
        assert 20 < next_due <= 30

    async def test_nothing_is_due_in_an_empty_queue(self, world: World) -> None:
        """None, and nothing to race for (contract: WorkFetch)."""
        fetched = await (await world.worker("a")).fetch()
        assert (list(fetched.items), fetched.claim_lost, fetched.next_due) == ([], False, None)

    async def test_what_another_holder_waits_for_is_not_due_here(self, world: World) -> None:
        """Only something of ours, or unclaimed (contract: WorkFetch)."""
        a, b = await world.worker("a"), await world.worker("b")
        await world.enqueue("s")
        await a.take_one()
        await world.enqueue("s", delay=60)
        assert (await b.fetch()).next_due is None

    async def test_a_claim_race_has_one_winner(self, world: World) -> None:
        """All items of a session go to one worker, whoever asks at the same time (design 4.11)."""
        peers = [await world.worker(name) for name in "abcd"]
        await world.enqueue(*["s", "t", "u"] * 5)
        taken = await at_once(*(peer.take_all for peer in peers))
        winners = {
            (item.session_id, peer.worker_id) for peer, items in zip(peers, taken, strict=True) for item in items
        }
        assert winners == set((await world.holders()).items())
        assert sum(len(items) for items in taken) == 15

    async def test_the_loser_of_a_race_gets_other_work_at_once(self, world: World) -> None:
        """A lost race is not an empty queue (design 4.8)."""
        a, b = await world.worker("a"), await world.worker("b")
        for attempt in range(10):
            keys = await world.enqueue(f"s{attempt}", f"t{attempt}")
            first, second = await at_once(a.take_one, b.take_one)
            assert {first.lock.key, second.lock.key} == set(keys)

    async def test_concurrent_fetches_deliver_each_item_once(self, world: World) -> None:
        """Four processes, forty items, free and on sessions (contract: live token)."""
        peers = [await world.worker(name) for name in "abcd"]
        keys = await world.enqueue(*[None, "s", "t", "u"] * 10)
        taken = await at_once(*(peer.take_all for peer in peers))
        assert sorted(item.lock.key for items in taken for item in items) == keys

    async def test_foreign_work_does_not_make_a_fetch_dearer(self, world: World) -> None:
        """10,000 items of other workers' sessions are not felt; work done is counted, not time (design 5.5)."""
        a, b = await world.worker("a"), await world.worker("b")
        sessions = [f"s{number}" for number in range(100)]
        await world.enqueue(*sessions)
        await a.take_all()
        await world.enqueue(None, None)
        await world.aclose()
        alone = await world.harness.fetch_cost(b.identity, fetch_options())
        await world.enqueue(*sessions * 100)
        await world.aclose()
        crowded = await world.harness.fetch_cost(b.identity, fetch_options())
        assert alone > 0
        assert crowded <= 3 * max(alone, 100)
