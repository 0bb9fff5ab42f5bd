"""Rollouts: sessions that wait for the restart of their worker."""

from __future__ import annotations

from affinity.testing.conformance.providers.base import Rules
from affinity.testing.conformance.providers.builders import LONG_LEASE, SESSION_LOCK
from affinity.testing.conformance.providers.cluster import Cluster

GRACE = 20.0
"""Seconds for which a worker that restarts leaves its sessions to its name."""


class RolloutRules(Rules):
    """`release_worker` with ``restart_grace``, `drain_worker` with ``restarts``."""

    async def test_a_restart_in_time_gets_the_sessions_that_were_left(self, cluster: Cluster) -> None:
        """Sessions of a worker that left for a restart, and their work, wait for its next start, which has them with
        new epochs (contract: release_worker).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "s")
        before = await a.take_one()
        await a.leave(GRACE)
        await a.leave(GRACE)
        await cluster.enqueue("s")
        await cluster.pass_time(GRACE - 5)
        assert await b.take() == []
        restarted = await cluster.worker("a")
        taken = await restarted.take(10)
        assert [item.session_id for item in taken] == ["s", "s", "s"]
        assert all((item.session_epoch or 0) > (before.session_epoch or 0) for item in taken)

    async def test_sessions_left_to_a_restart_that_does_not_come_are_free(self, cluster: Cluster) -> None:
        """After ``restart_grace`` any worker takes what was left (contract: release_worker)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", "s")
        await a.take_one()
        await a.leave(GRACE)
        await cluster.pass_time(GRACE + 1)
        assert [item.session_id for item in await b.take(10)] == ["s", "s"]
        restarted = await cluster.worker("a")
        assert await restarted.take(10) == []
        assert await cluster.holders() == {"s": "b"}

    async def test_only_sessions_wait_for_a_restart(self, cluster: Cluster) -> None:
        """Work without a session, and instances, of a worker that left for a restart are free immediately (contract:
        release_worker).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s", None)
        await a.take(10)
        await a.own("i")
        await a.leave(GRACE)
        assert [item.session_id for item in await b.take(10)] == [None]
        assert [item.instance_id for item in await b.take_instances()] == ["i"]

    async def test_a_worker_without_sessions_leaves_nothing_behind(self, cluster: Cluster) -> None:
        """A worker that holds no session leaves as one that does not restart (contract: release_worker)."""
        a = await cluster.worker("a")
        await a.leave(GRACE)
        (info,) = [one for one in await a.provider.list_workers() if one.worker_id == "a"]
        assert (info.alive, info.restarting) == (False, False)

    async def test_a_worker_that_left_for_a_restart_is_listed_as_such(self, cluster: Cluster) -> None:
        """The row of a worker that left for a restart is alive, draining and restarting, with its sessions (contract:
        WorkerInfo).
        """
        a = await cluster.worker("a")
        await cluster.enqueue("s")
        await a.take_one()
        await a.leave(GRACE)
        (info,) = [one for one in await a.provider.list_workers() if one.worker_id == "a"]
        assert (info.alive, info.draining, info.restarting, info.sessions) == (True, True, True, 1)
        assert await cluster.holders() == {"s": "a"}

    async def test_a_session_whose_lock_ends_does_not_wait_for_a_restart(self, cluster: Cluster) -> None:
        """A session that is left to a restart is free when its own lock ends (contract: release_worker)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s")
        await a.ack(await a.take_one())
        await a.leave(SESSION_LOCK + LONG_LEASE)
        await cluster.pass_time(SESSION_LOCK + 1)
        await cluster.enqueue("s")
        assert (await b.take_one()).session_id == "s"

    async def test_a_fenced_process_leaves_nothing(self, cluster: Cluster) -> None:
        """A fenced process that leaves changes nothing of its successor's (contract: release_worker)."""
        a = await cluster.worker("a")
        await cluster.enqueue("s")
        await a.take_one()
        successor = await cluster.worker("a")
        await a.leave(GRACE)
        assert await successor.renew_lease() is not None
        assert (await successor.take_one()).session_id == "s"

    async def test_a_drain_for_a_restart_keeps_the_sessions(self, cluster: Cluster) -> None:
        """A worker that drains for a restart frees no session (contract: drain_worker)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue("s")
        await a.ack(await a.take_one())
        assert await a.drain(restarts=True) == 1
        await cluster.enqueue("s", "new")
        assert [item.session_id for item in await b.take(10)] == ["new"]
        assert await cluster.holders() == {"s": "a", "new": "b"}
