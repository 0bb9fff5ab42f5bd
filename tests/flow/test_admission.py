"""Admission by the store: what may strand work, take or keep slots against the rules, or let a limit be exceeded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from affinity.flow.store.contract import LimitChange, LimitProvider, LimitSpec, RateBound, limits_of
from affinity.limits import MAX_ADMISSIONS, UNTAKEN_SECONDS
from affinity.orchestration.gates import LimitUse, gate_of
from affinity.provider.contract import WorkKey
from affinity_conformance.providers.builders import message_ids, new_instance, payloads
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer
from tests.provider.postgres_stage import administrator
from tests.support.clusters import Database

pytestmark = pytest.mark.anyio

CALLS = 200
"""An admission that says so often that there is more will say so for ever."""


@dataclass
class Gates:
    """Limits of a database, and one worker."""

    cluster: Cluster
    worker: Peer
    store: LimitProvider

    async def declare(self, *specs: LimitSpec, app: str = "shop", code: str = "1") -> None:
        """Declare limits."""
        await self.store.declare_limits(app, code, specs)

    async def queue(self, *uses: LimitUse, times: int = 1, priority: int = 0, **fields: Any) -> list[WorkKey]:
        """Queue work at the gate of these places."""
        return await self.cluster.enqueue(*[None] * times, gate=gate_of(uses, priority), **fields)

    async def admit(self) -> int:
        """Admit all that may go on."""
        total = 0
        for _ in range(CALLS):
            admitted = await self.store.admit(most=MAX_ADMISSIONS)
            total += admitted.admitted
            if not admitted.more:
                return total
        raise AssertionError("there is more, again and again")

    async def run_all(self) -> list[WorkKey]:
        """Admit, take and end work until none may go on; return it in this order."""
        order: list[WorkKey] = []
        while True:
            await self.admit()
            if not (items := await self.worker.take_all()):
                return order
            order += [item.lock.key for item in items]
            assert all(await self.worker.ack(*items))


@pytest.fixture
async def gates(any_url: str) -> AsyncIterator[Gates]:
    cluster = Cluster(Database(any_url))  # type: ignore[arg-type]
    worker = await cluster.worker("a")
    yield Gates(cluster, worker, limits_of(worker.provider))
    await cluster.aclose()


def slots(name: str, number: int | None, **more: Any) -> LimitSpec:
    return LimitSpec(name=name, concurrency=number, **more)


A, B, Z = LimitUse("a"), LimitUse("b"), LimitUse("z")


async def test_a_paused_limit_keeps_no_other_limits_room(gates: Gates) -> None:
    """Work that waits for it as well has room at `z`, and does not take it: other work does."""
    await gates.declare(slots("a", 10), slots("b", 10), slots("z", 1))
    held = await gates.queue(Z)
    await gates.admit()
    (item,) = await gates.worker.take_all()
    assert [item.lock.key] == held
    await gates.queue(A, Z, priority=1)
    other = await gates.queue(B, Z)
    await gates.admit()
    await gates.store.change_limits([LimitChange(limit="a", paused=True)])
    await gates.admit()
    await gates.worker.ack(item)
    assert await gates.run_all() == other


async def test_lines_that_need_more_units_than_are_left_end_an_admission(gates: Gates) -> None:
    """There is room for one unit, and no line needs so little: nothing more is to be done until time passes."""
    await gates.declare(
        slots("a", 1000),
        LimitSpec(name="z", concurrency=50, rate=RateBound(count=10, per=60.0)),
        slots("tenant", 10, keyed=True),
    )
    for number in range(100):
        await gates.queue(LimitUse("z", units=3), LimitUse("tenant", str(number)), A)
    await gates.admit()
    assert len(await gates.worker.take_all()) == 3
    await gates.cluster.advance(70)
    await gates.admit()
    assert len(await gates.worker.take_all()) == 3


async def test_a_limited_item_that_no_worker_may_take_fails_in_time(gates: Gates) -> None:
    """`fail_after` counts from its admission, also from one by its commit, and not while it waits."""
    await gates.declare(slots("z", 1))
    (first,) = await gates.queue(Z, tag="gpu", fail_after=10.0)
    await gates.queue(Z, fail_after=10.0)
    await gates.admit()
    await gates.cluster.advance(11)
    failed = await gates.worker.end_waits()
    assert [one.lock.key for one, _ in failed.failed] == [first]


async def test_an_item_that_is_given_back_waits_without_failing(gates: Gates) -> None:
    """Its slot is for other work, which no worker takes either."""
    await gates.declare(slots("z", 1))
    await gates.queue(Z, tag="gpu", fail_after=UNTAKEN_SECONDS + 10)
    await gates.queue(Z, times=2)
    await gates.admit()
    await gates.cluster.advance(UNTAKEN_SECONDS + 1)
    await gates.store.return_slots()
    await gates.admit()
    await gates.cluster.advance(20)
    assert not (await gates.worker.end_waits()).failed


async def test_a_priority_is_no_time_that_work_has_waited(gates: Gates) -> None:
    """Work whose tag no worker has fails after the timeout, however urgent it is."""
    await gates.declare(slots("z", 1))
    await gates.queue(tag="gpu", priority=5)
    await gates.queue(Z, tag="gpu", priority=5)
    await gates.admit()
    assert not (await gates.worker.end_waits(tag_timeout=100.0)).failed
    await gates.cluster.advance(101)
    await gates.admit()
    assert len((await gates.worker.end_waits(tag_timeout=100.0)).failed) == 2


async def test_urgent_work_makes_no_debt_among_the_rest(gates: Gates) -> None:
    """A key that begins to wait after a burst of urgent work gets its share at once."""
    await gates.declare(slots("z", 0), slots("tenant", 100, keyed=True))
    acme, globex = LimitUse("tenant", "acme"), LimitUse("tenant", "globex")
    many = await gates.queue(Z, acme, times=6)
    await gates.admit()
    await gates.queue(Z, LimitUse("tenant", "urgent"), times=50, priority=9)
    await gates.admit()
    for number in (25, 50):
        await gates.store.change_limits([LimitChange(limit="z", concurrency=number)])
        await gates.admit()
    urgent = await gates.worker.take_all()
    assert len(urgent) == 50
    few = await gates.queue(Z, globex, times=6)
    await gates.store.change_limits([LimitChange(limit="z", concurrency=1)])
    await gates.admit()
    await gates.worker.ack(*urgent)
    order = await gates.run_all()
    assert {*order} == {*many, *few}
    assert set(order[:6]) & {*few}, "all of the other key went first"
    assert len(set(order[:6]) & {*few}) in {2, 3, 4}


async def test_a_limit_that_one_app_gives_up_is_anothers(gates: Gates) -> None:
    await gates.declare(slots("z", 1), app="one")
    await gates.declare(app="one", code="2")
    await gates.declare(slots("z", 2), app="two")
    (row,) = await gates.store.list_limits(["z"])
    assert (row.app, row.declared, row.spec.concurrency) == ("two", True, 2)


async def test_a_message_that_is_sent_while_its_instance_is_admitted_arrives(postgres_migrated: str) -> None:
    """It is not left at a gate that is open, also when the instance has begun by then."""
    cluster = Cluster(Database(postgres_migrated))  # type: ignore[arg-type]
    worker = await cluster.worker("a")
    await limits_of(worker.provider).declare_limits("shop", "1", [slots("z", 1)])
    await worker.provider.create_instance([new_instance("i", gate=gate_of([Z]))])
    arrived: list[str] = []
    with administrator(postgres_migrated) as sender:
        sender.execute("BEGIN")
        sender.execute("SELECT n FROM send_messages(ARRAY['i'], ARRAY[NULL::text], ARRAY['event'])")
        await limits_of(worker.provider).admit(most=MAX_ADMISSIONS)
        for item in await worker.take_instances():
            await worker.go_on(item, consumed=message_ids(item))
            arrived += payloads(item)
        sender.execute("COMMIT")
    await anyio.sleep(0.02)  # an instance that a sender had locked is looked at again soon
    await limits_of(worker.provider).admit(most=MAX_ADMISSIONS)
    arrived += [text for item in await worker.take_instances() for text in payloads(item)]
    assert arrived == ["start", "event"]
    await cluster.aclose()


async def test_many_keys_of_a_weight_that_no_number_shows_in_full(gates: Gates) -> None:
    """Virtual times are thirds here; the pages of lines that are read go on behind them."""
    await gates.declare(slots("z", 0), slots("tenant", 1, keyed=True))
    for number in range(40):
        await gates.queue(Z, LimitUse("tenant", f"t{number}", weight=3.0), times=2)
    await gates.admit()
    await gates.store.change_limits([LimitChange(limit="z", concurrency=40)])
    await gates.admit()
    items = await gates.worker.take_all()
    assert len(items) == 40
    await gates.store.change_limits([LimitChange(limit=name, concurrency=0) for name in ("z", "tenant")])
    await gates.worker.ack(*items)
    await gates.admit()
    await gates.store.change_limits([LimitChange(limit="z", concurrency=5)])
    assert await gates.run_all() == []
    await gates.store.change_limits([LimitChange(limit="tenant", concurrency=1)])
    assert len(await gates.run_all()) == 40


async def test_a_deep_line_gives_each_of_its_work_one_place(gates: Gates) -> None:
    """A call reads it in more than one part."""
    await gates.declare(slots("z", 0), slots("tenant", 1000, keyed=True))
    for _ in range(40):
        await gates.queue(Z, LimitUse("tenant", "acme"))
    for number in range(9):
        await gates.queue(Z, LimitUse("tenant", f"t{number}"))
    await gates.admit()
    await gates.store.change_limits([LimitChange(limit="z", concurrency=30)])
    assert len(await gates.run_all()) == 49
    keys = [*await gates.store.list_limit_keys("z"), *await gates.store.list_limit_keys("tenant")]
    assert [(key.in_use, key.waiting) for key in keys] == [(0, 0)] * 11
