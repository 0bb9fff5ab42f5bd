"""Work that waits for the busy holder of its session, or for a worker with its tag, for so long and no longer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from affinity.provider.contract import NEWER_SECONDS, MoveFilter, PlannedMove, WorkerTags
from affinity.records import Gate
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import ITEM_LOCK, SHORT_LEASE, message_ids, work_item
from affinity_conformance.providers.cluster import Cluster

GPU: Final = WorkerTags(tags=("gpu",))


class WaitRules(Rules):
    """`end_waits`, `NewWorkItem.takeover_after` and ``fail_after``."""

    async def test_an_item_that_waits_too_long_is_failed(self, cluster: Cluster) -> None:
        """It is locked to the caller, whichever worker holds its session; this does not count as an attempt (contract:
        end_waits).
        """
        holder, other = await cluster.holder("holder", "s"), await cluster.worker("other")
        (key,) = await cluster.enqueue("s", fail_after=5.0)
        await cluster.enqueue("s")
        await cluster.advance(4.0)
        assert not (await other.end_waits()).failed
        await cluster.advance(2.0)
        ((item, why),) = (await other.end_waits()).failed
        assert (item.lock.key, item.session_id, item.attempts, why) == (key, "s", 0, "busy")
        assert not (await other.end_waits()).failed
        assert await other.ack(item, message="busy") == [True]
        assert await cluster.results() == ["done", "busy"]
        assert len(await holder.take_all()) == 1

    async def test_an_item_without_a_holder_fails_too(self, cluster: Cluster) -> None:
        """It does not matter whether a worker holds the session. The wait begins when the item is visible."""
        worker = await cluster.worker("w")
        await cluster.enqueue("s", fail_after=5.0, delay=10.0)
        await cluster.advance(11.0)
        assert not (await worker.end_waits()).failed
        await cluster.advance(5.0)
        assert [why for _, why in (await worker.end_waits()).failed] == ["busy"]

    async def test_an_item_that_runs_does_not_fail(self, cluster: Cluster) -> None:
        """An item that is given back, or whose lock has ended, waits anew from then on."""
        worker, other = await cluster.worker("w"), await cluster.worker("other")
        await cluster.enqueue("s", fail_after=5.0)
        item = await worker.take_one()
        await cluster.advance(6.0)
        assert not (await other.end_waits()).failed
        assert await worker.give_back(item, failed=True, delay=2.0) == [True]
        await cluster.advance(6.0)
        assert not (await other.end_waits()).failed
        item = await worker.take_one()
        await cluster.advance(ITEM_LOCK + 1)
        assert not (await other.end_waits()).failed
        await cluster.advance(6.0)
        assert not (await other.end_waits()).failed  # it was seen as locked until now
        assert (await worker.take_one()).lock.key == item.lock.key

    async def test_a_worker_that_dies_before_it_fails_an_item_leaves_it(self, cluster: Cluster) -> None:
        """The item is fetched as usual."""
        first, second = await cluster.worker("first", SHORT_LEASE), await cluster.worker("second")
        await cluster.enqueue(None, fail_after=5.0)
        await cluster.advance(6.0)
        assert len((await first.end_waits()).failed) == 1
        await cluster.pass_time(SHORT_LEASE + ITEM_LOCK)
        assert not (await second.end_waits()).failed
        assert len(await second.take_all()) == 1

    async def test_a_busy_holder_loses_the_session(self, cluster: Cluster) -> None:
        """Another worker takes it over, with a reason (contract: end_waits)."""
        _, other = await cluster.holder("holder", "s"), await cluster.worker("other")
        await cluster.enqueue("s", takeover_after=2.0)
        await cluster.enqueue("s")
        await cluster.advance(1.0)
        assert not (await other.end_waits()).freed
        assert await other.take_all() == []
        await cluster.advance(2.0)
        assert list((await other.end_waits()).freed) == ["s"]
        assert len(await other.take_all()) == 2
        assert (await cluster.holders())["s"] == "other"
        moves = await other.provider.list_session_moves(MoveFilter(session_id="s"), limit=10)
        assert "holder_busy" in {move.reason for move in moves}

    async def test_a_session_whose_work_runs_stays(self, cluster: Cluster) -> None:
        """The verb tries again after the same time."""
        holder, other = await cluster.worker("holder"), await cluster.worker("other")
        running = await cluster.give(holder, "s")
        await cluster.enqueue("s", takeover_after=2.0)
        await cluster.advance(3.0)
        assert not (await other.end_waits()).freed
        assert await holder.ack(running) == [True]
        await cluster.advance(1.0)
        assert not (await other.end_waits()).freed
        await cluster.advance(2.0)
        assert list((await other.end_waits()).freed) == ["s"]

    async def test_a_session_stays_where_no_other_worker_takes_it(self, cluster: Cluster) -> None:
        """Another worker must be alive, not draining, and have room and the session's tag."""
        holder = await cluster.worker("holder", tags=GPU)
        await cluster.enqueue("s", tag="gpu")
        assert await holder.ack(await holder.take_one()) == [True]
        await cluster.enqueue("s", takeover_after=2.0)
        await cluster.worker("plain")
        await cluster.worker("full", tags=GPU, capacity=0)
        await (await cluster.worker("draining", tags=GPU)).drain()
        await cluster.advance(3.0)
        assert not (await holder.end_waits()).freed
        await cluster.worker("other", tags=GPU, capacity=1)
        await cluster.advance(3.0)
        assert list((await holder.end_waits()).freed) == ["s"]

    async def test_a_planned_move_is_left_alone(self, cluster: Cluster) -> None:
        """The session will go elsewhere already."""
        _, other = await cluster.holder("holder", "s"), await cluster.worker("other")
        await cluster.enqueue("s", takeover_after=2.0)
        move = PlannedMove(session_id="s", to="other", within=60.0)
        assert list(await other.provider.move_session([move])) == ["planned"]
        await cluster.advance(3.0)
        assert not (await other.end_waits()).freed

    async def test_both_times_count_from_the_same_moment(self, cluster: Cluster) -> None:
        """An item fails after its takeover was tried and did not happen."""
        holder = await cluster.holder("holder", "s")
        await cluster.enqueue("s", takeover_after=2.0, fail_after=5.0)
        await (await cluster.enqueuer()).drain()  # no other worker takes it
        for _ in range(4):
            await cluster.advance(1.0)
            assert not (await holder.end_waits()).failed
        await cluster.advance(1.5)
        assert [why for _, why in (await holder.end_waits()).failed] == ["busy"]

    async def test_an_item_that_its_commit_has_locked_runs(self, cluster: Cluster) -> None:
        """It waits when it is given back."""
        worker, at = await cluster.owner("w", "i")
        item = replace(work_item(at, 1), lock_here=True, fail_after=5.0)
        (place,) = (await worker.commit_one(at, consumed=message_ids(at), work_items=[item])).placed
        assert place.item is not None
        await cluster.advance(6.0)
        assert not (await worker.end_waits()).failed
        assert await worker.give_back(place.item) == [True]
        await cluster.advance(6.0)
        assert len((await worker.end_waits()).failed) == 1

    async def test_work_whose_tag_no_worker_has_fails_by_option(self, cluster: Cluster) -> None:
        """It fails if no such worker was alive for ``tag_timeout``, and the item has waited for as long (contract:
        end_waits).
        """
        await cluster.worker("gpu", SHORT_LEASE, tags=GPU)
        plain = await cluster.worker("plain")
        await cluster.enqueue(None, "s", tag="eu")
        (key,) = await cluster.enqueue(None, tag="gpu")
        await cluster.advance(50.0)
        assert not (await plain.end_waits(60.0)).failed
        await cluster.advance(15.0)
        failed = (await plain.end_waits(60.0)).failed
        assert sorted([str(item.session_id) for item, _ in failed]) == ["None", "s"]
        assert {why for _, why in failed} == {"no_worker_with_tag"}
        assert not (await plain.end_waits(60.0)).failed
        assert await plain.ack(*(item for item, _ in failed)) == [True, True]
        await cluster.advance(60.0)
        assert not (await plain.end_waits()).failed
        assert [item.lock.key for item, _ in (await plain.end_waits(60.0)).failed] == [key]

    async def test_urgent_work_has_not_waited_longer(self, cluster: Cluster) -> None:
        """A priority is no time of waiting: for a worker with a tag, or for newer code (contract: end_waits,
        fetch_work_item).
        """
        urgent = Gate("[5]", limited=False, head_start=5 * 3_600.0)
        old = await cluster.worker("old", code_version="1")
        await cluster.advance(1)
        await cluster.worker("new", code_version="2")
        await cluster.enqueue(None, tag="gpu", gate=urgent)
        await cluster.enqueue("s", gate=urgent)
        assert not (await old.end_waits(60.0)).failed
        assert not await old.take(10)
        await cluster.advance(NEWER_SECONDS + 0.5)
        assert [item.session_id for item in await old.take(10)] == ["s"]
        await cluster.advance(65.0)
        assert len((await old.end_waits(60.0)).failed) == 1

    async def test_a_dead_worker_ends_no_waits(self, cluster: Cluster) -> None:
        """The caller must be alive and current."""
        dead, worker = await cluster.worker("dead", SHORT_LEASE), await cluster.worker("w")
        await cluster.enqueue(None, fail_after=5.0)
        await cluster.advance(SHORT_LEASE + 1)
        assert not (await dead.end_waits()).failed
        assert len((await worker.end_waits()).failed) == 1
