"""Timelines: what a provider does when the database is another one or has lost commits."""

from __future__ import annotations

import pytest

from affinity.errors import DatabaseChanged
from affinity.provider.contract import NewMessage
from affinity.provider.timeline import Timeline
from affinity.records import database_of
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import state, state_write, turn, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.harness import Harness
from affinity_conformance.providers.peer import Peer


async def lose_tail(cluster: Cluster, finder: Peer) -> None:
    """Lose the last commits; the worker finds it out."""
    await cluster.harness.lose_tail()
    with pytest.raises(DatabaseChanged):
        await finder.renew_lease()


class TimelineRules(Rules):
    """``timeline`` of `affinity.provider.open_provider`. Facts of one timeline say nothing about the next."""

    async def test_a_database_has_one_name(self, cluster: Cluster) -> None:
        """All providers of one database, with or without a timeline, and their stores, give it the same name; it stays
        while the database does (contract: Provider).
        """
        providers = [await cluster.open(), (await cluster.follower("a", Timeline())).provider, await cluster.open()]
        names = {provider.database for provider in providers} | {database_of(provider.states) for provider in providers}
        assert len(names) == 1
        assert names != {""}
        await cluster.worker("b")
        assert {provider.database for provider in providers} == names

    async def test_an_incarnation_ends_with_its_timeline(self, cluster: Cluster) -> None:
        """It can neither renew nor register again, however often it tries (contract: Provider)."""
        a = await cluster.follower("a", Timeline())
        assert await a.renew_lease() is not None
        await cluster.harness.lose_tail()
        for _ in range(2):
            with pytest.raises(DatabaseChanged) as caught:
                await a.renew_lease()
            assert not caught.value.retryable
        with pytest.raises(DatabaseChanged):
            await a.register(resume=True)

    async def test_the_next_incarnation_goes_on_and_no_epoch_comes_back(self, cluster: Cluster) -> None:
        """The next incarnation has the sessions of its name, each with an epoch that was never issued before (contract:
        Provider).
        """
        timeline = Timeline()
        a = await cluster.follower("a", timeline)
        await cluster.enqueue("s", "s")
        before = await a.take_one()
        await lose_tail(cluster, a)
        again = await cluster.follower("a", Timeline(timeline))
        items = await again.take_all()
        assert {item.lock.key for item in items} > {before.lock.key}
        assert {item.session_id for item in items} == {"s"}
        assert before.session_epoch is not None
        assert {(item.session_epoch or 0) > before.session_epoch + 1_000_000 for item in items} == {True}

    async def test_a_new_timeline_ends_every_lease(self, cluster: Cluster) -> None:
        """A new timeline ends the lease of every worker, and every session gets a new epoch (contract: Provider)."""
        timeline = Timeline()
        finder, other = await cluster.follower("finder", timeline), await cluster.worker("other")
        held = await cluster.use(other, "s")
        await lose_tail(cluster, finder)
        assert await other.renew_lease() is None
        await other.register(resume=True)
        assert held.session_epoch is not None
        assert (await cluster.session("s")).epoch > held.session_epoch + 1_000_000

    async def test_no_message_id_comes_back(self, cluster: Cluster) -> None:
        """No message id of the lost commits is issued again (contract: Provider)."""
        timeline = Timeline()
        a = await cluster.follower("a", timeline)
        before = (await a.own("i")).messages
        await lose_tail(cluster, a)
        again = await cluster.follower("a", Timeline(timeline))
        await again.provider.send_message([NewMessage(instance_id="i", payload="later")])
        (item,) = await again.take_instances()
        assert item.messages[0].id == before[0].id
        assert item.messages[1].id > before[0].id + 1_000_000

    async def test_the_ids_jump_though_what_is_left_has_seen_no_message(self, harness: Harness) -> None:
        """Message ids jump ahead even if the remaining rows have no message (contract: Provider)."""
        cluster, timeline = Cluster(harness), Timeline()  # without the enqueuer, who sends one
        a = await cluster.follower("a", timeline)
        await a.renew_lease()
        await lose_tail(cluster, a)
        again = await cluster.follower("a", Timeline(timeline))
        (message,) = (await again.own("i")).messages
        assert message.id > 1_000_000
        await cluster.aclose()

    @pytest.mark.parametrize("is_swept", [False, True])
    async def test_a_migration_repairs_lost_counters(self, cluster: Cluster, is_swept: bool) -> None:
        """A migration moves the sequences past the rows: no new row is a duplicate and no session is refused by its
        record (contract: Provider).
        """
        timeline = Timeline()
        a = await cluster.follower("a", timeline)
        held = await cluster.use(a, "s")
        await a.provider.states.save(state("s"), epoch=held.session_epoch)
        await a.own("i")
        if is_swept:
            await a.provider.release_worker(a.identity)
            await cluster.advance(10_000)
            await cluster.sweep(session_retention=1.0)
        await cluster.harness.lose_counters()
        await cluster.harness.migrate()
        with pytest.raises(DatabaseChanged):
            await a.renew_lease()
        again = await cluster.follower("a", Timeline(timeline))
        at = await again.own("j")
        await again.commit_one(at, work_items=[work_item(at, 1, "s")])
        taken = await again.take_one()
        assert (taken.session_epoch or 0) > (held.session_epoch or 0)
        (result,) = await again.commit(turn(await again.own("k"), states=[state_write(taken, base=1)]))
        assert result.committed

    async def test_a_migration_of_a_sound_database_ends_no_lease(self, cluster: Cluster) -> None:
        """A migration of an intact database keeps the timeline (contract: Provider)."""
        a = await cluster.follower("a", Timeline())
        item = await cluster.use(a, "s")
        await a.provider.states.save(state("s"), epoch=item.session_epoch)
        await cluster.harness.migrate()
        assert await a.renew_lease() is not None

    async def test_a_timeline_has_a_name(self, cluster: Cluster) -> None:
        """``timeline`` is equal for all providers, and another one after a loss (contract: ProviderConnection)."""
        followed = Timeline()
        a = await cluster.follower("a", followed)
        assert await a.renew_lease() is not None
        before = (await cluster.open()).timeline
        assert before == a.provider.timeline == (await cluster.open()).timeline
        await lose_tail(cluster, a)
        again = await cluster.follower("a", Timeline(followed))
        assert (await cluster.open()).timeline == again.provider.timeline != before

    async def test_who_follows_nothing_goes_on(self, cluster: Cluster) -> None:
        """A provider without a timeline continues to work (contract: Provider)."""
        a = await cluster.follower("a", Timeline())
        await a.own("i")
        client = await cluster.open()
        await lose_tail(cluster, a)
        assert await client.send_message([NewMessage(instance_id="i", payload="later")]) == ["delivered"]
