"""Limits as code declares them, and as people change them while all runs."""

from __future__ import annotations

from affinity.flow.store.contract import UNCHANGED, LimitChange, LimitClosing, LimitSpec, RateBound
from affinity.orchestration.gates import LimitUse
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.flow.driver import MODEL, Limits, rate, slots, tenant


class LimitChangeRules(Rules):
    """`declare_limits` and `change_limits`."""

    async def test_a_limit_is_returned_as_it_was_declared(self, cluster: Cluster) -> None:
        """Every field comes back, and nothing has been changed (contract: LimitRow)."""
        bound = RateBound(count=600, per=60.0, burst=7)
        spec = LimitSpec(name="model", concurrency=20, rate=bound, aging=120.0)
        keyed = LimitSpec(name="tenant", keyed=True)
        limits = await Limits.declare(cluster, keyed, spec)
        model, other = await limits.store.list_limits()
        assert (model.spec, other.spec) == (spec, keyed)
        assert (model.app, model.code, model.declared) == ("shop", "1", True)
        assert (model.concurrency, model.rate, model.paused, model.ramp) == (UNCHANGED, UNCHANGED, False, None)
        assert (model.closed_until, model.closed_for, model.changed_by, model.changed_at) == (None, None, None, None)
        assert (model.in_use, model.waiting, model.oldest, model.admitted, model.waited) == (0, 0, None, 0, 0)
        assert list(await limits.store.list_limits(["unknown"])) == []

    async def test_the_last_declaration_counts(self, cluster: Cluster) -> None:
        """It changes bounds for work that waits, and an identical one changes nothing (contract: declare_limits)."""
        limits = await Limits.declare(cluster, slots(1))
        await limits.queue(MODEL, times=5)
        assert len(await limits.take()) == 1
        await limits.redeclare(slots(1))
        assert await limits.take() == []
        await limits.redeclare(slots(3), code="2")
        assert len(await limits.take()) == 2
        assert (await limits.row()).code == "2"

    async def test_a_limit_that_is_no_longer_declared_holds_nothing_back(self, cluster: Cluster) -> None:
        """Its work goes on, and it is shown with what it was; its slots count if it is declared again (contract:
        declare_limits).
        """
        limits = await Limits.declare(cluster, slots(1), slots(1, "disk"))
        await limits.queue(MODEL, times=3)
        await limits.queue(LimitUse("disk"), times=3)
        assert len(await limits.take()) == 2
        await limits.redeclare(slots(1, "disk"), code="2")
        assert len(await limits.take()) == 2
        row = await limits.row()
        assert (row.declared, row.spec, row.in_use, row.waiting) == (False, slots(1), 3, 0)
        await limits.redeclare(slots(4), slots(1, "disk"), code="3")
        await limits.queue(MODEL, times=3)
        assert len(await limits.take()) == 1

    async def test_an_app_declares_its_own_limits_alone(self, cluster: Cluster) -> None:
        """A limit that another app declares stays as it is, and stays declared (contract: declare_limits)."""
        limits = await Limits.declare(cluster, slots(1))
        await limits.redeclare(slots(5), slots(2, "disk"), app="other")
        await limits.redeclare(app="other")
        row = await limits.row()
        assert (row.app, row.spec, row.declared) == ("shop", slots(1), True)
        assert not (await limits.row("disk")).declared

    async def test_changes_outlast_declarations(self, cluster: Cluster) -> None:
        """A new declaration leaves what was changed, until the change is taken back (contract: LimitChange.reset)."""
        limits = await Limits.declare(cluster, slots(5))
        await limits.change(concurrency=1, by="ada")
        await limits.redeclare(slots(4), code="2")
        await limits.queue(MODEL, times=9)
        assert len(await limits.take()) == 1
        row = await limits.row()
        assert (row.concurrency, row.spec.concurrency, row.changed_by) == (1, 4, "ada")
        assert row.changed_at is not None
        await limits.change(reset=True, by="bob")
        assert len(await limits.take()) == 3
        row = await limits.row()
        assert (row.concurrency, row.changed_by) == (UNCHANGED, "bob")

    async def test_a_lower_bound_cancels_nothing(self, cluster: Cluster) -> None:
        """Work that runs keeps its slots, and the excess runs out (contract: change_limits)."""
        limits = await Limits.declare(cluster, slots(4))
        await limits.queue(MODEL, times=9)
        first, *others = await limits.take()
        await limits.change(concurrency=2)
        assert await limits.worker.renew(first, *others) == [True] * 4
        await limits.worker.ack(first, others[0])
        assert await limits.take() == []
        await limits.worker.ack(others[1])
        assert len(await limits.take()) == 1
        assert (await limits.row()).in_use == 2

    async def test_no_slots_are_a_pause(self, cluster: Cluster) -> None:
        """A limit of no slots, declared or changed, holds all work back (contract: LimitSpec.concurrency)."""
        limits = await Limits.declare(cluster, slots(0), slots(5, "disk"))
        await limits.change("disk", concurrency=0)
        await limits.queue(MODEL)
        await limits.queue(LimitUse("disk"))
        assert await limits.take() == []
        await limits.change(concurrency=None)
        await limits.change("disk", reset=True)
        assert len(await limits.take()) == 2

    async def test_a_pause_holds_back_and_lets_run(self, cluster: Cluster) -> None:
        """A paused limit admits nothing; work that runs goes on; resumed, it admits as before (contract:
        LimitChange.paused). A limit without bounds is a switch.
        """
        limits = await Limits.declare(cluster, slots(2), LimitSpec(name="switch"))
        await limits.queue(MODEL, times=4)
        items = await limits.take()
        for name in ("model", "switch"):
            await limits.change(name, paused=True, by="ada")
        (key,) = await limits.queue(LimitUse("switch"))
        await limits.worker.ack(*items)
        assert await limits.take() == []
        assert (await limits.row()).paused
        assert (await limits.wait(key)).cause == "paused"
        for name in ("model", "switch"):
            await limits.change(name, paused=False)
        assert len(await limits.take()) == 3

    async def test_a_key_is_paused_alone(self, cluster: Cluster) -> None:
        """Other keys go on, also at a common limit (contract: LimitChange.key)."""
        limits = await Limits.declare(cluster, slots(1), slots(5, "tenant", keyed=True))
        await limits.change("tenant", key="acme", paused=True)
        acme = await limits.queue(MODEL, tenant("acme"), times=2)
        globex = await limits.queue(MODEL, tenant("globex"), times=2)
        assert await limits.drain() == globex
        assert (await limits.key("acme")).paused
        await limits.change("tenant", key="acme", paused=False)
        assert await limits.drain() == acme

    async def test_a_ramp_adds_slots_with_time(self, cluster: Cluster) -> None:
        """A limit that is resumed with a ramp admits so much for each second, up to its slots (contract:
        LimitChange.ramp).
        """
        limits = await Limits.declare(cluster, slots(10))
        await limits.change(paused=True)
        await limits.queue(MODEL, times=30)
        assert await limits.take() == []
        await limits.change(paused=False, ramp=0.01)
        counts = [len(await limits.take())]
        for _ in range(4):
            await cluster.advance(101)
            counts.append(len(await limits.take()))
        assert counts[0] <= 1
        assert counts[1:] == [1, 1, 1, 1]
        due = (await limits.store.admit(most=10)).next_due
        assert due is not None
        assert 0 < due <= 101
        await cluster.advance(5_000)
        assert sum(counts) + len(await limits.take()) == 10
        assert (await limits.row()).ramp == 0.01

    async def test_a_key_has_bounds_of_its_own(self, cluster: Cluster) -> None:
        """They count for this key, whatever is changed for all (contract: LimitChange.key)."""
        limits = await Limits.declare(cluster, slots(1, "tenant", keyed=True))
        await limits.change("tenant", key="acme", concurrency=3, rate=RateBound(count=100, per=60.0))
        await limits.change("tenant", concurrency=2)
        for key in ("acme", "globex"):
            await limits.queue(tenant(key), times=5)
        assert len(await limits.take()) == 5
        row = await limits.key("acme")
        assert (row.concurrency, row.rate, row.used) == (3, RateBound(count=100, per=60.0), 3)
        await limits.change("tenant", key="acme", reset=True)
        assert (await limits.key("acme")).concurrency == UNCHANGED
        assert await limits.take() == []

    async def test_a_rate_is_changed_while_work_waits(self, cluster: Cluster) -> None:
        """A greater rate admits at once, none admits all (contract: LimitChange.rate)."""
        limits = await Limits.declare(cluster, rate(1, per=1_000.0))
        await limits.queue(MODEL, times=20)
        assert len(await limits.take()) == 1
        await limits.change(rate=RateBound(count=5, per=1_000.0))
        assert len(await limits.take()) == 4
        await limits.change(rate=None)
        assert len(await limits.take()) == 15
        assert (await limits.row()).rate is None

    async def test_a_change_of_an_unknown_limit_is_refused(self, cluster: Cluster) -> None:
        """It does nothing, and the others of its call are done (contract: change_limits)."""
        limits = await Limits.declare(cluster, slots(5))
        changes = [LimitChange(limit="unknown", paused=True), LimitChange(limit="model", concurrency=1)]
        assert list(await limits.store.change_limits(changes)) == [False, True]
        assert [row.spec.name for row in await limits.store.list_limits()] == ["model"]
        assert (await limits.row()).concurrency == 1

    async def test_a_resumed_limit_is_no_longer_closed(self, cluster: Cluster) -> None:
        """People who resume a limit open it, whatever closed it (contract: LimitChange.paused)."""
        limits = await Limits.declare(cluster, slots(5))
        await limits.store.close_limits([LimitClosing(limit="model", seconds=1_000.0, reason="429")])
        await limits.queue(MODEL)
        assert await limits.take() == []
        await limits.change(paused=False)
        assert len(await limits.take()) == 1

    async def test_what_has_waited_is_counted(self, cluster: Cluster) -> None:
        """A limit counts its admissions and how long they have waited (contract: LimitRow.waited)."""
        limits = await Limits.declare(cluster, slots(1))
        await limits.queue(MODEL, times=2)
        (item,) = await limits.take()
        row = await limits.row()
        assert (row.in_use, row.waiting, row.admitted) == (1, 1, 1)
        assert row.oldest is not None
        await cluster.advance(20)
        assert await limits.worker.ack(item) == [True]
        assert len(await limits.take()) == 1
        later = await limits.row()
        assert (later.waiting, later.oldest, later.admitted) == (0, None, 2)
        assert 19 < later.waited < 29
