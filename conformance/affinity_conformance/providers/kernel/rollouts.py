"""Rollouts: sessions that wait for the restart of their worker, and workers of newer code that take them first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from affinity.provider.contract import NEWER_SECONDS, WorkerInfo, WorkerTags
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import LONG_LEASE, SESSION_LOCK, SHORT_LEASE
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer

GRACE = 20.0
"""Seconds for which a worker that restarts leaves its sessions to its name."""

OLD: Final[dict[str, Any]] = {"app": "app", "capacity": 10, "code_version": "1"}
NEW: Final[dict[str, Any]] = {"app": "app", "capacity": 10, "code_version": "2"}


class RolloutRules(Rules):
    """`release_worker` with ``restart_grace``, `drain_worker` with ``restarts``, versions of code."""

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
        """Any worker takes them after ``restart_grace`` (contract: release_worker)."""
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
        """A worker without sessions leaves as if it did not restart (contract: release_worker)."""
        a = await cluster.worker("a")
        await a.leave(GRACE)
        info = await _listed(a)
        assert (info.alive, info.restarting) == (False, False)

    async def test_a_worker_that_left_for_a_restart_is_listed_as_such(self, cluster: Cluster) -> None:
        """The row of a worker that left for a restart is alive, draining and restarting, with its sessions (contract:
        WorkerInfo).
        """
        a = await cluster.worker("a")
        await cluster.give(a, "s")
        await a.leave(GRACE)
        info = await _listed(a)
        assert (info.alive, info.draining, info.restarting, info.sessions) == (True, True, True, 1)
        assert await cluster.holders() == {"s": "a"}

    async def test_a_session_whose_lock_ends_does_not_wait_for_a_restart(self, cluster: Cluster) -> None:
        """A session that is left to a restart is free when its own lock ends (contract: release_worker)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        await a.leave(SESSION_LOCK + LONG_LEASE)
        await cluster.pass_time(SESSION_LOCK + 1)
        assert (await cluster.give(b, "s")).session_id == "s"

    async def test_a_fenced_process_leaves_nothing(self, cluster: Cluster) -> None:
        """A fenced process that leaves changes nothing of its successor's (contract: release_worker)."""
        a = await cluster.worker("a")
        await cluster.give(a, "s")
        successor = await cluster.worker("a")
        await a.leave(GRACE)
        assert await successor.renew_lease() is not None
        assert (await successor.take_one()).session_id == "s"

    async def test_a_drain_for_a_restart_keeps_the_sessions(self, cluster: Cluster) -> None:
        """A worker that drains for a restart frees no session (contract: drain_worker)."""
        a, b = await cluster.holder("a", "s"), await cluster.worker("b")
        assert await a.drain(restarts=True) == 1
        await cluster.enqueue("s", "new")
        assert [item.session_id for item in await b.take(10)] == ["new"]
        assert await cluster.holders() == {"s": "a", "new": "b"}

    # -- versions of code

    async def test_new_sessions_go_to_the_newest_code(self, cluster: Cluster) -> None:
        """A worker of older code leaves new sessions to newer code that has room (contract: fetch_work_item)."""
        old = await cluster.worker("old", **OLD)
        assert (await cluster.give(old, "before")).session_id == "before"
        await cluster.advance(1)
        new = await cluster.worker("new", **NEW)
        await cluster.enqueue("s", None)
        fetched = await old.fetch(10)
        assert [item.session_id for item in fetched.items] == [None]
        assert fetched.outdated
        fetched = await new.fetch(10)
        assert [item.session_id for item in fetched.items] == ["s"]
        assert not fetched.outdated

    async def test_older_code_serves_the_sessions_that_it_holds(self, cluster: Cluster) -> None:
        """A worker of older code goes on with its own sessions, and with offered items (contract: fetch_work_item)."""
        old = await cluster.holder("old", "s", **OLD)
        await cluster.worker("new", **NEW)
        await cluster.enqueue("s")
        await cluster.offer(old, "offered")
        assert {item.session_id for item in await old.take(10)} == {"s", "offered"}

    async def test_newer_code_without_room_is_not_waited_for(self, cluster: Cluster) -> None:
        """Any worker takes new sessions while no worker of the newest code has room (contract: fetch_work_item)."""
        old, new = await cluster.worker("old", **OLD), await cluster.worker("new", **{**NEW, "capacity": 1})
        await cluster.use(new, "full")
        await cluster.enqueue("s")
        fetched = await old.fetch()
        assert [item.session_id for item in fetched.items] == ["s"]
        assert not fetched.outdated

    async def test_newer_code_that_drains_or_has_died_is_not_waited_for(self, cluster: Cluster) -> None:
        """A worker that drains, or whose lease has ended, is not waited for (contract: fetch_work_item)."""
        old, new = await cluster.worker("old", **OLD), await cluster.worker("new", **NEW)
        await new.drain()
        assert (await cluster.give(old, "s")).session_id == "s"
        await new.register(SHORT_LEASE, **NEW)
        await cluster.advance(SHORT_LEASE + 1)
        assert (await cluster.give(old, "t")).session_id == "t"

    async def test_sessions_that_newer_code_does_not_take_are_taken_by_older_code(self, cluster: Cluster) -> None:
        """Any worker takes a new session after `NEWER_SECONDS` (contract: fetch_work_item)."""
        old = await cluster.worker("old", **OLD)
        await cluster.worker("new", **NEW)
        await cluster.enqueue("s")
        assert await old.take() == []
        await cluster.advance(NEWER_SECONDS + 0.5)
        assert (await old.take_one()).session_id == "s"

    async def test_a_session_is_left_to_newer_code_from_when_it_is_free(self, cluster: Cluster) -> None:
        """However long work of a session has waited, the time for newer code begins when the session is freed
        (contract: fetch_work_item).
        """
        leaving, old = await cluster.holder("leaving", "s", **OLD), await cluster.worker("old", **OLD)
        new = await cluster.worker("new", **NEW)
        await cluster.enqueue("s")
        await cluster.advance(10 * NEWER_SECONDS)
        assert await leaving.drain() == 0
        assert await old.take() == []
        assert (await new.take_one()).session_id == "s"

    async def test_versions_of_different_apps_are_not_compared(self, cluster: Cluster) -> None:
        """A worker of another app, or without a version, is not newer (contract: WorkerProfile)."""
        old = await cluster.worker("old", **OLD)
        await cluster.worker("other", **{**NEW, "app": "other"})
        await cluster.worker("silent")
        assert (await cluster.give(old, "s")).session_id == "s"

    async def test_newer_code_without_the_tags_is_not_waited_for(self, cluster: Cluster) -> None:
        """A worker is newer only if it takes all the work that the other one takes (contract: fetch_work_item)."""
        gpu = WorkerTags(tags=("gpu",))
        old = await cluster.worker("old", tags=gpu, **OLD)
        await cluster.worker("other", **NEW)
        await cluster.worker("only", tags=replace(gpu, only=True), **NEW)
        await cluster.enqueue("s", tag="gpu")
        await cluster.enqueue("t")
        assert [item.session_id for item in await old.take(10)] == ["s", "t"]
        new = await cluster.worker("new", tags=gpu, **NEW)
        await cluster.enqueue("u", tag="gpu")
        assert (await old.fetch(10)).outdated
        assert (await new.take_one()).session_id == "u"

    async def test_a_restart_does_not_make_code_newer(self, cluster: Cluster) -> None:
        """A version is as new as the first of its workers, also where one starts again or is added (contract:
        register_worker).
        """
        a = await cluster.worker("a", **OLD)
        first = (await _listed(a)).code_since
        assert first is not None
        await cluster.advance(10)
        new = await cluster.worker("new", **NEW)
        await cluster.advance(10)
        a, b = await cluster.worker("a", **OLD), await cluster.worker("b", **OLD)
        assert [(await _listed(peer)).code_since for peer in (a, b)] == [first, first]
        await cluster.enqueue("s")
        assert await a.take() == []
        assert await b.take() == []
        assert (await new.take_one()).session_id == "s"

    async def test_an_older_version_that_is_rolled_back_to_is_the_newest(self, cluster: Cluster) -> None:
        """A worker that registers another version than before shows that this one is newer, though others have run it
        all the time (contract: register_worker).
        """
        *_, c = [await cluster.worker(name, **OLD) for name in "abc"]
        await cluster.advance(10)
        await cluster.worker("a", **NEW)
        b = await cluster.worker("b", **NEW)
        await cluster.advance(10)
        await cluster.worker("a", **OLD)
        await cluster.enqueue("s")
        assert await b.take() == []
        assert (await c.take_one()).session_id == "s"

    async def test_a_drain_for_a_restart_frees_what_newer_code_has_room_for(self, cluster: Cluster) -> None:
        """Sessions with work are freed first; the rest is left to the restart. A repeated drain frees nothing
        (contract: drain_worker).
        """
        old = await cluster.worker("old", **OLD)
        for session_id in ("work", "idle", "idler"):
            await cluster.use(old, session_id)
        new = await cluster.worker("new", **{**NEW, "capacity": 2})
        await cluster.use(new, "own")
        await cluster.enqueue("work", "idle")
        assert await old.drain(restarts=True) == 2
        assert await old.drain(restarts=True) == 2
        freed = await new.take(10)
        assert len(freed) == 1
        assert freed[0].session_id in ("work", "idle")
        assert await old.drain(restarts=True) == 2

    async def test_a_drain_leaves_nothing_to_older_code(self, cluster: Cluster) -> None:
        """A worker of the newest code that restarts leaves its sessions to its name (contract: drain_worker)."""
        await cluster.worker("old", **OLD)
        await cluster.advance(10)
        new = await cluster.holder("new", "s", **NEW)
        assert await new.drain(restarts=True) == 1


async def _listed(peer: Peer) -> WorkerInfo:
    """The worker's row."""
    (info,) = [info for info in await peer.provider.list_workers() if info.worker_id == peer.worker_id]
    return info
