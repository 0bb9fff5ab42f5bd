"""The sweep: repairs routing marks, removes what is dead, and nothing else."""

from __future__ import annotations

from affinity.limits import MAX_REROUTE
from affinity.provider.contract import WorkItem
from affinity.testing.conformance.providers.base import Rules
from affinity.testing.conformance.providers.builders import SESSION_LOCK, SHORT_LEASE
from affinity.testing.conformance.providers.world import FOREVER, World, at_once


class SweepRules(Rules):
    """`Provider.sweep`."""

    async def test_a_session_without_work_is_removed_after_its_retention(self, world: World) -> None:
        """Expired more than that long ago (contract: sweep)."""
        a = await world.worker("a")
        await world.enqueue("s")
        await a.ack(await a.take_one())
        await world.advance(SESSION_LOCK + 50)
        assert (await world.sweep(session_retention=100)).sessions_removed == 0
        assert set(await world.sessions()) == {"s"}
        await world.advance(60)
        assert (await world.sweep(session_retention=100)).sessions_removed == 1
        assert await world.sessions() == {}

    async def test_a_session_with_work_is_kept(self, world: World) -> None:
        """However long ago it expired: visible, delayed or in hand (contract: sweep)."""
        a = await world.worker("a")
        await world.enqueue("s", "t", "u")
        await a.take_all()
        await world.enqueue("s")
        await world.advance(SESSION_LOCK + 1_000)
        assert (await world.sweep(session_retention=10)).sessions_removed == 0
        assert set(await world.sessions()) == {"s", "t", "u"}

    async def test_a_held_session_is_kept(self, world: World) -> None:
        """Idle or not (contract: sweep)."""
        a = await world.worker("a")
        await world.enqueue("s")
        await a.ack(await a.take_one())
        await world.advance(SESSION_LOCK - 10)
        assert (await world.sweep(session_retention=0)).sessions_removed == 0
        assert await world.holders() == {"s": "a"}

    async def test_a_session_begins_again_with_a_greater_epoch(self, world: World) -> None:
        """After its row was removed: no state of before is ever taken for new (design 4.3)."""
        a = await world.worker("a")
        epochs = []
        for _ in range(3):
            await world.enqueue("s")
            item = await a.take_one()
            epochs.append(item.session_epoch or 0)
            await a.ack(item)
            await world.advance(SESSION_LOCK + 100)
            assert (await world.sweep(session_retention=10)).sessions_removed == 1
        assert epochs == sorted(set(epochs))

    async def test_a_worker_is_removed_after_its_retention(self, world: World) -> None:
        """The living stay, and those that died lately (contract: sweep)."""
        await world.worker("alive")
        await world.worker("dead", SHORT_LEASE)
        await world.advance(100)
        await world.worker("dying", SHORT_LEASE)
        await world.advance(SHORT_LEASE + 1)
        assert (await world.sweep(worker_retention=50)).workers_removed == 1
        rows = await (await world.clerk()).provider.list_workers()
        assert {row.worker_id for row in rows} >= {"alive", "dying"}
        assert "dead" not in {row.worker_id for row in rows}

    async def test_the_sweep_runs_at_most_once_per_interval(self, world: World) -> None:
        """Over all workers (contract: sweep)."""
        a, b = await world.worker("a"), await world.worker("b")
        swept = [
            (await peer.provider.sweep(interval=10, session_retention=FOREVER, worker_retention=FOREVER)).swept
            for peer in (a, b, a)
        ]
        assert swept == [True, False, False]
        await world.advance(11)
        assert (await world.sweep(interval=10)).swept
        assert not (await world.sweep(interval=10)).swept

    async def test_a_sweep_finds_nothing_in_good_order(self, world: World) -> None:
        """Marks that are right are left alone (contract: sweep)."""
        a = await world.worker("a")
        await world.enqueue("s", "t", None)
        await a.take_one()
        await world.enqueue("s", "t", None)
        await a.own("i")
        swept = await world.sweep()
        assert swept.swept
        assert (swept.rerouted, swept.sessions_removed, swept.workers_removed, swept.limit_reached) == (0, 0, 0, False)

    async def test_work_of_a_dead_holder_is_found(self, world: World) -> None:
        """Its items were marked for it, and nobody was there to re-mark them when its lease ended (design 5.5)."""
        a, b = await world.worker("a", SHORT_LEASE), await world.worker("b")
        await world.enqueue("s")
        await a.take_one()
        await world.enqueue(*["s"] * 5)
        await a.own("i")
        await world.advance(SHORT_LEASE + 1)
        await world.sweep_all()
        assert len(await b.take_all()) == 6
        assert [item.instance_id for item in await b.take_instances()] == ["i"]

    async def test_a_large_move_is_finished_by_the_sweep(self, world: World) -> None:
        """A move re-marks a bounded number of rows, the sweep the rest, in bounded steps (limits: MAX_REROUTE)."""
        a, b = await world.worker("a"), await world.worker("b")
        await world.enqueue("s")
        first = await a.take_one()
        size = 2 * MAX_REROUTE + MAX_REROUTE // 2
        await world.enqueue(*["s"] * size)
        await a.give_back(first, release_session=True)
        assert await world.sweep_all() <= 10
        assert len(await b.take_all()) == size + 1

    async def test_no_item_is_stranded_by_work_queued_during_a_move(self, world: World) -> None:
        """An enqueue that races a move may leave a stale mark; the sweep repairs it (design 5.5)."""
        a, b = await world.worker("a"), await world.worker("b")
        for number in range(10):
            await world.enqueue(f"s{number}")
            first = await a.take_one()
            taken: list[WorkItem] = []

            async def move(item: WorkItem = first) -> None:
                await a.give_back(item, release_session=True)

            async def queue(session_id: str = f"s{number}") -> None:
                await world.enqueue(session_id, session_id)

            async def steal(taken: list[WorkItem] = taken) -> None:
                taken += await b.take_all()

            await at_once(move, queue, steal)
            await world.sweep_all()
            taken += await b.take_all()
            assert len(taken) == 3
            assert all(await b.ack(*taken))
