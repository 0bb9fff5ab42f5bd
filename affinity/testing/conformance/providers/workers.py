"""Workers: the lease of a process, and what happens when it ends, comes back, drains, or is replaced."""

from __future__ import annotations

from datetime import timedelta

import pytest

from affinity.errors import WorkerFenced
from affinity.testing.conformance.providers.base import Rules
from affinity.testing.conformance.providers.builders import LONG_LEASE, SHORT_LEASE
from affinity.testing.conformance.providers.world import World


class WorkerRules(Rules):
    """`register_worker`, `renew_worker`, `drain_worker`, `release_worker`."""

    async def test_a_registration_gives_the_lease_that_was_asked_for(self, world: World) -> None:
        """Seconds from the moment of the request, not draining (contract: WorkerLease)."""
        lease = await (await world.peer("a")).register(SHORT_LEASE)
        assert SHORT_LEASE - 5 < lease.expires_in <= SHORT_LEASE
        assert not lease.draining

    async def test_the_clock_is_the_database_s(self, world: World) -> None:
        """One clock, aware instants in UTC, the same for every process (design 4.1)."""
        a, b = await world.worker("a"), await world.worker("b")
        before = await a.renew_lease(LONG_LEASE)
        await world.advance(1_000)
        after = await b.renew_lease(LONG_LEASE)
        assert before is not None
        assert after is not None
        assert before.database_time.utcoffset() == timedelta(0)
        assert timedelta(seconds=1_000) <= after.database_time - before.database_time < timedelta(seconds=1_100)

    async def test_a_renewal_extends_the_lease(self, world: World) -> None:
        """From the renewal on, by what it asks for (contract: renew_worker)."""
        a = await world.worker("a", SHORT_LEASE)
        for _ in range(3):
            await world.advance(SHORT_LEASE / 2)
            lease = await a.renew_lease(SHORT_LEASE)
            assert lease is not None
            assert SHORT_LEASE - 5 < lease.expires_in <= SHORT_LEASE

    async def test_a_renewal_does_not_resurrect_a_lease_that_has_ended(self, world: World) -> None:
        """None, and the worker is as dead as before (design 4.5; contract: renew_worker)."""
        a = await world.worker("a", SHORT_LEASE)
        await world.enqueue(None)
        await world.advance(SHORT_LEASE + 1)
        assert await a.renew_lease() is None
        assert await a.take() == []

    async def test_a_process_that_never_registered_has_no_lease(self, world: World) -> None:
        """Nothing when the caller is not alive (contract: renew_worker, fetch_work_item)."""
        stranger = await world.peer("a")
        await world.enqueue(None)
        assert await stranger.renew_lease() is None
        assert await stranger.take() == []

    async def test_a_dead_worker_fetches_nothing_until_it_registers_again(self, world: World) -> None:
        """With ``resume`` the same incarnation comes back (contract: register_worker)."""
        a = await world.worker("a", SHORT_LEASE)
        await world.enqueue(None, "s")
        await world.advance(SHORT_LEASE + 1)
        assert await a.take(10) == []
        await a.register(resume=True)
        assert len(await a.take_all()) == 2

    async def test_a_second_process_of_that_name_fences_the_first(self, world: World) -> None:
        """The first learns it from its next renewal or fetch, and gets nothing meanwhile (design 4.4)."""
        first = await world.worker("a")
        await first.own("i")
        second = await world.worker("a")
        await world.enqueue(None, "s")
        with pytest.raises(WorkerFenced):
            await first.renew_lease()
        assert await first.take(10) == []
        assert await first.take_instances() == []
        assert (await first.fetch_instances()).fenced
        assert not (await second.fetch_instances()).fenced
        assert await second.renew_lease() is not None
        assert len(await second.take_all()) == 2

    async def test_a_fenced_process_commits_nothing(self, world: World) -> None:
        """Its instances are not owned by that very incarnation any more (design 4.4; contract: Turn)."""
        first = await world.worker("a")
        instance = await first.own("i")
        await world.worker("a")
        result = await first.commit_one(instance)
        assert not result.committed
        assert await first.history(instance) == []

    async def test_a_fenced_process_cannot_end_the_lease_of_its_successor(self, world: World) -> None:
        """Leaving does nothing when another incarnation has the name (contract: release_worker)."""
        first = await world.worker("a")
        second = await world.worker("a")
        await world.enqueue("s")
        item = await second.take_one()
        await first.leave()
        assert await second.renew_lease() is not None
        assert await second.renew(item) == [True]
        assert await world.holders() == {"s": "a"}

    async def test_resuming_after_a_lapse_keeps_sessions_and_epochs(self, world: World) -> None:
        """So an outage longer than the leases does not make every worker hydrate again (design 4.3)."""
        a = await world.worker("a", SHORT_LEASE)
        await world.enqueue("s")
        item = await a.take_one()
        await world.pass_time(SHORT_LEASE + 1)
        await a.register(resume=True)
        await world.enqueue("s")
        assert (await a.take_one()).session_epoch == item.session_epoch
        assert (await world.session("s")).epoch == item.session_epoch

    async def test_resuming_keeps_only_what_nobody_took(self, world: World) -> None:
        """Another worker may have claimed a session meanwhile, and keeps it (contract: register_worker)."""
        a, b = await world.worker("a", SHORT_LEASE), await world.worker("b")
        await world.enqueue("kept", "lost")
        await a.take(10)
        await world.pass_time(SHORT_LEASE + 1)
        await world.enqueue("lost")
        await b.take(10, max_sessions=1)
        taken = await world.holders()
        await a.register(resume=True)
        assert sorted(taken.values()) == ["b"]
        assert await world.holders() == {"kept": "a", "lost": "a"} | taken

    async def test_resuming_after_being_replaced_is_refused(self, world: World) -> None:
        """Another incarnation has the name: fenced, and the successor is undisturbed (contract: register_worker)."""
        first = await world.worker("a", SHORT_LEASE)
        await world.advance(SHORT_LEASE + 1)
        second = await world.worker("a", SHORT_LEASE)
        with pytest.raises(WorkerFenced):
            await first.register(resume=True)
        assert await second.renew_lease() is not None

    async def test_resuming_works_when_the_row_was_swept(self, world: World) -> None:
        """Nobody has the name, so nobody is in the way (contract: register_worker)."""
        a = await world.worker("a", SHORT_LEASE)
        await world.advance(SHORT_LEASE + 100)
        await world.sweep(worker_retention=10)
        assert await a.renew_lease() is None
        await a.register(resume=True)
        assert await a.renew_lease() is not None

    async def test_a_restart_keeps_its_sessions_at_once_with_new_epochs(self, world: World) -> None:
        """Without waiting for a lease; no state of the old process is served (design 4.3, 4.4)."""
        old = await world.worker("a")
        await world.enqueue("s", "t")
        epochs = {item.session_id: item.session_epoch or 0 for item in await old.take(10)}
        new = await world.worker("a")
        rows = await world.sessions()
        assert {row.incarnation for row in rows.values()} == {new.identity.incarnation}
        assert all(row.held and row.epoch > epochs[row.session_id] for row in rows.values())

    async def test_a_restart_after_its_lease_ended_keeps_what_nobody_took(self, world: World) -> None:
        """The session lock is what counts (contract: register_worker)."""
        old = await world.worker("a", SHORT_LEASE)
        await world.enqueue("s")
        item = await old.take_one()
        await world.pass_time(SHORT_LEASE + 1)
        await world.worker("a")
        row = await world.session("s")
        assert row.held
        assert row.epoch > (item.session_epoch or 0)

    async def test_a_restart_is_not_given_sessions_that_had_expired(self, world: World) -> None:
        """Only those held by an unexpired session lock (contract: register_worker)."""
        old = await world.worker("a")
        await world.enqueue("s")
        await old.ack(await old.take_one())
        await world.pass_time(301)
        await world.worker("a")
        assert await world.holders() == {}

    async def test_a_restart_finds_the_work_of_the_old_process_free(self, world: World) -> None:
        """An item is free when the name of its worker has a new incarnation (contract: live token)."""
        old = await world.worker("a")
        await world.enqueue("s")
        before = await old.take_one()
        after = await (await world.worker("a")).take_one()
        assert after.lock.key == before.lock.key
        assert after.attempts == 2
        assert (after.session_epoch or 0) > (before.session_epoch or 0)

    async def test_registering_ends_draining(self, world: World) -> None:
        """A renewal says that the worker drains; a registration clears it (contract: register_worker)."""
        a = await world.worker("a")
        await a.drain()
        draining = await a.renew_lease()
        assert draining is not None
        assert draining.draining
        assert not (await a.register()).draining
        await world.enqueue("s")
        assert len(await a.take()) == 1

    async def test_a_draining_worker_claims_nothing(self, world: World) -> None:
        """Neither a session nor an instance, even when it asks (design 4.10; contract: drain_worker)."""
        a, b = await world.worker("a"), await world.worker("b")
        await a.drain()
        await world.enqueue("s")
        assert await a.take() == []
        assert len(await b.take()) == 1
        await b.own("i")
        await b.leave()
        assert await a.take_instances() == []

    async def test_draining_frees_idle_sessions_and_keeps_busy_ones(self, world: World) -> None:
        """Those with a locked item stay until it ends; calling again frees them (contract: drain_worker)."""
        a, b = await world.worker("a"), await world.worker("b")
        await world.enqueue("busy", "idle")
        items = {item.session_id: item for item in await a.take(10)}
        await a.ack(items["idle"])
        assert await a.drain() == 1
        assert await world.holders() == {"busy": "a"}
        await a.ack(items["busy"])
        await world.enqueue("idle", "busy")
        assert [item.session_id for item in await b.take(10)] == ["idle"]
        assert await a.drain() == 0
        assert await a.drain() == 0
        assert [item.session_id for item in await b.take(10)] == ["busy"]

    async def test_leaving_frees_everything_at_once(self, world: World) -> None:
        """Sessions, their work in hand, free work in hand, and instances (contract: release_worker)."""
        a, b = await world.worker("a"), await world.worker("b")
        await world.enqueue("s", None)
        await a.take(10)
        await a.own("i")
        await a.leave()
        await a.leave()
        assert {item.session_id for item in await b.take_all()} == {"s", None}
        assert [item.instance_id for item in await b.take_instances()] == ["i"]
        assert await a.renew_lease() is None

    async def test_a_worker_that_left_comes_back_with_nothing(self, world: World) -> None:
        """What it freed stays free, though its session locks had time left (contract: release_worker)."""
        a = await world.worker("a")
        await world.enqueue("s")
        await a.take_one()
        await a.leave()
        await world.worker("a")
        assert await world.holders() == {}
