"""The order at a limit: by priority, then fair among keys, then by age."""

from __future__ import annotations

from affinity.limits import MAX_ADMISSIONS
from affinity.orchestration.gates import LimitUse
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.flow.driver import MODEL, Limits, slots, tenant


class LimitOrderRules(Rules):
    """`LimitProvider.admit`: which work is next."""

    async def test_the_oldest_is_next(self, cluster: Cluster) -> None:
        """Work of one priority at one limit goes by age (contract: LimitProvider)."""
        limits = await Limits.declare(cluster, slots(1))
        keys = []
        for _ in range(5):
            keys += await limits.queue(MODEL)
            await cluster.advance(1)
        assert await limits.drain() == keys

    async def test_a_greater_priority_goes_first(self, cluster: Cluster) -> None:
        """Work of a greater priority goes before all work of a lower one (contract: LimitProvider)."""
        limits = await Limits.declare(cluster, slots(0))
        low = await limits.queue(MODEL, times=3)
        high = await limits.queue(MODEL, times=2, priority=10)
        middle = await limits.queue(MODEL, times=2, priority=5)
        await limits.open(1)
        assert await limits.drain() == [*high, *middle, *low]

    async def test_waiting_work_is_not_starved_for_ever(self, cluster: Cluster) -> None:
        """A priority rises by one for each time of `aging` that its oldest work waits (contract: LimitProvider)."""
        limits = await Limits.declare(cluster, slots(1, aging=100.0))
        (held,) = await limits.queue(MODEL, priority=3)
        (item,) = await limits.take()
        (old,) = await limits.queue(MODEL)
        await limits.admit()
        await cluster.advance(250)
        assert await limits.worker.renew(item) == [False]
        assert await limits.store.return_slots() == 1
        (again,) = await limits.take()
        assert again.lock.key == held, "2.5 times of aging are less than three priorities"
        await limits.worker.ack(again)
        first = await limits.queue(MODEL, priority=1)
        last = await limits.queue(MODEL)
        assert await limits.drain() == [old, *first, *last]

    async def test_a_key_with_many_does_not_delay_a_key_with_one(self, cluster: Cluster) -> None:
        """Keys that wait at a common limit take turns (contract: LimitProvider)."""
        limits = await Limits.declare(cluster, slots(1), slots(10, "tenant", keyed=True))
        many = await limits.queue(MODEL, tenant("acme"), times=MAX_ADMISSIONS + 50)
        await limits.admit()
        (one,) = await limits.queue(MODEL, tenant("globex"))
        order = await limits.drain(most=6)
        assert one in order[:3]
        assert set(order) - {one} <= {*many[:6]}

    async def test_keys_share_by_weight(self, cluster: Cluster) -> None:
        """A key of three times the weight gets three times as much (contract: LimitProvider)."""
        limits = await Limits.declare(cluster, slots(1), slots(10, "tenant", keyed=True))
        heavy = set(await limits.queue(MODEL, tenant("acme", weight=3.0), times=40))
        await limits.queue(MODEL, tenant("globex"), times=40)
        order = await limits.drain(most=20)
        assert 14 <= len(heavy.intersection(order)) <= 16

    async def test_a_key_that_begins_to_wait_has_saved_nothing(self, cluster: Cluster) -> None:
        """A key without work for long gets its share, and not what it could have had (contract: LimitProvider)."""
        limits = await Limits.declare(cluster, slots(1), slots(10, "tenant", keyed=True))
        await limits.queue(MODEL, tenant("globex"))
        busy = set(await limits.queue(MODEL, tenant("acme"), times=40))
        await limits.drain(most=21)
        late = set(await limits.queue(MODEL, tenant("globex"), times=40))
        order = await limits.drain(most=12)
        assert 5 <= len(busy.intersection(order)) <= 7
        assert late.intersection(order)

    async def test_priority_counts_before_fairness(self, cluster: Cluster) -> None:
        """A key's work of a greater priority goes before the work of all keys (contract: LimitProvider)."""
        limits = await Limits.declare(cluster, slots(0), slots(10, "tenant", keyed=True))
        await limits.queue(MODEL, tenant("acme"), times=5)
        await limits.queue(MODEL, tenant("globex"), times=5)
        urgent = await limits.queue(MODEL, tenant("acme"), times=3, priority=1)
        await limits.open(1)
        assert (await limits.drain(most=3)) == urgent

    async def test_a_full_key_does_not_delay_others(self, cluster: Cluster) -> None:
        """Its work waits, and other keys take the slots of the common limit; as soon as the key has a slot, it is
        next (contract: LimitProvider).
        """
        limits = await Limits.declare(cluster, slots(3), slots(1, "tenant", keyed=True))
        acme = await limits.queue(MODEL, tenant("acme"), times=30)
        others = [key for name in "bcd" for key in await limits.queue(MODEL, tenant(name))]
        items = {item.lock.key: item for item in await limits.take()}
        assert {*items} == {acme[0], *others[:2]}
        assert (await limits.row("tenant")).waiting == 30
        await limits.worker.ack(items[acme[0]])
        taken = await limits.taken()
        assert len(taken) == 1
        assert taken[0] in {acme[1], others[2]}

    async def test_many_keys_that_are_full_hide_nothing(self, cluster: Cluster) -> None:
        """Work of a free key is found behind the work of more full keys than one call admits (contract: admit)."""
        limits = await Limits.declare(cluster, slots(1_000), slots(1, "tenant", keyed=True))
        for number in range(60):
            await limits.queue(MODEL, tenant(f"t{number:03}"), times=3)
        assert len(await limits.take()) == 60
        (free,) = await limits.queue(MODEL, tenant("zzz"))
        total = 0
        while not total:
            admitted = await limits.store.admit(most=10)
            total += admitted.admitted
            assert admitted.admitted or admitted.more, "it is not found"
        assert [item.lock.key for item in await limits.worker.take_all()] == [free]

    async def test_work_that_lacks_another_limit_lets_others_go(self, cluster: Cluster) -> None:
        """Work that waits for a second limit does not keep the slots of the first one empty, and goes on as soon as
        both have room (contract: LimitProvider).
        """
        limits = await Limits.declare(cluster, slots(2, "disk"), slots(1))
        both = await limits.queue(LimitUse("disk"), MODEL, times=10)
        alone = await limits.queue(LimitUse("disk"), times=3)
        items = {item.lock.key: item for item in await limits.take()}
        assert {*items} == {both[0], alone[0]}
        await limits.worker.ack(items[both[0]])
        assert len(await limits.take()) == 1
        order = [key for key in await limits.drain() if key in both]
        assert order == sorted(order)

    async def test_a_priority_without_limits_is_an_order_of_fetches(self, cluster: Cluster) -> None:
        """Such work is delivered without an admission, the greater priority first, also when it comes back; a retry
        waits for its pause (contract: Gate).
        """
        limits = await Limits.declare(cluster)
        (plain,) = await cluster.enqueue(None)
        (low,) = await limits.queue(priority=1)
        (high,) = await limits.queue(priority=2)
        assert [(await limits.worker.take_one()).lock.key for _ in range(2)] == [high, low]
        item = await limits.worker.take_one()
        assert (item.lock.key, item.limited) == (plain, False)
        (again,) = await limits.queue(priority=1)
        back = await limits.worker.take_one()
        await limits.worker.give_back(back, failed=True, delay=10.0)
        (plain,) = await cluster.enqueue(None)
        await limits.admit()
        assert (await limits.worker.take_one()).lock.key == plain
        (plain,) = await cluster.enqueue(None)
        await cluster.advance(11)
        await limits.admit()
        assert [item.lock.key for item in await limits.worker.take_all()] == [again, plain]

    async def test_a_priority_does_not_make_work_look_old(self, cluster: Cluster) -> None:
        """The age of waiting work counts from when it was queued (contract: QueueStatistics)."""
        limits = await Limits.declare(cluster)
        await limits.queue(priority=500)
        measured = await limits.worker.provider.measure_queues(100)
        assert measured.oldest_work_item is not None
        assert measured.oldest_work_item < 60
