"""A database with limits: queueing work at gates, admitting it, taking it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from affinity.flow.store.contract import (
    Admitted,
    LimitChange,
    LimitKeyRow,
    LimitProvider,
    LimitRow,
    LimitSpec,
    LimitWait,
    RateBound,
    limits_of,
)
from affinity.limits import MAX_ADMISSIONS
from affinity.orchestration.gates import LimitUse, gate_of
from affinity.provider.contract import WorkItem, WorkKey
from affinity.records import Gate
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.peer import Peer

MODEL = LimitUse("model")
"""The place that most work of the tests needs."""

_MAX_CALLS = 1_000


def tenant(key: str, weight: float = 1.0, units: int = 1) -> LimitUse:
    """Return a place at a key of the limit ``tenant``."""
    return LimitUse("tenant", key, units, weight)


def gate(*uses: LimitUse, priority: int = 0) -> Gate:
    """Return the gate of work that needs these places."""
    found = gate_of(uses, priority)
    assert found is not None
    return found


def slots(number: int | None, name: str = "model", **more: Any) -> LimitSpec:
    """Return a limit with so many slots."""
    return LimitSpec(name=name, concurrency=number, **more)


def rate(count: int, per: float, burst: int | None = None, name: str = "model", **more: Any) -> LimitSpec:
    """Return a limit with a rate."""
    return LimitSpec(name=name, rate=RateBound(count=count, per=per, burst=burst), **more)


@dataclass(frozen=True)
class Limits:
    """The verbs on limits of a worker that runs limited work."""

    cluster: Cluster
    worker: Peer
    store: LimitProvider

    @classmethod
    async def declare(cls, cluster: Cluster, *specs: LimitSpec) -> Limits:
        """Declare limits; return a worker's verbs."""
        worker = await cluster.worker("a")
        limits = cls(cluster, worker, limits_of(worker.provider))
        await limits.redeclare(*specs)
        return limits

    async def redeclare(self, *specs: LimitSpec, app: str = "shop", code: str = "1") -> None:
        await self.store.declare_limits(app, code, specs)

    async def queue(
        self, *uses: LimitUse, times: int = 1, priority: int = 0, session: str | None = None, **fields: Any
    ) -> list[WorkKey]:
        """Queue work that needs these places."""
        return await self.cluster.enqueue(*[session] * times, gate=gate_of(uses, priority), **fields)

    async def admit(self) -> int:
        """Admit all that may go on; return its number."""
        total = 0
        for _ in range(_MAX_CALLS):
            admitted = await self.store.admit(most=MAX_ADMISSIONS)
            total += admitted.admitted
            if not admitted.more:
                return total
        raise AssertionError("admit says again and again that there is more")

    async def look(self) -> Admitted:
        """Admit if work waits."""
        return await self.store.admit(most=MAX_ADMISSIONS, if_waiting=True)

    async def take(self) -> list[WorkItem]:
        """Admit all that may go on, and take it."""
        await self.admit()
        return await self.worker.take_all()

    async def taken(self) -> list[WorkKey]:
        """Admit all that may go on, and take it; return the keys."""
        return [item.lock.key for item in await self.take()]

    async def drain(self, most: int = 1_000) -> list[WorkKey]:
        """Run work until none is left; return the keys in the order in which it was admitted."""
        order: list[WorkKey] = []
        while len(order) < most and (items := await self.take()):
            order += [item.lock.key for item in items]
            assert all(await self.worker.ack(*items))
        return order

    async def change(self, limit: str = "model", **fields: Any) -> None:
        """Change a limit that there is."""
        assert list(await self.store.change_limits([LimitChange(limit=limit, **fields)])) == [True]

    async def open(self, number: int, limit: str = "model") -> None:
        """Let a limit that was declared without slots have some: new work must have waited before."""
        await self.admit()
        await self.change(limit, concurrency=number)

    async def row(self, name: str = "model") -> LimitRow:
        (found,) = await self.store.list_limits([name])
        return found

    async def key(self, key: str, limit: str = "tenant") -> LimitKeyRow:
        (found,) = await self.store.list_limit_keys(limit, keys=[key])
        return found

    async def wait(self, key: WorkKey) -> LimitWait:
        """Return why a piece of work waits, which it must."""
        (found,) = await self.store.get_limit_waits([key])
        return found

    async def states(self, instance_id: str = "~enqueuer") -> list[str]:
        """Return the states of the work items of an instance."""
        return [item.state for item in await self.worker.provider.list_work_items(instance_id, 100)]
