"""Watches: an instance gets exactly one message for each change of a session's holder."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from affinity.provider.contract import OrchestrationItem, Release, SessionWatch
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import (
    SESSION_LOCK,
    SHORT_LEASE,
    count_rows,
    message_ids,
    payloads,
    state,
)
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.kernel.holds import ENDS
from affinity_conformance.providers.peer import Peer

DONE = ENDS["completed"]


class WatchRules(Rules):
    """`Turn.watches`."""

    async def test_a_claim_by_another_worker_is_reported(self, cluster: Cluster) -> None:
        """A claim by another worker sends one message to the watching instance's owner, without a sweep (contract:
        SessionWatch).
        """
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        await _watch(watcher, "i", "s")
        await _move(cluster, b)
        assert await b.take_instances() == []
        assert await _read_moved(watcher) == {"i": ["moved"]}
        await cluster.use(b, "s")
        assert await _read_moved(watcher) == {}

    async def test_every_change_is_reported(self, cluster: Cluster) -> None:
        """Each change of holder sends a message, there and back (contract: SessionWatch)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        await _watch(watcher, "i", "s")
        await _move(cluster, b)
        await _move(cluster, a)
        assert await _read_moved(watcher) == {"i": ["moved", "moved"]}
        await _move(cluster, b)
        assert await _read_moved(watcher) == {"i": ["moved"]}

    async def test_the_first_claim_is_no_change(self, cluster: Cluster) -> None:
        """The first claim of a session sends no message; the next one by another worker does (contract:
        SessionWatch).
        """
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await _watch(watcher, "i", "s")
        await cluster.use(a, "s")
        assert await _read_moved(watcher) == {}
        await _move(cluster, b)
        assert await _read_moved(watcher) == {"i": ["moved"]}

    async def test_the_first_claim_after_a_save_by_hand_is_no_change(self, cluster: Cluster) -> None:
        """The first claim sends no message if a save without a lease had created the session's row (contract:
        SessionWatch).
        """
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await (await cluster.states()).save(state("s"))
        await _watch(watcher, "i", "s")
        await cluster.use(a, "s")
        assert await _read_moved(watcher) == {}
        await _move(cluster, b)
        assert await _read_moved(watcher) == {"i": ["moved"]}

    async def test_a_claim_by_the_same_incarnation_is_no_change(self, cluster: Cluster) -> None:
        """A claim by the incarnation that held the session last sends no message (contract: SessionWatch)."""
        a, watcher = await cluster.holder("a", "s", lease=SHORT_LEASE), await cluster.worker("watcher")
        await _watch(watcher, "i", "s")
        for seconds in (SHORT_LEASE + 1, SESSION_LOCK + 1):
            await cluster.pass_time(seconds)
            await a.register(SHORT_LEASE, resume=True)
            await cluster.use(a, "s")
        await a.give_back(await cluster.give(a, "s"), release_session=True)
        assert await a.ack(await a.take_one()) == [True]
        assert await _read_moved(watcher) == {}

    async def test_an_adoption_by_a_new_start_is_reported(self, cluster: Cluster) -> None:
        """A new start that adopts a session at its registration sends one message (contract: SessionWatch,
        register_worker).
        """
        _, watcher = await cluster.holder("a", "s"), await cluster.worker("watcher")
        await _watch(watcher, "i", "s")
        new = await cluster.worker("a")
        assert await _read_moved(watcher) == {"i": ["moved"]}
        await cluster.use(new, "s")
        assert await _read_moved(watcher) == {}

    async def test_a_claim_by_a_new_start_is_reported(self, cluster: Cluster) -> None:
        """A new start that claims an expired session sends a message (contract: SessionWatch)."""
        _, watcher = await cluster.holder("a", "s"), await cluster.worker("watcher")
        await _watch(watcher, "i", "s")
        await cluster.pass_time(SESSION_LOCK + 1)
        await cluster.holder("a", "s")
        assert await _read_moved(watcher) == {"i": ["moved"]}

    async def test_becoming_free_is_no_change(self, cluster: Cluster) -> None:
        """A session that becomes free sends no message; its next holder does (contract: SessionWatch)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        c = await cluster.worker("c")
        await cluster.use(a, "s")
        await _watch(watcher, "i", "s")
        await cluster.pass_time(SESSION_LOCK + 1)
        assert await _read_moved(watcher) == {}
        await cluster.use(b, "s")
        assert await _read_moved(watcher) == {"i": ["moved"]}
        await b.drain()
        assert await _read_moved(watcher) == {}
        await cluster.use(c, "s")
        assert await _read_moved(watcher) == {"i": ["moved"]}
        await c.leave()
        await cluster.use(a, "s")
        assert await _read_moved(watcher) == {"i": ["moved"]}

    async def test_a_takeover_from_a_dead_worker_is_reported(self, cluster: Cluster) -> None:
        """A takeover from a dead worker sends a message before the session lock would have expired (contract:
        SessionWatch).
        """
        _, b = await cluster.holder("a", "s", lease=SHORT_LEASE), await cluster.worker("b")
        await _watch(b, "i", "s")
        await cluster.pass_time(SHORT_LEASE + 1)
        await cluster.use(b, "s")
        assert await _read_moved(b) == {"i": ["moved"]}

    async def test_a_change_of_state_is_no_change_of_holder(self, cluster: Cluster) -> None:
        """A new epoch with the same holder sends no message (records: Fences)."""
        a, watcher = await cluster.holder("a", "s"), await cluster.worker("watcher")
        await _watch(watcher, "i", "s")
        states = await cluster.states()
        await states.save(state("s"))
        await states.delete(["s"])
        await cluster.use(a, "s")
        assert await _read_moved(watcher) == {}

    async def test_every_watcher_is_notified(self, cluster: Cluster) -> None:
        """Each watching instance gets its own payload, whatever worker owns it (contract: SessionWatch)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        await _watch(watcher, "i", "s", "one")
        await _watch(watcher, "j", "s", "two")
        await _watch(b, "k", "s", "three")
        await _watch(b, "l", "t", "another session")
        await _move(cluster, b)
        assert await _read_moved(watcher) == {"i": ["one"], "j": ["two"]}
        assert await _read_moved(b) == {"k": ["three"]}

    async def test_every_session_of_a_claim_is_reported(self, cluster: Cluster) -> None:
        """A fetch or registration that takes several sessions sends a message for each (contract: SessionWatch)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        names = ["s", "t", "u"]
        for name in names:
            await cluster.use(a, name)
        watches = [SessionWatch(name, name) for name in names]
        at = await watcher.own("i")
        await watcher.go_on(at, consumed=message_ids(at), watches=watches)
        await cluster.pass_time(SESSION_LOCK + 1)
        await cluster.enqueue(*names, *names)
        assert len(await b.take_all()) == len(names) * 2
        assert {key: sorted(said) for key, said in (await _read_moved(watcher)).items()} == {"i": names}
        await cluster.worker("b")
        assert {key: sorted(said) for key, said in (await _read_moved(watcher)).items()} == {"i": names}

    async def test_a_second_watch_replaces_the_payload(self, cluster: Cluster) -> None:
        """A second watch of a session by an instance replaces the payload, in the same turn or a later one (contract:
        SessionWatch).
        """
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        at = await _watch(watcher, "i", "s", "old")
        await watcher.go_on(at, watches=[SessionWatch("s", "new")])
        await _move(cluster, b)
        assert await _read_moved(watcher) == {"i": ["new"]}

    async def test_a_watch_outlives_its_execution(self, cluster: Cluster) -> None:
        """A watch continues in the next execution of its instance (contract: SessionWatch)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        at = await _watch(watcher, "i", "s")
        await watcher.go_on(at, update=ENDS["continued"])
        await _move(cluster, b)
        assert await _read_moved(watcher) == {"i": ["moved"]}

    async def test_a_watch_ends_with_its_instance(self, cluster: Cluster) -> None:
        """A finished or deleted instance gets no message, nor does its successor under the id (contract:
        SessionWatch).
        """
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        at = await _watch(watcher, "finished", "s")
        await watcher.go_on(at, update=DONE)
        await _watch(watcher, "deleted", "s")
        assert list(await a.provider.delete_instance(["finished", "deleted"], force=True)) == ["deleted", "deleted"]
        for name in ("finished", "deleted"):
            at = await watcher.own(name)
            await watcher.go_on(at, consumed=message_ids(at))
        await _watch(watcher, "other", "s")
        await _move(cluster, b)
        assert await _read_moved(watcher) == {"other": ["moved"]}

    async def test_nothing_is_queued_for_a_finished_instance(self, cluster: Cluster) -> None:
        """A change of holder queues nothing for a finished instance (contract: SessionWatch)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        at = await _watch(watcher, "i", "s")
        await watcher.go_on(at, update=DONE)
        before = (await count_rows(a.provider))["messages"]
        await cluster.pass_time(SESSION_LOCK + 1)
        await cluster.give(b, "s")
        assert (await count_rows(a.provider))["messages"] == before

    async def test_the_turn_that_finishes_watches_nothing(self, cluster: Cluster) -> None:
        """A watch of the turn that finishes its instance has no effect (contract: SessionWatch)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        at = await watcher.own("i")
        await watcher.go_on(at, watches=[SessionWatch("s", "moved")], update=DONE)
        await cluster.advance(SESSION_LOCK + 1_000)
        assert (await cluster.sweep(session_retention=10)).sessions_removed == 1
        await cluster.use(b, "s")

    async def test_a_refused_turn_watches_nothing(self, cluster: Cluster) -> None:
        """A refused turn begins no watch (contract: Turn)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        at = await watcher.own("i")
        await watcher.go_on(at, consumed=message_ids(at))
        assert not (await watcher.commit_one(at, watches=[SessionWatch("s", "moved")])).committed
        await _move(cluster, b)
        assert await _read_moved(watcher) == {}

    async def test_a_watched_session_outlives_its_retention(self, cluster: Cluster) -> None:
        """A sweep keeps a watched session, and removes it after the watch has ended (contract: sweep)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        await cluster.use(a, "unwatched")
        at = await _watch(watcher, "i", "s")
        await cluster.advance(SESSION_LOCK + 1_000)
        assert (await cluster.sweep(session_retention=10)).sessions_removed == 1
        assert set(await cluster.sessions()) == {"s"}
        await cluster.use(b, "s")
        assert await _read_moved(watcher) == {"i": ["moved"]}
        await watcher.go_on(replace(at, event_count=at.event_count + 1), update=DONE)
        await cluster.advance(SESSION_LOCK + 1_000)
        assert (await cluster.sweep(session_retention=10)).sessions_removed == 1

    async def test_a_watch_that_meets_a_sweep_keeps_its_session(self, cluster: Cluster) -> None:
        """A watch that commits during a sweep keeps the session's row (contract: sweep)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        at = await watcher.own("i")
        await cluster.advance(SESSION_LOCK + 1_000)
        await cluster.harness.commit_amid_sweep(
            lambda: cluster.sweep(session_retention=10),
            lambda: watcher.go_on(at, consumed=message_ids(at), watches=[SessionWatch("s", "moved")]),
        )
        assert set(await cluster.sessions()) == {"s"}
        await cluster.use(b, "s")
        assert await _read_moved(watcher) == {"i": ["moved"]}

    async def test_the_news_wait_for_an_owner(self, cluster: Cluster) -> None:
        """A message for a released instance goes to the worker that takes it (contract: SessionWatch)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        await _watch(watcher, "i", "s")
        await watcher.provider.release_instance(watcher.identity, [Release(instance_id="i")])
        await _move(cluster, b)
        assert await _read_moved(a) == {"i": ["moved"]}
        assert await _read_moved(watcher) == {}

    async def test_of_two_that_claim_at_once_one_is_reported(self, cluster: Cluster) -> None:
        """Two concurrent claims make one change and one message (contract: SessionWatch)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        c = await cluster.worker("c")
        await cluster.use(a, "s")
        await _watch(watcher, "i", "s")
        for holder in range(5):
            await cluster.pass_time(SESSION_LOCK + 1)
            before = await cluster.session("s")
            await cluster.enqueue("s", "s")
            taken = [item for items in await concurrently(partial(b.take, 10), partial(c.take, 10)) for item in items]
            peer = b if (await cluster.holders())["s"] == "b" else c
            taken += await peer.take(10)  # an item that the other had locked while it lost the claim
            assert len(taken) == 2
            moved = (await cluster.session("s")).worker_id != before.worker_id
            assert moved or holder > 0
            assert await _read_moved(watcher) == ({"i": ["moved"]} if moved else {})
            assert all(await peer.ack(*taken))

    async def test_a_move_that_no_worker_has_seen_is_reported_later(self, cluster: Cluster) -> None:
        """A watch compares with the holder at its commit (contract)."""
        a, b, watcher = await _two_holders_and_watcher(cluster)
        await cluster.use(a, "s")
        await _move(cluster, b)
        await _watch(watcher, "i", "s")
        assert await _read_moved(watcher) == {}
        await _move(cluster, a)
        assert await _read_moved(watcher) == {"i": ["moved"]}


async def _two_holders_and_watcher(cluster: Cluster) -> tuple[Peer, Peer, Peer]:
    """Start two workers that hold sessions, and a worker that owns instances."""
    return await cluster.worker("a"), await cluster.worker("b"), await cluster.worker("watcher")


async def _watch(peer: Peer, instance_id: str, session_id: str, payload: str = "moved") -> OrchestrationItem:
    """A new instance of that worker's that has nothing left to read, and watches the session."""
    at = await peer.own(instance_id)
    return await peer.go_on(at, consumed=message_ids(at), watches=[SessionWatch(session_id, payload)])


async def _move(cluster: Cluster, to: Peer) -> None:
    """Let the session's lock expire, and that worker claim it."""
    await cluster.pass_time(SESSION_LOCK + 1)
    await cluster.use(to, "s")


async def _read_moved(peer: Peer) -> dict[str, list[str]]:
    """Read the messages that wait for the instances of that worker."""
    found = {}
    for item in await peer.take_instances(100):
        found[item.instance_id] = list(payloads(item))
        assert (await peer.commit_one(item, consumed=message_ids(item))).committed
    return found
