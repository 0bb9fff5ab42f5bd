"""Capacity: how many sessions a worker holds, its work when it holds that many, and how much one fetch takes."""

from __future__ import annotations

import pytest

from affinity.limits import MIN_SHARE, fair_share
from affinity.provider.contract import NEWER_SECONDS
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import SESSION_LOCK, SHORT_LEASE, new_instance
from affinity_conformance.providers.cluster import Cluster, concurrently


class CapacityRules(Rules):
    """``FetchOptions.max_sessions``, and ``limit``."""

    async def test_a_full_worker_claims_no_new_session(self, cluster: Cluster) -> None:
        """A worker at its capacity claims no session; another worker does."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "t", "u")
        assert len(await a.take(10, max_sessions=2)) == 2
        assert await a.take(10, max_sessions=2) == []
        assert [item.session_id for item in await b.take(10, max_sessions=2)] == ["u"]

    async def test_a_full_worker_serves_the_sessions_that_it_holds(self, cluster: Cluster) -> None:
        """A worker at its capacity still gets items of its sessions and session-free items."""
        a = await cluster.worker("a")
        await cluster.give(a, "s", max_sessions=1)
        await cluster.enqueue("new", "s", None, "new", "s")
        taken = [item.session_id for item in await a.take_all(max_sessions=1)]
        assert sorted(taken, key=str) == [None, "s", "s"]

    async def test_one_session_counts_once(self, cluster: Cluster) -> None:
        """A session counts once, however many of its items the claim brings."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", "s", "t", "s", "t")
        assert len(await a.take(10, max_sessions=2)) == 5

    async def test_a_single_fetch_does_not_exceed_the_capacity(self, cluster: Cluster) -> None:
        """One fetch stops claiming sessions at the capacity."""
        a = await cluster.worker("a")
        await cluster.enqueue(*[f"s{number}" for number in range(20)])
        await a.take_all(max_sessions=7)
        assert len(await cluster.holders()) == 7

    async def test_a_burst_of_sessions_is_shared(self, cluster: Cluster) -> None:
        """Each fetch takes a share of the unclaimed items and reports that some remain (contract: fetch_work_item)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        workers, waiting, taken = 3, 60, {"a": 0, "b": 0}  # the enqueuer is a worker too
        await cluster.enqueue(*[f"s{number}" for number in range(waiting)])
        while waiting:
            for peer in (a, b):
                fetched = await peer.fetch(100)
                assert len({item.session_id for item in fetched.items}) == min(waiting, fair_share(waiting, workers))
                assert fetched.unclaimed_remaining == (fair_share(waiting, workers) < waiting)
                waiting -= len(fetched.items)
                taken[peer.worker_id] += len(fetched.items)
        assert sum(taken.values()) == 60
        assert min(taken.values()) >= 24

    async def test_a_burst_of_instances_is_shared(self, cluster: Cluster) -> None:
        """Each fetch takes a share of the unowned instances and reports that some remain (contract:
        fetch_orchestration_item).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueuer()
        workers, waiting = 3, 60
        seen: list[int] = []
        await a.provider.create_instance([new_instance(f"i{number}") for number in range(waiting)])
        for peer in (a, b, a, b):
            fetched = await peer.fetch_instances(100, exclude=seen)
            assert len(fetched.items) == fair_share(waiting, workers)
            assert fetched.unclaimed_remaining
            waiting -= len(fetched.items)
            seen += [message.id for item in fetched.items for message in item.messages]

    async def test_a_small_burst_goes_to_the_worker_that_fetches(self, cluster: Cluster) -> None:
        """A burst of at most `MIN_SHARE` items goes to the first worker that fetches (contract: fetch_work_item)."""
        a = await cluster.worker("a")
        await cluster.worker("b")
        await cluster.enqueue(*[f"s{number}" for number in range(MIN_SHARE)])
        fetched = await a.fetch(100)
        assert (len(fetched.items), fetched.unclaimed_remaining) == (MIN_SHARE, False)
        await a.provider.create_instance([new_instance(f"i{number}") for number in range(MIN_SHARE)])
        instances = await a.fetch_instances(100)
        assert (len(instances.items), instances.unclaimed_remaining) == (MIN_SHARE, False)

    async def test_who_is_alone_takes_all(self, cluster: Cluster) -> None:
        """A worker takes the whole burst when all other workers are draining (contract: fetch_work_item)."""
        a = await cluster.worker("a")
        await cluster.enqueue(*[f"s{number}" for number in range(60)])
        await (await cluster.enqueuer()).drain()
        fetched = await a.fetch(50)
        assert (len(fetched.items), fetched.unclaimed_remaining) == (50, False)
        await a.provider.create_instance([new_instance(f"i{number}") for number in range(60)])
        instances = await a.fetch_instances(50)
        assert (len(instances.items), instances.unclaimed_remaining) == (50, False)

    async def test_a_fetch_that_ends_at_its_limit_says_whether_there_is_more(self, cluster: Cluster) -> None:
        """``limit_reached`` says whether the caller could get more, for each kind of item (contract:
        WorkFetch.limit_reached).
        """
        a = await cluster.holder("a", "s")
        for kind in (["s", "s", "s"], [None, None, None], ["s", "s", None], ["s", None, "t"], ["u", "v", "w"]):
            await cluster.enqueue(*kind)
            found = [await a.fetch(2) for _ in range(2)]
            assert [(len(fetched.items), fetched.limit_reached) for fetched in found] == [(2, True), (1, False)], kind
            await cluster.enqueue(*kind)
            fetched = await a.fetch(3)
            assert (len(fetched.items), fetched.limit_reached) == (3, False), kind

    async def test_what_the_caller_could_not_have_is_not_more(self, cluster: Cluster) -> None:
        """Delayed, locked, foreign and unknown items, and items beyond the capacity, do not set ``limit_reached``
        (contract: WorkFetch.limit_reached).
        """
        a, b = await cluster.holder("a", "s"), await cluster.holder("b", "theirs")
        await cluster.give(b, None)
        await cluster.enqueue(None, name="unheard of")
        unheard_of = await b.take_one()
        await cluster.enqueue("s", None, delay=60)
        await cluster.enqueue("theirs", "s", "new")
        await b.give_back(unheard_of, unknown=True, count_attempt=False)
        fetched = await a.fetch(1, max_sessions=1)
        assert ([item.session_id for item in fetched.items], fetched.limit_reached) == (["s"], False)
        await cluster.enqueue("s")
        await a.drain()
        fetched = await a.fetch(1)
        assert ([item.session_id for item in fetched.items], fetched.limit_reached) == (["s"], False)

    async def test_capacity_zero_takes_no_session_work(self, cluster: Cluster) -> None:
        """A worker with capacity 0 gets session-free items only."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", None, "t")
        assert [item.session_id for item in await a.take_all(max_sessions=0)] == [None]
        assert await cluster.sessions() == {}
        assert len(await b.take_all()) == 2

    async def test_concurrent_fetches_of_one_worker_do_not_exceed_the_capacity(self, cluster: Cluster) -> None:
        """Concurrent fetches of one worker through several provider objects stay within its capacity."""
        a = await cluster.worker("a")
        fetchers = [await cluster.same_worker(a) for _ in range(4)]
        await cluster.enqueue(*[f"s{number}" for number in range(40)])
        await concurrently(*(lambda peer=peer: peer.take_all(max_sessions=5) for peer in fetchers))
        assert len(await cluster.holders()) == 5

    async def test_workers_fill_up_independently(self, cluster: Cluster) -> None:
        """Workers that race for sessions each reach exactly their capacity."""
        peers = [await cluster.worker(name) for name in "abc"]
        await cluster.enqueue(*[f"s{number}" for number in range(40)])
        await concurrently(*(lambda peer=peer: peer.take_all(max_sessions=4) for peer in peers))
        held = list((await cluster.holders()).values())
        assert [held.count(peer.worker_id) for peer in peers] == [4, 4, 4]

    async def test_an_expired_session_makes_room(self, cluster: Cluster) -> None:
        """A session whose lock has expired does not count."""
        a = await cluster.worker("a")
        await cluster.enqueue("s")
        await a.ack(await a.take_one(max_sessions=1))
        await cluster.enqueue("t")
        assert await a.take(max_sessions=1) == []
        await cluster.pass_time(SESSION_LOCK + 1)
        assert (await a.take_one(max_sessions=1)).session_id == "t"

    async def test_a_session_given_up_makes_room(self, cluster: Cluster) -> None:
        """A worker that gives a session up may claim another one (contract: WorkAbandon.release_session)."""
        a = await cluster.worker("a")
        item = await cluster.give(a, "s", max_sessions=1)
        await cluster.enqueue("t")
        await a.give_back(item, delay=100, release_session=True)
        assert (await a.take_one(max_sessions=1)).session_id == "t"

    async def test_a_dead_worker_s_sessions_fill_no_other_worker(self, cluster: Cluster) -> None:
        """A worker takes over sessions of a dead worker only within its capacity."""
        a, b = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b")
        await cluster.enqueue("s", "t", "u")
        await a.take_all()
        await cluster.pass_time(SHORT_LEASE + 1)
        assert len(await b.take_all(max_sessions=2)) == 2
        assert len(await cluster.holders()) == 2

    # -- packing

    async def test_packed_sessions_go_to_the_lowest_ordinal_that_has_room(self, cluster: Cluster) -> None:
        """New sessions are left to a worker with a lower ordinal while it has room; 10 comes after 9 (contract:
        fetch_work_item, pack).
        """
        w10, w9 = await cluster.worker("w-10", capacity=3), await cluster.worker("w-9", capacity=3)
        await cluster.enqueue("a", "b", "c", "d")
        assert await w10.take(10, pack=True) == []
        assert len(await w9.take_all(pack=True, max_sessions=3)) == 3
        assert len(await w10.take_all(pack=True, max_sessions=3)) == 1
        assert sorted((await cluster.holders()).values()) == ["w-10", "w-9", "w-9", "w-9"]

    async def test_packing_leaves_alone_new_sessions_only(self, cluster: Cluster) -> None:
        """A worker that packs gets items of its own sessions, session-free items, and offered items (contract:
        fetch_work_item, pack).
        """
        high = await cluster.holder("w-1", "held", capacity=9)
        await cluster.worker("w-0", capacity=9)
        await cluster.enqueue("held", None, "new")
        await cluster.offer(high, "offered")
        taken = [item.session_id for item in await high.take_all(pack=True)]
        assert sorted(taken, key=str) == [None, "held", "offered"]

    async def test_packed_sessions_are_not_stranded(self, cluster: Cluster) -> None:
        """Any worker takes items that the lower worker leaves for `NEWER_SECONDS` (contract: fetch_work_item, pack)."""
        high = await cluster.worker("w-1", capacity=9)
        await cluster.worker("w-0", capacity=9)
        await cluster.enqueue("s")
        assert await high.take(pack=True) == []
        await cluster.advance(NEWER_SECONDS + 0.1)
        assert (await high.take_one(pack=True)).session_id == "s"

    @pytest.mark.parametrize("lower", ["dead", "draining", "of another set", "without room"])
    async def test_packing_waits_for_no_worker_that_takes_nothing(self, cluster: Cluster, lower: str) -> None:
        """A lower worker counts while it is alive, does not drain, has room and is of the same set
        (contract: fetch_work_item, pack).
        """
        capacity = 0 if lower == "without room" else 9
        peer = await cluster.worker("v-0" if lower == "of another set" else "w-0", SHORT_LEASE, capacity=capacity)
        high = await cluster.worker("w-1", capacity=9)
        if lower == "draining":
            await peer.drain()
        if lower == "dead":
            await cluster.advance(SHORT_LEASE + 1)
        await cluster.enqueue("s")
        assert (await high.take_one(pack=True)).session_id == "s"

    @pytest.mark.parametrize(("pack", "moved"), [(True, 0), (False, 6)])
    async def test_packed_sessions_fill_few_workers(self, cluster: Cluster, pack: bool, moved: int) -> None:
        """Two of four workers with room for ten each suffice for twelve sessions: scale-in to two moves no packed
        session, and half of the others (contract: fetch_work_item, pack).
        """
        peers = [await cluster.worker(f"w-{ordinal}", capacity=10) for ordinal in range(4)]
        for session in range(12):
            await cluster.enqueue(f"s{session}")
            for turn in range(4):  # the worker that looks first is another one each time
                await peers[(session + turn) % 4].take(1, pack=pack, max_sessions=10)
        demand = await peers[0].provider.desired_workers()
        assert (demand.held, demand.desired) == (12, 2)
        kept = {peer.worker_id for peer in peers[: demand.desired]}
        assert len([name for name in (await cluster.holders()).values() if name not in kept]) == moved
