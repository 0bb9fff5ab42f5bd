"""Hints: the calls that notify a worker; and the verbs of a provider object itself."""

from __future__ import annotations

import anyio

from affinity.provider.contract import Hint, HintSource
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import SHORT_LEASE, new_instance
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer

PATIENCE = 30.0  # seconds of real time; a wait ends when the hint comes


class HintRules(Rules):
    """Workers that a hint reaches, and its flags (contract: hints, notify_workers)."""

    async def test_closing_is_idempotent(self, cluster: Cluster) -> None:
        """Closing twice is allowed, and other provider objects continue to work (contract: aclose)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.enqueue(None)
        await a.provider.aclose()
        await a.provider.aclose()
        assert len(await b.take()) == 1

    async def test_a_provider_names_its_dialect(self, cluster: Cluster) -> None:
        """The dialect is a non-empty name (contract: dialect)."""
        assert (await cluster.open()).dialect

    async def test_a_hint_reaches_the_worker_that_it_names(self, cluster: Cluster) -> None:
        """A hint reaches the named worker with its flags (contract: notify_workers)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        async with a.provider.hints(a.identity) as source:
            await b.provider.notify_workers({"a": Hint(work=False, cancel=True)})
            assert (await self._collect(source, 1)).cancel

    async def test_a_hint_to_all_reaches_all(self, cluster: Cluster) -> None:
        """A hint without a name reaches every subscribed worker (contract: notify_workers)."""
        peers = [await cluster.worker(name) for name in "abc"]
        heard = [anyio.Event() for _ in peers]
        listening = [anyio.Event() for _ in peers]

        async def listen(peer: Peer, ready: anyio.Event, done: anyio.Event) -> None:
            async with peer.provider.hints(peer.identity) as source:
                ready.set()
                assert (await self._collect(source, 1)).work
                done.set()

        async with anyio.create_task_group() as group:
            for peer, ready, done in zip(peers, listening, heard, strict=True):
                group.start_soon(listen, peer, ready, done)
            for ready in listening:
                await ready.wait()
            await (await cluster.open()).notify_workers({None: Hint()})
        assert all(done.is_set() for done in heard)

    async def test_the_owner_of_an_instance_can_be_notified(self, cluster: Cluster) -> None:
        """``owners_of`` notifies the owner of an instance, even if the owner itself sends the hint (contract:
        notify_workers).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.own("i")
        async with a.provider.hints(a.identity) as source:
            for provider in (b.provider, a.provider, await cluster.open()):
                await provider.notify_workers({}, ["i"])
                assert (await self._collect(source, 1)).work
            await b.provider.notify_workers({None: Hint(work=False, cancel=True)}, ["i"])
            assert await self._collect(source, 2) == Hint(work=True, cancel=True)

    async def test_for_an_instance_without_an_owner_all_are_notified(self, cluster: Cluster) -> None:
        """``owners_of`` notifies all workers if the owner is dead or missing (contract: notify_workers)."""
        a, b = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b")
        await a.own("i")
        await b.provider.create_instance([new_instance("new")])
        await cluster.advance(SHORT_LEASE + 1)
        async with b.provider.hints(b.identity) as source:
            for instance_id in ("i", "new"):
                await a.provider.notify_workers({"a": Hint()}, [instance_id])
                assert (await self._collect(source, 1)).work

    async def test_hints_that_came_together_are_merged(self, cluster: Cluster) -> None:
        """Hints that arrive together are merged without loss of a flag (contract: HintSource.wait)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        async with a.provider.hints(a.identity) as source:
            await b.provider.notify_workers({"a": Hint(work=True)})
            await b.provider.notify_workers({"a": Hint(work=False, cancel=True)})
            merged = await self._collect(source, 2)
        assert merged == Hint(work=True, cancel=True)

    async def test_waiting_ends_without_a_hint(self, cluster: Cluster) -> None:
        """Waiting returns None after its timeout (contract: HintSource.wait)."""
        a = await cluster.worker("a")
        async with a.provider.hints(a.identity) as source:
            while await source.wait(0.05) is not None:
                pass  # what the registration may have set off

    @staticmethod
    async def _collect(source: HintSource, kinds: int) -> Hint:
        """Wait for hints until as many kinds as asked for have come."""
        work = cancel = False
        with anyio.fail_after(PATIENCE):
            while work + cancel < kinds:
                hint = await source.wait(PATIENCE)
                if hint is not None:
                    work, cancel = work or hint.work, cancel or hint.cancel
        return Hint(work=work, cancel=cancel)
