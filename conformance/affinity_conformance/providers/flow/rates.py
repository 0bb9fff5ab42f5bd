"""Rates: how much is admitted in a time, by the database's clock."""

from __future__ import annotations

from affinity.flow.store.contract import LimitCharge, LimitClosing
from affinity.orchestration.gates import LimitUse
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.flow.driver import MODEL, Limits, rate, slots, tenant


class LimitRateRules(Rules):
    """`RateBound`, `charge_limits`, `close_limits`, and `Admitted.next_due`."""

    async def test_no_window_has_more_than_the_rate(self, cluster: Cluster) -> None:
        """However the calls fall, any window of the length has at most the count; and in the long run nearly the count
        is admitted (contract: RateBound).
        """
        limits = await Limits.declare(cluster, rate(10, per=1_000.0))
        await limits.queue(MODEL, times=100)
        times: list[int] = []
        for step in range(90):
            times += [step * 50] * len(await limits.take())
            await cluster.advance(50)
        for start in times:
            assert len([at for at in times if start <= at < start + 1_000]) <= 10
        assert len(times) >= 40

    async def test_a_rate_without_a_burst_admits_what_it_has_at_once(self, cluster: Cluster) -> None:
        """All of a window may be admitted at one moment, and the next ones when these leave the window (contract:
        RateBound.burst).
        """
        limits = await Limits.declare(cluster, rate(5, per=1_000.0))
        await limits.queue(MODEL, times=8)
        assert len(await limits.take()) == 5
        await cluster.advance(900)
        assert await limits.take() == []
        await cluster.advance(120)
        assert len(await limits.take()) == 3

    async def test_slots_that_are_freed_do_not_count_in_the_rate_again(self, cluster: Cluster) -> None:
        """The end of work gives back slots, and no units of the rate (contract: RateBound)."""
        limits = await Limits.declare(cluster, rate(2, per=1_000.0, concurrency=1))
        await limits.queue(MODEL, times=5)
        assert len(await limits.drain()) == 2
        assert (await limits.row()).in_use == 0
        assert await limits.take() == []

    async def test_a_burst_is_followed_by_even_spaces(self, cluster: Cluster) -> None:
        """At most a burst is admitted at one moment, and then one for each part of the window (contract:
        RateBound.burst).
        """
        limits = await Limits.declare(cluster, rate(10, per=1_000.0, burst=3))
        await limits.queue(MODEL, times=20)
        counts = [len(await limits.take())]
        for _ in range(4):
            await cluster.advance(101)
            counts.append(len(await limits.take()))
        assert counts == [3, 1, 1, 1, 1]
        await cluster.advance(50)
        assert await limits.take() == []

    async def test_smooth_work_is_evenly_spaced(self, cluster: Cluster) -> None:
        """With a burst of one no two come closer than a part of the window, and a pause saves up nothing (contract:
        RateBound.burst).
        """
        limits = await Limits.declare(cluster, rate(10, per=1_000.0, burst=1))
        await limits.queue(MODEL, times=20)
        assert len(await limits.take()) == 1
        await cluster.advance(90)
        assert await limits.take() == []
        await cluster.advance(15)
        assert len(await limits.take()) == 1
        await cluster.advance(5_000)
        assert len(await limits.take()) == 1
        assert (await limits.row()).waiting == 17

    async def test_units_weigh_an_admission(self, cluster: Cluster) -> None:
        """Work of several units counts so often (contract: LimitUse.units)."""
        limits = await Limits.declare(cluster, rate(10, per=1_000.0))
        first = await limits.queue(LimitUse("model", units=6))
        second = await limits.queue(LimitUse("model", units=6))
        assert await limits.taken() == first
        assert (await limits.store.list_limit_keys("model"))[0].used == 6
        await cluster.advance(1_020)
        assert await limits.taken() == second

    async def test_small_work_does_not_pass_large_work(self, cluster: Cluster) -> None:
        """Work that is next and needs more units than there are is not overtaken for ever by small work (contract:
        LimitProvider).
        """
        limits = await Limits.declare(cluster, rate(10, per=1_000.0))
        await limits.queue(MODEL, times=5)
        assert len(await limits.take()) == 5
        await cluster.advance(10)
        large = await limits.queue(LimitUse("model", units=8))
        await limits.admit()
        await cluster.advance(10)
        await limits.queue(MODEL, times=20)
        order = []
        for _ in range(30):
            order += await limits.taken()
            await cluster.advance(100)
        assert large[0] in order

    async def test_a_rate_of_a_key_is_its_own(self, cluster: Cluster) -> None:
        """A key that has used its rate does not delay another (contract: LimitSpec.keyed)."""
        limits = await Limits.declare(cluster, slots(100), rate(1, per=1_000.0, name="tenant", keyed=True))
        acme = await limits.queue(MODEL, tenant("acme"), times=3)
        globex = await limits.queue(MODEL, tenant("globex"), times=2)
        assert sorted(await limits.taken()) == sorted([acme[0], globex[0]])
        await cluster.advance(1_020)
        assert sorted(await limits.taken()) == sorted([acme[1], globex[1]])

    async def test_charges_count_after_the_fact(self, cluster: Cluster) -> None:
        """They count in the rate, also above its bound; a limit that no code declares is left out (contract:
        charge_limits).
        """
        limits = await Limits.declare(cluster, rate(10, per=1_000.0, name="tenant", keyed=True))
        charges = [
            LimitCharge(limit="tenant", key="acme", units=7),
            LimitCharge(limit="tenant", key="acme", units=20),
            LimitCharge(limit="unknown", units=1),
        ]
        await limits.store.charge_limits(charges)
        await limits.queue(tenant("acme"))
        await limits.queue(tenant("globex"))
        assert len(await limits.take()) == 1
        assert (await limits.key("acme")).used == 27
        await cluster.advance(1_020)
        assert len(await limits.take()) == 1

    async def test_charges_in_a_rate_with_a_burst(self, cluster: Cluster) -> None:
        """Evenly spaced units that were charged delay what comes (contract: charge_limits)."""
        limits = await Limits.declare(cluster, rate(10, per=1_000.0, burst=1))
        await limits.store.charge_limits([LimitCharge(limit="model", units=5)])
        await limits.admit()
        await limits.queue(MODEL)
        await cluster.advance(450)
        assert await limits.take() == []
        await cluster.advance(60)
        assert len(await limits.take()) == 1

    async def test_a_closed_limit_admits_nothing_until_its_time(self, cluster: Cluster) -> None:
        """A later end counts, an earlier one changes nothing; a key alone can be closed, and a limit that no code
        declares is left out (contract: close_limits).
        """
        limits = await Limits.declare(cluster, slots(10), slots(10, "tenant", keyed=True))
        closing = LimitClosing(limit="model", seconds=100.0, reason="429")
        await limits.store.close_limits([closing, LimitClosing(limit="unknown", seconds=100.0)])
        await limits.store.close_limits([LimitClosing(limit="model", seconds=10.0, reason="earlier")])
        await limits.store.close_limits([LimitClosing(limit="tenant", key="acme", seconds=1_000.0, reason="401")])
        row = await limits.row()
        assert (row.closed_for, row.closed_until is not None) == ("429", True)
        model = await limits.queue(MODEL)
        acme = await limits.queue(tenant("acme"))
        globex = await limits.queue(tenant("globex"))
        assert await limits.taken() == globex
        assert [(await limits.wait(key)).cause for key in (*model, *acme)] == ["closed", "closed"]
        await cluster.advance(50)
        assert await limits.take() == []
        await cluster.advance(51)
        assert await limits.taken() == model
        assert (await limits.row()).closed_until is None
        await cluster.advance(900)
        assert await limits.taken() == acme

    async def test_the_answer_says_when_time_opens_a_limit(self, cluster: Cluster) -> None:
        """Work is admitted after so many seconds, and not before; without such work there is no time (contract:
        Admitted.next_due).
        """
        specs = [rate(1, 1_000.0), rate(10, 1_000.0, 1, "smooth"), slots(9, "closed"), slots(0, "full")]
        limits = await Limits.declare(cluster, *specs)
        assert (await limits.store.admit(most=10)).next_due is None
        await limits.queue(LimitUse("full"))
        await limits.admit()
        assert (await limits.store.admit(most=10)).next_due is None
        await limits.store.close_limits([LimitClosing(limit="closed", seconds=500.0)])
        for name, number in (("model", 2), ("smooth", 2), ("closed", 1)):
            await limits.queue(LimitUse(name), times=number)
        assert len(await limits.take()) == 2
        for seconds, least in ((100.0, 95.0), (500.0, 395.0), (1_020.0, 495.0)):
            due = (await limits.store.admit(most=10)).next_due
            assert due is not None, seconds
            assert least <= due <= seconds
            await cluster.advance(due - 5)
            assert await limits.take() == []
            await cluster.advance(6)
            assert len(await limits.take()) == 1
        assert (await limits.store.admit(most=10)).next_due is None

    async def test_delayed_work_is_due_at_its_time(self, cluster: Cluster) -> None:
        """It joins its line when it is visible (contract: NewWorkItem.gate, Admitted.next_due)."""
        limits = await Limits.declare(cluster, slots(1))
        late = await limits.queue(MODEL, delay=100.0)
        due = (await limits.store.admit(most=10)).next_due
        assert due is not None
        assert 95 < due <= 100
        assert await limits.states() == ["delayed"]
        now = await limits.queue(MODEL)
        assert await limits.drain() == now
        await cluster.advance(101)
        assert await limits.taken() == late
