"""The sweep: repairs stale routes, removes dead rows, and nothing else."""

from __future__ import annotations

from affinity.limits import MAX_REROUTE
from affinity.provider.contract import WorkItem
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import SESSION_LOCK, SHORT_LEASE
from affinity_conformance.providers.cluster import FOREVER, Cluster, concurrently


class SweepRules(Rules):
    """`Provider.sweep`."""

    async def test_a_session_without_work_is_removed_after_its_retention(self, cluster: Cluster) -> None:
        """A sweep removes a session without work that expired longer ago than the retention (contract: sweep)."""
        await cluster.holder("a", "s")
        await cluster.advance(SESSION_LOCK + 50)
        assert (await cluster.sweep(session_retention=100)).sessions_removed == 0
        assert set(await cluster.sessions()) == {"s"}
        await cluster.advance(60)
        assert (await cluster.sweep(session_retention=100)).sessions_removed == 1
        assert await cluster.sessions() == {}

    async def test_a_session_with_work_is_kept(self, cluster: Cluster) -> None:
        """A sweep keeps an expired session with visible, delayed or locked work (contract: sweep)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", "t", "u")
        await a.take_all()
        await cluster.enqueue("s")
        await cluster.advance(SESSION_LOCK + 1_000)
        assert (await cluster.sweep(session_retention=10)).sessions_removed == 0
        assert set(await cluster.sessions()) == {"s", "t", "u"}

    async def test_a_held_session_is_kept(self, cluster: Cluster) -> None:
        """A sweep keeps a held session, idle or not (contract: sweep)."""
        await cluster.holder("a", "s")
        await cluster.advance(SESSION_LOCK - 10)
        assert (await cluster.sweep(session_retention=0)).sessions_removed == 0
        assert await cluster.holders() == {"s": "a"}

    async def test_a_session_begins_again_with_a_greater_epoch(self, cluster: Cluster) -> None:
        """A session that begins again after its row was removed has a greater epoch."""
        a = await cluster.worker("a")
        epochs = []
        for _ in range(3):
            item = await cluster.give(a, "s")
            epochs.append(item.session_epoch or 0)
            await a.ack(item)
            await cluster.advance(SESSION_LOCK + 100)
            assert (await cluster.sweep(session_retention=10)).sessions_removed == 1
        assert epochs == sorted(set(epochs))

    async def test_a_worker_is_removed_after_its_retention(self, cluster: Cluster) -> None:
        """A sweep removes workers that died longer ago than the retention, and no others (contract: sweep)."""
        await cluster.worker("alive")
        await cluster.worker("dead", SHORT_LEASE)
        await cluster.advance(100)
        await cluster.worker("dying", SHORT_LEASE)
        await cluster.advance(SHORT_LEASE + 1)
        assert (await cluster.sweep(worker_retention=50)).workers_removed == 1
        rows = await (await cluster.enqueuer()).provider.list_workers()
        assert {row.worker_id for row in rows} >= {"alive", "dying"}
        assert "dead" not in {row.worker_id for row in rows}

    async def test_the_sweep_runs_at_most_once_per_interval(self, cluster: Cluster) -> None:
        """One sweep runs per interval over all workers (contract: sweep)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        swept = [
            (await peer.provider.sweep(interval=10, session_retention=FOREVER, worker_retention=FOREVER)).swept
            for peer in (a, b, a)
        ]
        assert swept == [True, False, False]
        await cluster.advance(11)
        assert (await cluster.sweep(interval=10)).swept
        assert not (await cluster.sweep(interval=10)).swept

    async def test_a_sweep_finds_nothing_in_good_order(self, cluster: Cluster) -> None:
        """A sweep changes no correct route (contract: sweep)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s", "t", None)
        await a.take_one()
        await cluster.enqueue("s", "t", None)
        await a.own("i")
        swept = await cluster.sweep()
        assert swept.swept
        assert (swept.rerouted, swept.sessions_removed, swept.workers_removed, swept.limit_reached) == (0, 0, 0, False)

    async def test_work_of_a_dead_holder_is_found(self, cluster: Cluster) -> None:
        """A sweep reroutes the items of a dead worker's sessions."""
        a, b = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b")
        await cluster.give(a, "s")
        await cluster.enqueue(*["s"] * 5)
        await a.own("i")
        await cluster.advance(SHORT_LEASE + 1)
        await cluster.sweep_all()
        assert len(await b.take_all()) == 6
        assert [item.instance_id for item in await b.take_instances()] == ["i"]

    async def test_a_large_move_is_finished_by_the_sweep(self, cluster: Cluster) -> None:
        """A move reroutes a bounded number of rows, and sweeps the rest in bounded steps (limits: MAX_REROUTE)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        first = await cluster.give(a, "s")
        size = 2 * MAX_REROUTE + MAX_REROUTE // 2
        await cluster.enqueue(*["s"] * size)
        await a.give_back(first, release_session=True)
        assert await cluster.sweep_all() <= 10
        assert len(await b.take_all()) == size + 1

    async def test_no_item_is_stranded_by_work_queued_during_a_move(self, cluster: Cluster) -> None:
        """A sweep repairs the stale route of an item that was queued during a move."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        for number in range(10):
            first = await cluster.give(a, f"s{number}")
            taken: list[WorkItem] = []

            async def move(item: WorkItem = first) -> None:
                await a.give_back(item, release_session=True)

            async def queue(session_id: str = f"s{number}") -> None:
                await cluster.enqueue(session_id, session_id)

            async def steal(taken: list[WorkItem] = taken) -> None:
                taken += await b.take_all()

            await concurrently(move, queue, steal)
            await cluster.sweep_all()
            taken += await b.take_all()
            assert len(taken) == 3
            assert all(await b.ack(*taken))
