"""What people see: keys of limits, and why work waits."""

from __future__ import annotations

from affinity.flow.store.contract import START_ACTIVITY, START_EXECUTION, RateBound
from affinity.orchestration.gates import LimitUse
from affinity.provider.contract import WorkKey
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import new_instance
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.flow.driver import MODEL, Limits, gate, rate, slots, tenant


class LimitListingRules(Rules):
    """`list_limit_keys`, `get_limit_waits`, and work that waits in the lists of the kernel."""

    async def test_keys_are_listed_in_pages(self, cluster: Cluster) -> None:
        """Each has its use and its waiting work; a page goes on behind a key (contract: list_limit_keys)."""
        limits = await Limits.declare(cluster, slots(1, "tenant", keyed=True))
        for key in ("b", "c", "a"):
            await limits.queue(tenant(key), times=3)
        await limits.take()
        first = await limits.store.list_limit_keys("tenant", most=2)
        assert [(row.key, row.limit, row.in_use, row.waiting, row.admitted) for row in first] == [
            ("a", "tenant", 1, 2, 1),
            ("b", "tenant", 1, 2, 1),
        ]
        assert all(row.oldest is not None and not row.paused for row in first)
        assert [row.key for row in await limits.store.list_limit_keys("tenant", after="b")] == ["c"]
        some = await limits.store.list_limit_keys("tenant", keys=["c", "zzz", "a"])
        assert [row.key for row in some] == ["a", "c"]
        assert list(await limits.store.list_limit_keys("unknown")) == []
        row = await limits.row("tenant")
        assert (row.keys, row.in_use, row.waiting) == (3, 3, 6)

    async def test_a_wait_names_the_limit_that_lacks_something(self, cluster: Cluster) -> None:
        """The first one of the work's limits that lacks something for it, with what is in use (contract: LimitWait)."""
        limits = await Limits.declare(cluster, slots(5), slots(1, "tenant", keyed=True))
        first, second = await limits.queue(MODEL, tenant("acme"), times=2, priority=7)
        await limits.take()
        wait = await limits.wait(second)
        assert (wait.key, wait.limit, wait.limit_key, wait.cause) == (second, "tenant", "acme", "concurrency")
        assert (wait.in_use, wait.concurrency, wait.priority, wait.before) == (1, 1, 7, 0)
        assert list(await limits.store.get_limit_waits([first, WorkKey("unknown", 1, 1)])) == []

    async def test_a_wait_for_a_rate_says_how_long_it_takes(self, cluster: Cluster) -> None:
        """It has the units and the rate, and about when they are free (contract: LimitWait.seconds)."""
        limits = await Limits.declare(cluster, rate(2, per=1_000.0))
        *_, last = await limits.queue(LimitUse("model", units=2), times=2)
        await limits.take()
        wait = await limits.wait(last)
        assert (wait.cause, wait.used, wait.rate) == ("rate", 2, RateBound(count=2, per=1_000.0))
        assert wait.seconds is not None
        assert 900 < wait.seconds <= 1_020

    async def test_a_wait_counts_what_is_before(self, cluster: Cluster) -> None:
        """Work of greater priority, and older work of its own (contract: LimitWait.before)."""
        limits = await Limits.declare(cluster, slots(0))
        *_, last = await limits.queue(MODEL, times=5)
        await limits.queue(MODEL, times=3, priority=1)
        await limits.queue(MODEL, times=3)
        await limits.admit()
        assert (await limits.wait(last)).before == 7

    async def test_waiting_work_is_limited(self, cluster: Cluster) -> None:
        """Lists show its state and its session; it does not count as work that waits for a worker (contract:
        WorkItemState).
        """
        limits = await Limits.declare(cluster, slots(0))
        await cluster.holder("b", "s")
        await limits.queue(MODEL, session="s")
        await limits.queue(MODEL, session="s")
        assert await limits.states() == ["limited", "limited"]
        await limits.open(1)
        await limits.admit()
        rows = await limits.worker.provider.list_work_items("~enqueuer", 10)
        assert [(row.state, row.session_id) for row in rows] == [("waiting", "s"), ("limited", "s")]
        measured = await limits.worker.provider.measure_queues(100)
        assert measured.work_items["waiting"] == 1
        (at_limit,) = await limits.worker.provider.list_queue("limited", 10)
        assert (at_limit.state, at_limit.session_id) == ("limited", "s")
        assert [use.kind for use in await limits.worker.provider.list_session_uses("s")] == ["work", "limited"]
        assert [use.kind for use in await limits.worker.provider.list_session_uses("other")] == []
        assert (await cluster.session("s")).queued == 1

    async def test_an_instance_that_waits_to_start_has_a_wait(self, cluster: Cluster) -> None:
        """Its key is the id, with an execution and an activity of their own (contract: LimitWait.key)."""
        limits = await Limits.declare(cluster, slots(0))
        await limits.worker.provider.create_instance([new_instance("i", gate=gate(MODEL))])
        await limits.admit()
        key = WorkKey("i", START_EXECUTION, START_ACTIVITY)
        assert (await limits.wait(key)).limit == "model"
