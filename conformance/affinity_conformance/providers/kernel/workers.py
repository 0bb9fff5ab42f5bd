"""Workers: the lease of a process, its end and its return, drain and replacement."""

from __future__ import annotations

from datetime import timedelta

import pytest

from affinity.errors import WorkerFenced
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import LONG_LEASE, SHORT_LEASE
from affinity_conformance.providers.cluster import Cluster


class WorkerRules(Rules):
    """`register_worker`, `renew_worker`, `drain_worker`, `release_worker`."""

    async def test_a_registration_gives_the_lease_that_was_asked_for(self, cluster: Cluster) -> None:
        """A registration returns the requested lease, not draining (contract: WorkerLease)."""
        lease = await (await cluster.peer("a")).register(SHORT_LEASE)
        assert SHORT_LEASE - 5 < lease.expires_in <= SHORT_LEASE
        assert not lease.draining

    async def test_the_clock_is_the_database_s(self, cluster: Cluster) -> None:
        """All processes read the database's clock, as aware UTC datetimes."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        before = await a.renew_lease(LONG_LEASE)
        await cluster.advance(1_000)
        after = await b.renew_lease(LONG_LEASE)
        assert before is not None
        assert after is not None
        assert before.database_time.utcoffset() == timedelta(0)
        assert timedelta(seconds=1_000) <= after.database_time - before.database_time < timedelta(seconds=1_100)

    async def test_a_renewal_extends_the_lease(self, cluster: Cluster) -> None:
        """A renewal sets the lease to the requested length from now (contract: renew_worker)."""
        a = await cluster.worker("a", SHORT_LEASE)
        for _ in range(3):
            await cluster.advance(SHORT_LEASE / 2)
            lease = await a.renew_lease(SHORT_LEASE)
            assert lease is not None
            assert SHORT_LEASE - 5 < lease.expires_in <= SHORT_LEASE

    async def test_a_renewal_may_replace_the_labels(self, cluster: Cluster) -> None:
        """The row keeps its labels if a renewal has none (contract: renew_worker)."""
        a = await cluster.worker("a", LONG_LEASE)
        for labels, found in (({"slots": "2"}, {"slots": "2"}), (None, {"slots": "2"}), ({}, {})):
            assert await a.renew_lease(LONG_LEASE, labels) is not None
            assert [dict(row.labels) for row in await a.provider.list_workers() if row.worker_id == "a"] == [found]

    async def test_a_renewal_does_not_resurrect_a_lease_that_has_ended(self, cluster: Cluster) -> None:
        """A renewal of an ended lease returns None and the worker stays dead (contract: renew_worker)."""
        a = await cluster.worker("a", SHORT_LEASE)
        await cluster.enqueue(None)
        await cluster.advance(SHORT_LEASE + 1)
        assert await a.renew_lease() is None
        assert await a.take() == []

    async def test_a_process_that_never_registered_has_no_lease(self, cluster: Cluster) -> None:
        """A process that never registered can neither renew nor fetch (contract: renew_worker, fetch_work_item)."""
        stranger = await cluster.peer("a")
        await cluster.enqueue(None)
        assert await stranger.renew_lease() is None
        assert await stranger.take() == []

    async def test_a_dead_worker_fetches_nothing_until_it_registers_again(self, cluster: Cluster) -> None:
        """A dead worker fetches nothing until it registers with ``resume`` (contract: register_worker)."""
        a = await cluster.worker("a", SHORT_LEASE)
        await cluster.enqueue(None, "s")
        await cluster.advance(SHORT_LEASE + 1)
        assert await a.take(10) == []
        await a.register(resume=True)
        assert len(await a.take_all()) == 2

    async def test_a_second_process_of_that_name_fences_the_first(self, cluster: Cluster) -> None:
        """The first process gets nothing, and its renewal raises `WorkerFenced` (contract: register_worker)."""
        first = await cluster.worker("a")
        await first.own("i")
        second = await cluster.worker("a")
        await cluster.enqueue(None, "s")
        with pytest.raises(WorkerFenced):
            await first.renew_lease()
        assert await first.take(10) == []
        assert await first.take_instances() == []
        assert (await first.fetch_instances()).fenced
        assert not (await second.fetch_instances()).fenced
        assert await second.renew_lease() is not None
        assert len(await second.take_all()) == 2

    async def test_a_fenced_process_commits_nothing(self, cluster: Cluster) -> None:
        """A fenced process can commit no turn (contract: Turn)."""
        first, instance = await cluster.owner("a", "i")
        await cluster.worker("a")
        result = await first.commit_one(instance)
        assert not result.committed
        assert await first.history(instance) == []

    async def test_a_fenced_process_cannot_end_the_lease_of_its_successor(self, cluster: Cluster) -> None:
        """A fenced process that leaves does not end the lease of its successor (contract: release_worker)."""
        first = await cluster.worker("a")
        second = await cluster.worker("a")
        item = await cluster.give(second, "s")
        await first.leave()
        assert await second.renew_lease() is not None
        assert await second.renew(item) == [True]
        assert await cluster.holders() == {"s": "a"}

    async def test_resuming_after_expiry_keeps_sessions_and_epochs(self, cluster: Cluster) -> None:
        """A worker that resumes after its lease expired keeps its sessions and epochs."""
        a = await cluster.worker("a", SHORT_LEASE)
        item = await cluster.give(a, "s")
        await cluster.pass_time(SHORT_LEASE + 1)
        await a.register(resume=True)
        assert (await cluster.give(a, "s")).session_epoch == item.session_epoch
        assert (await cluster.session("s")).epoch == item.session_epoch

    async def test_resuming_keeps_only_sessions_that_no_worker_took(self, cluster: Cluster) -> None:
        """A worker that resumes does not get back sessions that another worker has claimed (contract:
        register_worker).
        """
        a, b = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b")
        await cluster.enqueue("kept", "lost")
        await a.take(10)
        await cluster.pass_time(SHORT_LEASE + 1)
        await cluster.enqueue("lost")
        await b.take(10, max_sessions=1)
        taken = await cluster.holders()
        await a.register(resume=True)
        assert sorted(taken.values()) == ["b"]
        assert await cluster.holders() == {"kept": "a", "lost": "a"} | taken

    async def test_resuming_after_being_replaced_is_refused(self, cluster: Cluster) -> None:
        """Resuming raises `WorkerFenced` after another incarnation took the name, which stays registered (contract:
        register_worker).
        """
        first = await cluster.worker("a", SHORT_LEASE)
        await cluster.advance(SHORT_LEASE + 1)
        second = await cluster.worker("a", SHORT_LEASE)
        with pytest.raises(WorkerFenced):
            await first.register(resume=True)
        assert await second.renew_lease() is not None

    async def test_resuming_works_when_the_row_was_swept(self, cluster: Cluster) -> None:
        """A worker can resume after a sweep removed its row (contract: register_worker)."""
        a = await cluster.worker("a", SHORT_LEASE)
        await cluster.advance(SHORT_LEASE + 100)
        await cluster.sweep(worker_retention=10)
        assert await a.renew_lease() is None
        await a.register(resume=True)
        assert await a.renew_lease() is not None

    async def test_a_restart_keeps_its_sessions_immediately_with_new_epochs(self, cluster: Cluster) -> None:
        """A restarted worker gets the sessions of its name immediately, with new epochs."""
        old = await cluster.worker("a")
        await cluster.enqueue("s", "t")
        epochs = {item.session_id: item.session_epoch or 0 for item in await old.take(10)}
        new = await cluster.worker("a")
        rows = await cluster.sessions()
        assert {row.incarnation for row in rows.values()} == {new.identity.incarnation}
        assert all(row.held and row.epoch > epochs[row.session_id] for row in rows.values())

    async def test_a_restart_after_its_lease_ended_keeps_sessions_that_no_worker_took(self, cluster: Cluster) -> None:
        """A restart after the lease ended keeps sessions with unexpired locks that no other claimed (contract:
        register_worker).
        """
        old = await cluster.worker("a", SHORT_LEASE)
        item = await cluster.give(old, "s")
        await cluster.pass_time(SHORT_LEASE + 1)
        await cluster.worker("a")
        row = await cluster.session("s")
        assert row.held
        assert row.epoch > (item.session_epoch or 0)

    async def test_a_restart_is_not_given_sessions_that_had_expired(self, cluster: Cluster) -> None:
        """A restarted worker does not get sessions whose lock had expired (contract: register_worker)."""
        await cluster.holder("a", "s")
        await cluster.pass_time(301)
        await cluster.worker("a")
        assert await cluster.holders() == {}

    async def test_a_restart_finds_the_work_of_the_old_process_free(self, cluster: Cluster) -> None:
        """Items that the former incarnation locked are free after a restart (contract: live token)."""
        old = await cluster.worker("a")
        before = await cluster.give(old, "s")
        after = await (await cluster.worker("a")).take_one()
        assert after.lock.key == before.lock.key
        assert after.attempts == 2
        assert (after.session_epoch or 0) > (before.session_epoch or 0)

    async def test_registering_ends_draining(self, cluster: Cluster) -> None:
        """A renewal reports draining, and a registration clears it (contract: register_worker)."""
        a = await cluster.worker("a")
        await a.drain()
        draining = await a.renew_lease()
        assert draining is not None
        assert draining.draining
        assert not (await a.register()).draining
        await cluster.enqueue("s")
        assert len(await a.take()) == 1

    async def test_a_draining_worker_claims_nothing(self, cluster: Cluster) -> None:
        """A draining worker claims neither a session nor an instance (contract: drain_worker)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.drain()
        await cluster.enqueue("s")
        assert await a.take() == []
        assert len(await b.take()) == 1
        await b.own("i")
        await b.leave()
        assert await a.take_instances() == []

    async def test_draining_frees_idle_sessions_and_keeps_busy_ones(self, cluster: Cluster) -> None:
        """Draining frees idle sessions; one with a locked item is freed by a call after the item ended (contract:
        drain_worker).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("busy", "idle")
        items = {item.session_id: item for item in await a.take(10)}
        await a.ack(items["idle"])
        assert await a.drain() == 1
        assert await cluster.holders() == {"busy": "a"}
        await a.ack(items["busy"])
        await cluster.enqueue("idle", "busy")
        assert [item.session_id for item in await b.take(10)] == ["idle"]
        assert await a.drain() == 0
        assert await a.drain() == 0
        assert [item.session_id for item in await b.take(10)] == ["busy"]

    async def test_leaving_frees_everything_immediately(self, cluster: Cluster) -> None:
        """Leaving frees sessions, locked items and instances immediately (contract: release_worker)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", None)
        await a.take(10)
        await a.own("i")
        await a.leave()
        await a.leave()
        assert {item.session_id for item in await b.take_all()} == {"s", None}
        assert [item.instance_id for item in await b.take_instances()] == ["i"]
        assert await a.renew_lease() is None

    async def test_a_worker_that_left_comes_back_with_nothing(self, cluster: Cluster) -> None:
        """A worker that left and registers again gets none of its former sessions (contract: release_worker)."""
        a = await cluster.worker("a")
        await cluster.give(a, "s")
        await a.leave()
        await cluster.worker("a")
        assert await cluster.holders() == {}
