"""Ownership of instances: which worker gets an instance with its messages, and how it changes hands."""

from __future__ import annotations

from affinity.limits import MAX_BATCH
from affinity.provider.contract import NewMessage, Release
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import SHORT_LEASE, message_ids, new_instance, payloads, turn
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.peer import Peer


class OwnershipRules(Rules):
    """`fetch_orchestration_item` and `release_instance`."""

    async def test_the_first_fetch_takes_a_new_instance(self, cluster: Cluster) -> None:
        """The first fetch takes a new instance with its start message, in its first execution (contract:
        OrchestrationItem).
        """
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("i", version="1", start="go")])
        (item,) = await a.take_instances()
        assert (item.instance_id, item.name, item.version) == ("i", "flow", "1")
        assert (item.execution_id, item.event_count, item.claims, item.unknown_for) == (1, 0, 1, None)
        assert payloads(item) == ["go"]
        assert (await a.info("i")).owner == "a"

    async def test_no_other_worker_gets_the_messages_of_an_owned_instance(self, cluster: Cluster) -> None:
        """Only an alive owner gets the messages of its instance (contract: owned instance)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.own("i")
        await send(b, "i", "x")
        fetched = await b.fetch_instances()
        assert (list(fetched.items), fetched.next_due) == ([], None)
        assert [payloads(item) for item in await a.take_instances()] == [["start", "x"]]

    async def test_messages_stay_until_a_turn_has_consumed_them(self, cluster: Cluster) -> None:
        """An owner gets unconsumed messages again, and that counts no claim (contract: Message)."""
        a, first = await cluster.owner("a", "i")
        (again,) = await a.take_instances()
        assert (again.messages, again.claims) == (first.messages, 1)

    async def test_excluded_messages_are_left_out(self, cluster: Cluster) -> None:
        """Excluded messages are not returned, nor an instance that has no others (contract:
        fetch_orchestration_item).
        """
        a = await cluster.worker("a")
        first, second = await a.own("i"), await a.own("j")
        await send(a, "i", "new")
        exclude = [*message_ids(first), *message_ids(second)]
        fetched = await a.fetch_instances(exclude=exclude)
        assert [(item.instance_id, payloads(item)) for item in fetched.items] == [("i", ["new"])]

    async def test_messages_come_in_order_of_visibility_then_of_arrival(self, cluster: Cluster) -> None:
        """Messages are ordered by visibility, then by arrival, within and across sends (contract:
        OrchestrationItem).
        """
        a = await cluster.worker("a")
        await a.own("i")
        await a.provider.send_message([NewMessage(instance_id="i", payload="late", delay=60)])
        await a.provider.send_message([NewMessage(instance_id="i", payload=text) for text in "123"])
        await send(a, "i", "4")
        assert payloads((await a.take_instances())[0]) == ["start", "1", "2", "3", "4"]
        await cluster.advance(60)
        await send(a, "i", "5")
        assert payloads((await a.take_instances())[0]) == ["start", "1", "2", "3", "4", "late", "5"]

    async def test_no_more_messages_than_a_batch_at_a_time(self, cluster: Cluster) -> None:
        """A fetch returns the oldest `MAX_BATCH` messages; the rest comes after they are consumed (contract:
        fetch_orchestration_item).
        """
        a, instance = await cluster.owner("a", "i")
        await a.commit_one(instance, history=[], consumed=message_ids(instance))
        texts = [str(number) for number in range(MAX_BATCH + 20)]
        for some in (texts[:MAX_BATCH], texts[MAX_BATCH:]):
            await a.provider.send_message([NewMessage(instance_id="i", payload=text) for text in some])
        (first,) = await a.take_instances()
        assert payloads(first) == texts[:MAX_BATCH]
        await a.commit_one(first, history=[], consumed=message_ids(first))
        assert payloads((await a.take_instances())[0]) == texts[MAX_BATCH:]

    async def test_a_fetch_takes_no_more_instances_than_its_limit(self, cluster: Cluster) -> None:
        """Instances beyond the limit of a fetch are not taken (contract: fetch_orchestration_item)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await a.provider.create_instance([new_instance(f"i{number}") for number in range(5)])
        taken = [item.instance_id for item in await a.take_instances(2)]
        left = [item.instance_id for item in await b.take_instances(10)]
        assert len(taken) == 2
        assert sorted(taken + left) == [f"i{number}" for number in range(5)]

    async def test_a_start_can_be_delayed(self, cluster: Cluster) -> None:
        """A delayed instance exists before its start message is visible (contract: NewInstance.delay)."""
        a = await cluster.worker("a")
        assert list(await a.provider.create_instance([new_instance("i", delay=60)])) == [True]
        early = await a.fetch_instances()
        assert list(early.items) == []
        assert early.next_due is not None
        assert 50 < early.next_due <= 60
        await cluster.advance(60)
        assert len(await a.take_instances()) == 1

    async def test_nothing_is_due_without_messages(self, cluster: Cluster) -> None:
        """``next_due`` is None without a message (contract: OrchestrationFetch)."""
        fetched = await (await cluster.worker("a")).fetch_instances()
        assert (list(fetched.items), fetched.claim_lost, fetched.next_due) == ([], False, None)

    async def test_what_is_due_is_known_with_what_was_fetched(self, cluster: Cluster) -> None:
        """``next_due`` regards the messages that a fetch has left (contract: OrchestrationFetch)."""
        a = await cluster.worker("a")
        await a.provider.create_instance([new_instance("i"), new_instance("j"), new_instance("k", delay=60)])
        first = await a.fetch_instances(1)
        assert (len(first.items), first.next_due) == (1, 0.0)
        excluded = [message.id for message in first.items[0].messages]
        second = await a.fetch_instances(10, exclude=excluded)
        assert len(second.items) == 1
        assert second.next_due is not None
        assert 50 < second.next_due <= 60

    async def test_racing_workers_share_the_instances(self, cluster: Cluster) -> None:
        """Exactly one of the racing workers takes each instance (contract: owned instance)."""
        peers = [await cluster.worker(name) for name in "ab"]
        names = [f"i{number:02}" for number in range(30)]
        await peers[0].provider.create_instance([new_instance(name) for name in names])
        taken: list[str] = []

        async def race(peer: Peer) -> None:
            while found := [item for item in await peer.take_instances(3) if item.claims == 1]:
                taken.extend(item.instance_id for item in found)
                await peer.commit(*(turn(item, consumed=message_ids(item)) for item in found))

        await concurrently(*(lambda peer=peer: race(peer) for peer in peers))
        assert sorted(taken) == names

    async def test_the_instances_of_a_dead_worker_are_taken(self, cluster: Cluster) -> None:
        """Another worker takes a dead worker's instances with their messages, and claims grow by one."""
        a, b = await cluster.worker("a", SHORT_LEASE), await cluster.worker("b")
        instance = await a.own("i")
        await cluster.pass_time(SHORT_LEASE + 1)
        (item,) = await b.take_instances()
        assert (item.claims, item.event_count, payloads(item)) == (2, 0, ["start"])
        assert (await b.info("i")).owner == "b"
        assert not (await a.commit_one(instance)).committed

    async def test_the_instances_of_a_restarted_worker_are_taken(self, cluster: Cluster) -> None:
        """Any worker can take the instances of an earlier incarnation (contract: owned instance)."""
        old = await cluster.worker("a")
        await old.own("i")
        new = await cluster.worker("a")
        await cluster.sweep_all()
        (item,) = await new.take_instances()
        assert item.claims == 2

    async def test_a_worker_that_resumes_still_owns_instances_that_no_worker_took(self, cluster: Cluster) -> None:
        """A worker that resumes still owns the instances that no other has taken (contract: owned instance)."""
        a, instance = await cluster.owner("a", "i", lease=SHORT_LEASE)
        await cluster.pass_time(SHORT_LEASE + 1)
        assert not (await a.commit_one(instance)).committed
        await a.register(resume=True)
        (again,) = await a.take_instances()
        assert (await a.commit_one(again)).committed

    async def test_claims_are_counted_until_a_turn_is_committed(self, cluster: Cluster) -> None:
        """``claims`` grows with each taking and a committed turn sets it back to 0."""
        for number in range(1, 4):
            _, item = await cluster.owner(f"w{number}", "i", lease=SHORT_LEASE)
            assert item.claims == number
            await cluster.pass_time(SHORT_LEASE + 1)
        last = await cluster.worker("last", SHORT_LEASE)
        await last.commit_one((await last.take_instances())[0])
        assert (await last.take_instances())[0].claims == 0
        await cluster.pass_time(SHORT_LEASE + 1)
        assert (await (await cluster.worker("next")).take_instances())[0].claims == 1

    async def test_a_released_instance_is_for_anyone(self, cluster: Cluster) -> None:
        """Any worker can take a released instance, and its former owner can commit no turn (contract:
        release_instance).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        await a.provider.release_instance(a.identity, [Release(instance_id="i")])
        assert not (await a.commit_one(instance)).committed
        (item,) = await b.take_instances()
        assert (await b.commit_one(item)).committed

    async def test_an_instance_can_be_handed_over(self, cluster: Cluster) -> None:
        """An instance that is handed over goes to that worker only (contract: Release.to)."""
        a, b, c = await cluster.worker("a"), await cluster.worker("b"), await cluster.worker("c")
        instance = await a.own("i")
        await a.provider.release_instance(a.identity, [Release(instance_id="i", to="b")])
        assert not (await a.commit_one(instance)).committed
        assert await a.take_instances() == []
        assert await c.take_instances() == []
        (item,) = await b.take_instances()
        assert (await b.commit_one(item)).committed
        assert (await a.info("i")).owner == "b"

    async def test_an_instance_that_is_released_is_for_any_worker(self, cluster: Cluster) -> None:
        """Any worker can take an instance that was handed to a dead, draining or unknown worker (contract:
        Release.to).
        """
        a, b = await cluster.worker("a"), await cluster.worker("b")
        await cluster.worker("dead", SHORT_LEASE)
        await (await cluster.worker("draining")).drain()
        await cluster.advance(SHORT_LEASE + 1)
        for receiver in ("dead", "draining", "missing"):
            await a.own(receiver)
            await a.provider.release_instance(a.identity, [Release(instance_id=receiver, to=receiver)])
            assert [item.instance_id for item in await b.take_instances()] == [receiver]
            await b.commit_one((await b.take_instances())[0], consumed=[])
            await b.provider.delete_instance([receiver], force=True)

    async def test_only_the_owner_gives_an_instance_up(self, cluster: Cluster) -> None:
        """A release by a worker that does not own the instance changes nothing (contract: Release)."""
        a, b = await cluster.worker("a"), await cluster.worker("b")
        instance = await a.own("i")
        releases = [Release(instance_id="i", to="b", unknown=True), Release(instance_id="missing")]
        await b.provider.release_instance(b.identity, releases)
        assert await b.take_instances() == []
        assert (await a.take_instances())[0].unknown_for is None
        assert (await a.commit_one(instance)).committed


async def send(peer: Peer, instance_id: str, text: str) -> None:
    """Send one message to an instance that there is."""
    assert list(await peer.provider.send_message([NewMessage(instance_id=instance_id, payload=text)])) == ["delivered"]
