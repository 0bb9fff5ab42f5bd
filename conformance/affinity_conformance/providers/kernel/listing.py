"""Listings of sessions and workers."""

from __future__ import annotations

from datetime import timedelta

from affinity.provider.contract import Interfaces, RegisteredNames, WorkerInfo
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import LONG_LEASE, SESSION_LOCK, SHORT_LEASE, profile
from affinity_conformance.providers.cluster import ENQUEUER, Cluster


class ListingRules(Rules):
    """`list_sessions`, `list_workers`, `list_code`."""

    async def test_a_session_row_says_who_holds_it_and_for_how_long(self, cluster: Cluster) -> None:
        """A listed session has its holder, its remaining time and the number of its items, running ones included
        (contract: SessionInfo).
        """
        a = await cluster.worker("a")
        item = await cluster.give(a, "s")
        await cluster.enqueue("s", "s", "other")
        row = await cluster.session("s")
        assert (row.session_id, row.worker_id, row.incarnation) == ("s", "a", a.identity.incarnation)
        assert (row.epoch, row.held, row.queued) == (item.session_epoch, True, 3)
        assert 0 <= row.idle < 10
        assert SESSION_LOCK - 10 < row.expires_in <= SESSION_LOCK

    async def test_a_session_that_expired_is_listed_as_not_held(self, cluster: Cluster) -> None:
        """An expired session is listed with a negative time and its last holder (contract: SessionInfo)."""
        await cluster.holder("a", "s")
        await cluster.advance(SESSION_LOCK + 60)
        row = await cluster.session("s")
        assert (row.held, row.worker_id, row.queued) == (False, "a", 0)
        assert -70 < row.expires_in <= -60
        assert SESSION_LOCK + 60 <= row.idle < SESSION_LOCK + 70

    async def test_a_session_of_a_dead_worker_is_listed_as_not_held(self, cluster: Cluster) -> None:
        """A session of a dead worker is listed as not held though its own lock has time left."""
        a = await cluster.worker("a", SHORT_LEASE)
        await cluster.give(a, "s")
        await cluster.advance(SHORT_LEASE + 1)
        assert not (await cluster.session("s")).held

    async def test_sessions_are_listed_page_by_page(self, cluster: Cluster) -> None:
        """Sessions are listed by id, page by page (contract: list_sessions)."""
        a = await cluster.worker("a")
        names = [f"s{number}" for number in range(5)]
        await cluster.enqueue(*names)
        await a.take_all()
        seen: list[str] = []
        while rows := await a.provider.list_sessions(after=seen[-1] if seen else None, limit=2):
            assert len(rows) <= 2
            seen += [row.session_id for row in rows]
        assert seen == names

    async def test_the_sessions_of_one_worker_are_listed(self, cluster: Cluster) -> None:
        """Only the sessions that this worker holds or was the last to hold, page by page (contract: list_sessions)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        for worker, name in ((a, "s0"), (b, "s1"), (a, "s2"), (a, "s3")):
            await cluster.use(worker, name)
        pages = [await b.provider.list_sessions(worker_id="a", after=after, limit=2) for after in (None, "s2")]
        assert [[row.session_id for row in page] for page in pages] == [["s0", "s2"], ["s3"]]

    async def test_workers_are_listed_with_what_they_said_of_themselves(self, cluster: Cluster) -> None:
        """Workers are listed by id with their labels, leases and number of sessions (contract: WorkerInfo)."""
        a = await cluster.peer("a")
        await a.provider.register_worker(a.identity, SHORT_LEASE, {"host": "h'1", "pid": "7"}, profile=profile())
        await cluster.worker("b")
        await cluster.enqueue("s", "t", None)
        await a.take_all()
        rows = {row.worker_id: row for row in await self._workers(cluster)}
        assert list(rows) == ["a", "b"]
        row = rows["a"]
        assert (row.incarnation, row.alive, row.draining, row.sessions) == (a.identity.incarnation, True, False, 2)
        assert dict(row.labels) == {"host": "h'1", "pid": "7"}
        assert SHORT_LEASE - 10 < row.expires_in <= SHORT_LEASE
        assert row.started_at.utcoffset() == timedelta(0)
        assert (rows["b"].sessions, dict(rows["b"].labels)) == (0, {})

    async def test_workers_are_listed_with_the_names_that_they_registered(self, cluster: Cluster) -> None:
        """Each registration replaces the map of names, a resumption too; a renewal and a release leave it (contract:
        WorkerProfile.registered).
        """
        first = {"orchestrations": {"chat@1.0.0": "0f" * 8, "a\"b'@2": "1e" * 8}, "activities": {}}
        a, b = await cluster.peer("a"), await cluster.worker("b")
        await a.register(registered=first)
        await a.renew_lease()
        rows = {row.worker_id: row.registered for row in await self._workers(cluster)}
        assert rows == {"a": first, "b": {}}
        second = {"orchestrations": {}, "activities": {"reply": "2d" * 8}, "conversations": {"m": "3c" * 8}}
        await a.register(resume=True, registered=second)
        assert {row.worker_id: row.registered for row in await self._workers(cluster)} == {"a": second, "b": {}}
        await b.register(registered=first)
        await a.leave()
        assert {row.worker_id: row.registered for row in await self._workers(cluster)} == {"a": second, "b": first}

    async def test_code_is_listed_once_for_the_workers_that_have_it(self, cluster: Cluster) -> None:
        """A row has the latest report of each registration, while a worker's row stays, and whether one of the workers
        is alive (contract: list_code).
        """
        names = {"orchestrations": {"chat@1.0.0": "0f"}}
        takes = {"orchestrations": {"chat@1.0.0": {"input": {"type": "string", "title": "it's \\ \u00fc \u2028"}}}}
        a, b, c = [await cluster.peer(name) for name in "abc"]
        await a.register(registered=names)
        await a.register(resume=True, registered=names, interfaces=takes)
        await b.register(registered=names, interfaces=takes)
        await c.register(SHORT_LEASE, registered=names)
        assert await self._code(cluster) == [(True, names, {}), (True, names, takes)]
        await a.leave()
        await cluster.advance(SHORT_LEASE + 1)
        assert await self._code(cluster) == [(False, names, {}), (True, names, takes)]
        await b.leave()
        assert await self._code(cluster) == [(False, names, {}), (False, names, takes)]

    async def test_a_restart_is_a_new_start(self, cluster: Cluster) -> None:
        """``started_at`` changes with a restart and not with a resumption (contract: WorkerInfo.started_at)."""
        a = await cluster.worker("a", SHORT_LEASE)
        (first,) = await self._workers(cluster)
        await cluster.advance(100)
        await a.register(resume=True)
        (resumed,) = await self._workers(cluster)
        await cluster.worker("a")
        (restarted,) = await self._workers(cluster)
        assert resumed.started_at == first.started_at
        assert restarted.started_at - first.started_at >= timedelta(seconds=100)

    async def test_dead_and_draining_workers_are_listed_as_such(self, cluster: Cluster) -> None:
        """Dead workers are listed with a negative time, and draining ones as draining (contract: WorkerInfo)."""
        await cluster.worker("dead", SHORT_LEASE)
        await (await cluster.worker("draining", LONG_LEASE)).drain()
        await cluster.advance(SHORT_LEASE + 60)
        dead, draining = await self._workers(cluster)
        assert (dead.alive, dead.draining, dead.sessions) == (False, False, 0)
        assert -70 < dead.expires_in <= -60
        assert (draining.alive, draining.draining) == (True, True)

    @staticmethod
    async def _code(cluster: Cluster) -> list[tuple[bool, RegisteredNames, Interfaces]]:
        rows = await (await cluster.enqueuer()).provider.list_code()
        found = [(row.alive, row.registered, row.interfaces) for row in rows if row.registered]
        return sorted(found, key=lambda one: len(one[2]))

    @staticmethod
    async def _workers(cluster: Cluster) -> list[WorkerInfo]:
        rows = await (await cluster.enqueuer()).provider.list_workers()
        return [row for row in rows if row.worker_id != ENQUEUER]
